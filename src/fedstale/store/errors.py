"""What can go wrong with a store, each said in one line: what happened, to which file, and what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..durable import FileTrouble


class StoreError(FileTrouble):
    """The store could not do what was asked; its contents are intact unless the message says otherwise."""


_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space and resume; everything written before is safe",
    sqlite3.SQLITE_READONLY: "it is read-only: choose a folder that can be written",
    sqlite3.SQLITE_PERM: "access was denied: check the permissions of the folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that the folder exists and can be read and written",
    sqlite3.SQLITE_BUSY: "another process kept it locked too long: allow more time (--patience, FEDSTALE_PATIENCE)",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a copy of it (the checkpoints beside it are not affected)",
    sqlite3.SQLITE_NOTADB: "the file is damaged or no store: restore a copy of it, or choose another folder",
    sqlite3.SQLITE_IOERR: "reading or writing failed: check free space and the health of the disk",
}


def damaged(file: Path, what: str) -> StoreError:
    """Build the error for a file whose contents contradict each other (raise what it returns)."""
    return StoreError(
        f"store {file}: the file is damaged: {what}; restore a copy of it (the checkpoints beside it are not affected)"
    )


def kind_of(error: sqlite3.Error) -> int:
    """The kind of an error, SQLITE_BUSY and the like; 0 for one of Python's own, such as invalid text."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF  # the rest is its finer cause


@contextmanager
def database_errors(file: Path) -> Iterator[None]:
    """Turn the errors of SQLite into ours."""
    try:
        yield
    except sqlite3.Error as error:
        reason = _REASONS.get(kind_of(error), "SQLite reported an error")
        raise StoreError(f"store {file}: {reason} ({' '.join(str(error).split())})") from error
    except UnicodeDecodeError as error:  # SQLite's own message quotes the damaged text
        raise damaged(file, "it contains invalid text") from error
