"""The SQLite file: its tables, its version, and every access to it.

WAL with synchronous=FULL: readers never wait for the writer, and what was committed outlives a killed process
and a power cut, so that the metrics are never behind a checkpoint that was written after them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .._version import __version__
from .errors import StoreError, damaged, database_errors
from .info import CHECKSUM, checksum

_APPLICATION = 0x66737431  # marks the file as ours
PATIENCE = 30.0
"""Seconds to wait for another writer."""
_LOOKED_THROUGH = 1 << 27
"""Bytes up to which a file is looked through when it is opened: about seven seconds a gigabyte."""

# Step k brings a file of format k to format k + 1; a new file goes through all of them.
_STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE version (format INTEGER NOT NULL, written_by TEXT NOT NULL)",
        "INSERT INTO version VALUES (0, '')",
        """CREATE TABLE run (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            name TEXT,
            sweep TEXT,
            status TEXT NOT NULL,
            message TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            rounds_done INTEGER NOT NULL,
            rounds_total INTEGER,
            hash TEXT NOT NULL,
            config TEXT NOT NULL,
            summary TEXT NOT NULL
        )""",
        "CREATE INDEX run_name ON run (name)",
        "CREATE INDEX run_sweep ON run (sweep)",
        "CREATE INDEX run_status ON run (status)",
        "CREATE INDEX run_hash ON run (hash)",
        # The leaves of the configs, so that any of them filters by index.
        "CREATE TABLE setting (key TEXT, value, run INTEGER, PRIMARY KEY (key, value, run)) WITHOUT ROWID",
        """CREATE TABLE block (
            run INTEGER NOT NULL,
            kind INTEGER NOT NULL,
            name TEXT NOT NULL,
            first INTEGER NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (run, kind, name, first)
        )""",
    ),
    # SQLite has no checksums of its own.
    ("ALTER TABLE run ADD COLUMN checksum INTEGER",),
    # A run that diverged was a finished one with a message that counted its rounds from 0.
    (
        "ALTER TABLE run ADD COLUMN diverged_in INTEGER",
        "UPDATE run SET status = 'diverged', diverged_in = CAST(substr(message, 19) AS INTEGER) + 1, message = '' "
        "WHERE status = 'finished' AND message LIKE 'diverged in round %'",
        # One that an older version may still be writing is left without a checksum.
        f"UPDATE run SET checksum = CASE status WHEN 'running' THEN NULL ELSE {CHECKSUM} END",  # noqa: S608
    ),
)

# What only makes reading quicker is no matter of the format: a file without it is made quick when it is next written.
_INDEXES = {
    # All that tells whether a run changed: whoever watches a store reads a few kilobytes and no config.
    "run_state": "CREATE INDEX IF NOT EXISTS run_state ON run (updated, status, rounds_done)",
}


class Database:
    """A connection that any thread of this process may use, one at a time.

    Parameters
    ----------
    file
        The SQLite file.
    create
        Whether to make it when it is missing.
    read_only
        Whether to refuse every change.
    patience
        Seconds to wait for another process that has it locked.
    """

    def __init__(self, file: Path, *, create: bool, read_only: bool, patience: float = PATIENCE) -> None:
        self.file = file
        self.read_only = read_only
        self._patience = patience
        self.mutex = threading.RLock()
        self._process = os.getpid()
        self._frozen = False
        self._connection: sqlite3.Connection | None = None
        if (read_only or not create) and not file.exists():
            raise StoreError(f"there is no store at {file.parent}: give another folder, or run something first")
        try:
            with database_errors(file):
                self._connection = self._connect("ro" if read_only else "rwc" if create else "rw")
                if file.stat().st_size <= _LOOKED_THROUGH:
                    self.look_through()
                self._check_version()
        except BaseException:
            self.close()
            raise

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self.mutex, database_errors(self.file):
            self._live()
            if self._frozen:  # it may have changed behind the back of a connection that takes it for constant
                self.close()
                self._connection = self._connect("ro")
            return self._live().execute(query, values).fetchall()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Hold a transaction: all of what is done inside, or nothing."""
        if self.read_only:
            raise StoreError(f"store {self.file} was opened for reading only")
        with self.mutex, database_errors(self.file):
            connection = self._live()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # on a full disk SQLite has rolled back by itself
                    connection.execute("ROLLBACK")
                raise

    def look_through(self) -> None:
        """Compare every page and every index with the others: a run that a damaged page hides would not be missed."""
        with self.mutex, database_errors(self.file):
            (found,) = self._live().execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged(self.file, " ".join(str(found).split()))

    def shrink(self) -> None:
        """Give the space of deleted rows back to the disk."""
        with self.mutex, database_errors(self.file):
            # It frees a page per step, and only a script is stepped to its end.
            self._live().executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _live(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"store {self.file} is closed")
        if os.getpid() != self._process:
            raise StoreError(f"store {self.file} was opened by the parent process: open it again in this one")
        return self._connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = self._link(f"mode={mode}")
        self._frozen = False
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if mode != "ro":
                self._settle(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            journal = self.file.with_name(self.file.name + "-wal")
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # somebody does write
            if mode != "ro" or busy or (journal.exists() and journal.stat().st_size):
                raise
            # SQLite wants to write beside a file in WAL mode even to read it, unless it is told that nobody writes.
            connection = self._link("mode=ro&immutable=1")
            self._frozen = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _link(self, options: str) -> sqlite3.Connection:
        uri = f"{self.file.absolute().as_uri()}?{options}"
        link = sqlite3.connect(uri, uri=True, timeout=self._patience, isolation_level=None, check_same_thread=False)
        link.create_function("checksum_of", -1, checksum, deterministic=True)
        return link

    def _settle(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self._patience
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA synchronous = FULL")
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
                return
            except sqlite3.OperationalError as error:
                # Changing the mode of a new file does not wait for another process that is doing the same.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check_version(self) -> None:
        found, written_by = self._version(self._live())
        newest = len(_STEPS)
        if found > newest:
            raise StoreError(
                f"store {self.file} has format {found}, written by fedstale {written_by}; "
                f"this is fedstale {__version__}, which reads formats up to {newest}: upgrade fedstale"
            )
        if found < newest and self.read_only:
            raise StoreError(f"store {self.file} has the old format {found}: open it once for writing")
        if found < newest and not self.read_only:
            self._upgrade()
        if not self.read_only:
            self._index()

    def _index(self) -> None:
        there = {name for (name,) in self.read("SELECT name FROM sqlite_master WHERE type = 'index'")}
        if not there.issuperset(_INDEXES):
            with suppress(StoreError), self.write() as connection:  # a full disk must not keep anyone from opening
                for statement in _INDEXES.values():
                    connection.execute(statement)

    def _upgrade(self) -> None:
        with self.write() as connection:
            found, _ = self._version(connection)  # another process may have been quicker
            for step in _STEPS[found:]:
                for statement in step:
                    connection.execute(statement)
            connection.execute("UPDATE version SET format = ?, written_by = ?", (len(_STEPS), __version__))
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")

    def _version(self, connection: sqlite3.Connection) -> tuple[int, str]:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not self.read_only:
            return 0, ""
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise StoreError(f"{self.file} is not a store of fedstale: choose another folder")
        found, written_by = connection.execute("SELECT format, written_by FROM version").fetchone()
        return int(found), str(written_by)
