"""One writer per run: a lock on a file in the run's folder, which the system lets go when the process dies.

That is also how a run whose process was killed is told from one that is running: its lock is free.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from .errors import RunInUse, folder_errors

_PATIENCE = 0.5  # seconds; a reader that asks whether the lock is free holds it for a moment itself


class Lock:
    """The lock of a run, held until `release` or the end of the process."""

    def __init__(self, path: Path, run: str) -> None:
        with folder_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        deadline = time.monotonic() + _PATIENCE
        while not _grab(self._file, shared=False):
            if time.monotonic() > deadline:
                owner = os.pread(self._file, 32, 1).decode(errors="replace").strip() if os.name == "posix" else ""
                os.close(self._file)
                raise RunInUse(f"run {run} is being written already, by {owner or 'another process'}")
            time.sleep(0.02)
        with suppress(OSError):  # only a help for the message: a full disk must not get in its way
            os.lseek(self._file, 1, os.SEEK_SET)  # the first byte is the one that Windows locks
            os.write(self._file, f"process {os.getpid()}".ljust(31).encode())

    def release(self) -> None:
        """Let the lock go."""
        # Closing is enough, and unlike unlocking it does nothing in a forked child.
        os.close(self._file)


def held(path: Path) -> bool:
    """Whether some process holds the lock."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _grab(file, shared=True)
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _grab(file: int, *, shared: bool) -> bool:
        os.lseek(file, 0, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBRLCK if shared else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _grab(file: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
