"""A mark beside a run's folder while the run is being made or deleted: who was killed then is cleaned up after.

Folders without a mark are never touched, whether the store knows their run or not: somebody may have restored an older
store beside them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..durable import FileTrouble, Lock
from .info import is_id, lock_file, run_folder

_SUFFIX = ".unfinished"


def marker_file(root: Path, id: str) -> Path:
    """The file that says so of a run."""
    folder = run_folder(root, id)
    return folder.with_name(folder.name + _SUFFIX)


def remove(folder: Path, lock: Lock) -> None:
    """Delete the folder of a run whose lock is held, and let go."""
    if os.name != "posix":  # elsewhere an open file cannot be deleted
        lock.release()
    try:
        with suppress(FileNotFoundError):  # another process may be cleaning up already
            shutil.rmtree(folder)
    finally:
        if os.name == "posix":
            lock.release()


def clean(root: Path, known: Callable[[str], bool]) -> None:
    """Finish what was begun by processes that are no more; `known` says whether the store has a run."""
    for file in (root / "runs").glob(f"*{_SUFFIX}"):
        id = file.name.removesuffix(_SUFFIX)
        if not is_id(id):
            continue
        folder = run_folder(root, id)
        try:
            lock = Lock(lock_file(folder), f"run {id}")
        except FileTrouble:  # a process that lives does it itself, and who may not write leaves it
            continue
        try:
            done = known(id)  # it was made, or it was not deleted
        except BaseException:
            lock.release()
            raise
        with suppress(OSError):
            if done:
                lock.release()
            else:
                remove(folder, lock)
            file.unlink(missing_ok=True)
