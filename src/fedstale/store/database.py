"""The SQLite file: its tables, its version, and every access to it.

WAL with synchronous=FULL: readers never wait for the writer, and what was committed outlives a killed process
and a power cut, so that the metrics are never behind a checkpoint that was written after them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from .._version import __version__
from ..durable import identity, what_became_of
from .errors import StoreError, damaged, database_errors, kind_of
from .info import checksum

T = TypeVar("T")
_logger = getLogger("fedstale")
_APPLICATION = 0x66737431  # marks the file as ours
_FORMAT = 4
PATIENCE = 600.0
"""Seconds to wait for another writer: losing a run is worse than waiting."""
READING = 30.0
"""Seconds that who only looks waits."""
_SLICE = 1.0  # seconds that SQLite waits by itself
_SILENT = 2.0  # seconds that are not worth a word: other runs write, too
_CHECKED_ON_OPENING = 1 << 27
"""Bytes up to which a file is looked through when it is opened: about seven seconds a gigabyte."""
_VALUE = 1 << 28
"""Bytes of the largest text or blob: the numbers of `MOST_CLIENTS` clients, whatever they compress to, are less."""

_TABLES = (
    "CREATE TABLE version (format INTEGER NOT NULL, written_by TEXT NOT NULL)",
    # SQLite has no checksums of its own: the last column is that of the line.
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
        summary TEXT NOT NULL,
        diverged_in INTEGER,
        checksum INTEGER
    )""",
    "CREATE INDEX run_name ON run (name)",
    "CREATE INDEX run_sweep ON run (sweep)",
    "CREATE INDEX run_status ON run (status)",
    "CREATE INDEX run_hash ON run (hash)",
    # All that tells whether a run changed: whoever watches a store reads a few kilobytes and no config.
    "CREATE INDEX run_state ON run (updated, status, rounds_done)",
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
)

