"""Files that a full disk, a power cut or another process may come between: replaced whole, locked, checked.

Everything that the package keeps beside SQLite's own file goes through here.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .checks import InvalidInput

_PATIENCE = 0.5  # seconds; a reader that asks whether a lock is free holds it for a moment itself
_TRIES = 100
LOCK_OWNER_BYTES = 32
"""Bytes in which the holder of a lock says who it is."""
_LOCK_OWNER_AT = 1  # the first byte is the one that Windows locks


class FileTrouble(InvalidInput):
    """A file cannot be read or written; what was saved before is intact unless the message says otherwise."""


class FileInUse(FileTrouble):
    """Another process, or another object of this one, is writing it."""


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Turn the errors of the file system into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full: free some space and resume; everything written before is safe"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "it is not writable: choose another folder"
        elif error.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "a file has its name: choose another folder"
        else:
            reason = error.strerror or str(error)
        raise FileTrouble(f"folder {folder}: {reason}") from error


def checksum(data: bytes | NDArray[Any]) -> int:
    """CRC-32 of bytes, or of a contiguous array."""
    return zlib.crc32(data if isinstance(data, bytes) else data.data)


# Places: a file that belongs to a folder names it in a way that outlives a copy or a move of both


def relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder, by the names that were given where symbolic links do not lead elsewhere."""
    real = os.path.realpath(folder)
    short = _relative_path(os.path.abspath(path), os.path.abspath(folder))
    if os.path.realpath(os.path.join(real, short)) == os.path.realpath(path):
        return short
    return _relative_path(os.path.realpath(path), real)


def _relative_path(path: str, folder: str) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive of Windows
        return path


def folder_reference(folder: Path, file: Path) -> dict[str, Any]:
    """Return what a file notes of the folder that it belongs to: the way to it, and which one it is."""
    about = os.stat(folder)
    way = _relative_path(os.path.realpath(folder), os.path.dirname(os.path.realpath(file)))
    return {"path": way, "inode": [about.st_dev, about.st_ino]}


def is_referenced_folder(noted: dict[str, Any], folder: Path, file: Path) -> bool:
    """Whether a folder is the one that a file noted.

    The way to it is the same where both were copied or moved together, its identity where it alone was moved; of a copy
    of the folder alone, neither is.
    """
    found = folder_reference(folder, file)
    return any(key in noted and noted[key] == found[key] for key in found)


# Identity: an open file that has lost its name takes what is written, and nobody finds it again


def identity(file: Path | int) -> tuple[int, int]:
    """Return what tells a file from every other: device and inode."""
    about = os.stat(file)
    return about.st_dev, about.st_ino


def what_became_of(path: Path, known: tuple[int, int]) -> str | None:
    """What became of the file of this name and identity: "deleted", "replaced by another file", or nothing."""
    try:
        return None if identity(path) == known else "replaced by another file"
    except (FileNotFoundError, NotADirectoryError):
        return "deleted"


# Replacing


def _open_regular_file(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a file as `os.open` does; a pipe, on which that would wait for ever, or a device is refused."""
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), mode)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file (a pipe, a folder or a device)", str(path))
    return file


def open_owner_only(path: str | Path, flags: int) -> int:
    """Open a file for `open`; a new one may be read by its owner only, because it holds what clients sent."""
    return _open_regular_file(path, flags, 0o600)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Hand out a temporary file that takes the place of `path` when all went well, whole even after a power cut.

    With `private`, only its owner may read it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with folder_errors(path.parent):
        try:
            temporary.unlink(missing_ok=True)
            if private:
                os.close(open_owner_only(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            yield temporary
            move(temporary, path)
        except BaseException:
            with suppress(OSError):  # on a full disk its space is wanted
                temporary.unlink(missing_ok=True)
            raise


def move(source: Path, target: Path) -> None:
    """Rename a file over another; its content is synced first, which a rename does not wait for."""
    sync(source)
    os.replace(source, target)
    if os.name == "posix":  # the rename itself is safe only when the folder is
        sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is safe from a power cut."""
    file = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# Locks: one writer; the system lets go when the process dies. So a run whose process was killed is told from one that
# is running: its lock is free.


class Lock:
    """A lock on a file of its own, held until `release` or the end of the process; `what` is what it stands for."""

    def __init__(self, path: Path, what: str) -> None:
        for _ in range(_TRIES):
            with folder_errors(path.parent), suppress(FileNotFoundError):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = _open_regular_file(path, os.O_RDWR | os.O_CREAT, 0o666)
                try:
                    acquire_lock(self._file, what, _LOCK_OWNER_AT)
                    # Who had it may have removed the folder: the lock would be on a file that nobody else finds.
                    if os.path.samestat(os.fstat(self._file), os.stat(path)):
                        break
                except BaseException:
                    os.close(self._file)
                    raise
                os.close(self._file)
        else:
            raise FileTrouble(f"lock {path} cannot be created: it keeps being deleted")
        write_lock_owner(self._file, _LOCK_OWNER_AT)

    def release(self) -> None:
        """Let the lock go."""
        # Closing is enough, and unlike unlocking it does nothing in a forked child.
        os.close(self._file)


def acquire_lock(file: int, what: str, note: int) -> None:
    """Lock an open file, or say who has it; the holder's `sign` is at `note`."""
    deadline = time.monotonic() + _PATIENCE
    while not _try_lock(file, shared=False):
        if time.monotonic() > deadline:
            owner = (
                os.pread(file, LOCK_OWNER_BYTES, note).decode(errors="replace").strip(" \0")
                if os.name == "posix"
                else ""
            )
            owner = "this process" if owner == _this_process() else owner
            raise FileInUse(f"{what} is already being written by {owner or 'another process'}")
        time.sleep(0.02)


def write_lock_owner(file: int, note: int) -> None:
    """Write into the `LOCK_OWNER_BYTES` bytes from `note` on who holds the lock of an open file."""
    if os.name == "posix":
        with suppress(OSError):  # only a help for the message: a full disk must not get in its way
            os.pwrite(file, _this_process().ljust(LOCK_OWNER_BYTES).encode(), note)


def _this_process() -> str:
    return f"process {os.getpid()}"


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock."""
    try:
        file = _open_regular_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _try_lock(file, shared=True)
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int, *, shared: bool) -> bool:
        os.lseek(file, 0, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBRLCK if shared else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