_KINDS: dict[str, type | tuple[type, ...]] = {"i": int, "f": (int, float), "t": str, "b": bytes}
"""Letters for what a column of an answer holds; a capital one may be NULL, too."""


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
        self._immutable = False
        self._waited_long = False
        self._gone: StoreError | None = None
        self._connection: sqlite3.Connection | None = None
        if (read_only or not create) and not file.exists():
            raise StoreError(f"there is no store at {file.parent}: check the folder, or start a run first")
        if file.exists() and not file.is_file():  # SQLite would wait for ever for somebody to write into a pipe
            raise StoreError(f"store {file} is not a regular file: choose another folder")
        if not read_only and file.exists() and file.stat().st_nlink > 1:  # its journals would have one name each
            own_copy = f"cp {file} {file}.own && mv {file}.own {file}"
            raise StoreError(
                f"store {file} is a hard link, and writing would change the other file, too; make a copy: {own_copy}"
            )
        try:
            with database_errors(file):
                self._connection = self._connect("ro" if read_only else "rwc" if create else "rw")
                self._identity = identity(file)
                self._check_schema()
                if file.stat().st_size <= _CHECKED_ON_OPENING:
                    self.check_integrity()
        except BaseException:
            self.close()
            raise

    def read(self, query: str, kinds: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Parameters
        ----------
        query, values
            SQL, and what stands for its question marks.
        kinds
            A letter for each column: i, f, t and b are integer, number, text and bytes, capitals of them or NULL.
            SQLite keeps anything in any column, and a damaged or foreign file may hold it.
        """
        with self.mutex, database_errors(self.file):
            self._usable_connection()
            if self._immutable:  # it may have changed behind the back of a connection that takes it for constant
                self.close()
                self._connection = self._connect("ro")
            return self._waiting_for_lock(
                lambda: self.checked_rows(self._usable_connection().execute(query, values), kinds)
            )

    def checked_rows(self, rows: Iterable[tuple[Any, ...]], kinds: str) -> list[tuple[Any, ...]]:
        """Return the rows of an answer, or say that a value is not of its kind (see `read`)."""
        found = list(rows)
        allowed = [(_KINDS[letter.lower()], letter.isupper()) for letter in kinds]
        for row in found:
            for value, (kind, empty) in zip(row, allowed, strict=True):
                if not isinstance(value, kind) and not (empty and value is None):
                    raise damaged(self.file, "a value is not of the type of its column")
        return found

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Hold a transaction: all of what is done inside, or nothing."""
        if self.read_only:
            raise StoreError(f"store {self.file} was opened for reading only")
        with self.mutex, database_errors(self.file):
            connection = self._usable_connection()
            self._still_there()
            self._waiting_for_lock(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # on a full disk SQLite has rolled back by itself
                    connection.execute("ROLLBACK")
                raise
            self._still_there()

    def _waiting_for_lock(self, attempt: Callable[[], T]) -> T:
        """Do what another process may keep from being done by a lock: wait, say so, and give up in the end.

        Who has waited in vain does not wait again until something worked: a run that ends has several things to write.
        """
        began, warned = time.monotonic(), False
        while True:
            try:
                result = attempt()
                break
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - began
                if kind_of(error) != sqlite3.SQLITE_BUSY:
                    raise
                if waited >= self._patience or self._waited_long:
                    self._waited_long = True
                    raise
                if waited >= _SILENT and not warned:
                    text = "store %s is locked by another process; waiting up to %g s"
                    _logger.warning(text, self.file, self._patience)
                    warned = True
                time.sleep(0.01)  # changing the mode of a new file does not wait by itself
        self._waited_long = False
        if warned:
            _logger.warning("store %s is available again after %.0f s", self.file, time.monotonic() - began)
        return result

    def _still_there(self) -> None:
        """Refuse to write into a file that has lost its name, and save what it held."""
        what = None if self._gone else what_became_of(self.file, self._identity)
        if what is not None:
            copy = self.file.with_name(f"{self.file.name}.saved-{os.getpid()}")
            rescued = f"its contents are saved in {copy}: mv {copy} {self.file}, then resume"
            try:
                self._usable_connection().execute("VACUUM INTO ?", (str(copy),))
            except sqlite3.Error:
                rescued = "its contents could not be saved"
            self._gone = StoreError(f"store {self.file} was {what} while this process was writing to it; {rescued}")
        if self._gone:
            raise self._gone

    def check_integrity(self) -> None:
        """Compare every page and every index with the others: a run that a damaged page hides would not be missed."""
        with self.mutex, database_errors(self.file):
            (found,) = self._usable_connection().execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged(self.file, " ".join(str(found).split()))

    def shrink(self) -> None:
        """Give the space of deleted rows back to the disk."""
        with self.mutex, database_errors(self.file):
            # It frees a page per step, and only a script is stepped to its end.
            self._waiting_for_lock(lambda: self._usable_connection().executescript("PRAGMA incremental_vacuum"))

    def empty_journal(self) -> None:
        """Move what is in the write-ahead journal into the file, and leave nothing of it behind."""
        with self.mutex, database_errors(self.file):
            connection = self._usable_connection()
            self._waiting_for_lock(lambda: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _usable_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"store {self.file} is closed")
        if os.getpid() != self._process:
            raise StoreError(f"store {self.file} was opened by the parent process: open it again in this one")
        return self._connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = self._open_connection(f"mode={mode}")
        self._immutable = False
        try:
            self._waiting_for_lock(lambda: connection.execute("SELECT count(*) FROM sqlite_master").fetchone())
            if mode != "ro":
                self._set_pragmas(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            journal = self.file.with_name(self.file.name + "-wal")
            busy = kind_of(error) == sqlite3.SQLITE_BUSY  # somebody does write
            if mode != "ro" or busy or (journal.exists() and journal.stat().st_size):
                raise
            # SQLite wants to write beside a file in WAL mode even to read it, unless it is told that nobody writes.
            connection = self._open_connection("mode=ro&immutable=1")
            self._immutable = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_connection(self, options: str) -> sqlite3.Connection:
        uri = f"{self.file.absolute().as_uri()}?{options}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=min(self._patience, _SLICE), isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA trusted_schema = OFF")  # what a file brings along runs no function of ours
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE)
        connection.create_function("checksum_of", -1, checksum, deterministic=True)
        return connection

    def _set_pragmas(self, connection: sqlite3.Connection) -> None:
        for what in ("auto_vacuum = INCREMENTAL", "synchronous = FULL", "journal_mode = WAL"):
            # Each may meet the lock of a process that makes the same store at the same time.
            self._waiting_for_lock(lambda what=what: connection.execute(f"PRAGMA {what}").fetchall())  # type: ignore[misc]

    def _check_schema(self) -> None:
        """Make the tables of a new file; refuse a file whose tables are not exactly those."""
        connection = self._usable_connection()
        found = self._schema(connection)
        if not found and not self.read_only:
            with self.write() as connection:
                found = self._schema(connection)  # another process may have been quicker
                if not found:
                    _make_tables(connection)
                    connection.execute("INSERT INTO version VALUES (?, ?)", (_FORMAT, __version__))
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    return
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise StoreError(f"{self.file} is not a store of fedstale: choose another folder")
        plain = {name for kind, name, _, _ in found if kind == "table"}
        if "version" not in plain:  # a view of that name may be a query without an end
            raise damaged(self.file, "a table is missing")
        versions = self.checked_rows(connection.execute("SELECT format, written_by FROM version LIMIT 2"), "it")
        if len(versions) != 1:
            raise damaged(self.file, "its version is missing")
        ((version, written_by),) = versions
        if version != _FORMAT:
            todo = "upgrade fedstale" if version > _FORMAT else "choose another folder, or read it with that version"
            raise StoreError(
                f"store {self.file} has format {version}, written by fedstale {written_by}; "
                f"this is fedstale {__version__}, which reads format {_FORMAT}: {todo}"
            )
        if found != _expected():
            odd = ", ".join(sorted({str(name) for _, name, _, _ in found ^ _expected()})[:3])
            raise damaged(self.file, f"its tables are not those of a store ({odd})")

    def _schema(self, connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100")
        return frozenset(self.checked_rows(rows, "tttT"))


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


@cache
def _expected() -> frozenset[tuple[str, ...]]:
    """What SQLite notes of the tables and indexes of a new file: no view, no trigger, nothing that runs."""
    with closing(sqlite3.connect(":memory:")) as connection:
        _make_tables(connection)
        return frozenset(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall())
