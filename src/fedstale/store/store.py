"""The store: one folder with `store.sqlite` and a folder for each run's files."""

from __future__ import annotations

import difflib
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..checks import UnknownName, choose, fail, positive_int, unknown
from ..durable import Lock, folder_errors
from . import export, unfinished
from .config import Config, comparable, config_leaves, digest, to_json
from .database import PATIENCE, READING, Database
from .errors import StoreError
from .info import COLUMNS, KINDS, STATUSES, RunInfo, lock_file, read_info, run_folder
from .run import SEAL, Run

DEFAULT_FOLDER = "fedstale-runs"
"""Where runs go when nothing else is said."""

ENVIRONMENT = "FEDSTALE_STORE"
"""The variable that names another folder."""

_PATIENCE_ENVIRONMENT = "FEDSTALE_PATIENCE"
"""The variable that says how many seconds to wait for a store that another process has locked."""

_ALPHABET = "23456789bcdfghjkmnpqrstvwxyz"  # no look-alikes, no words
_SUFFIX = 4


class Store:
    """Runs, their configs and their metrics; `Store.open` makes one.

    As a context it closes by itself. Threads of one process may share it; each process opens its own.
    """

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        self._new_folder: bool | None = None  # whether the folder was made, too; None for a store that was there
        self._writing: dict[str, Run] = {}

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float | None = None,
    ) -> Store:
        """Open the store in a folder.

        Parameters
        ----------
        path
            The folder; without it the one that FEDSTALE_STORE names, or ./fedstale-runs.
        create
            Whether to make it when it is missing.
        read_only
            Whether to only look; needs no right to write.
        patience
            Seconds to wait for a process that has the file locked; without it what FEDSTALE_PATIENCE says, or ten
            minutes, half a minute with `read_only`.
        """
        folder = Path(path or os.environ.get(ENVIRONMENT) or DEFAULT_FOLDER).absolute()
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"store {folder} is a file: give the folder that holds store.sqlite")
        there, file_there = folder.exists(), (folder / "store.sqlite").exists()
        if create and not read_only:
            with folder_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        seconds = _patience(patience, READING if read_only else PATIENCE)
        store = cls(folder, Database(folder / "store.sqlite", create=create, read_only=read_only, patience=seconds))
        if create and not read_only and not file_there:
            store._new_folder = not there
        if not read_only:
            try:
                unfinished.clean(folder, store._knows)
            except BaseException:
                store.database.close()
                raise
        return store

    def close(self) -> None:
        """Commit what is recorded and let go of everything; a run that has not finished counts as interrupted."""
        try:
            self.flush()
        finally:
            for run in list(self._writing.values()):
                run.release()
            self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            useless = error is not None and self._new_folder is not None and not self.runs(limit=1)
            self.close()
            if useless:
                self._remove()
        except StoreError:
            if error is None:  # otherwise the first error is the one to tell
                raise

    # Writing

    def start(
        self, config: Config, *, name: str | None = None, sweep: str | None = None, rounds_total: int | None = None
    ) -> Run:
        """Begin a new run.

        Parameters
        ----------
        config
            Everything that determines the run, as JSON values; the same config is the same run.
        name, sweep
            What people call it, and the sweep that it is part of; neither needs to be unique.
        rounds_total
            How many rounds it will have, when known.
        """
        text = to_json(config)
        plain = json.loads(text)
        _label("name", name)
        _label("sweep", sweep)
        if rounds_total is not None:
            rounds_total = positive_int("rounds_total", rounds_total, 0)
        if self.database.read_only:
            raise StoreError(f"store {self.database.file} was opened for reading only")
        id, lock = self._claim()
        try:
            now = time.time()
            with self.database.write() as connection:
                key = connection.execute(
                    "INSERT INTO run (id, name, sweep, status, message, created, updated, rounds_done, rounds_total, "
                    "hash, config, summary) VALUES (?, ?, ?, 'running', '', ?, ?, 0, ?, ?, ?, '{}')",
                    (id, name, sweep, now, now, rounds_total, digest(plain), text),
                ).lastrowid
                leaves = {(leaf, value, key) for leaf, value in config_leaves(plain)}
                connection.executemany("INSERT INTO setting (key, value, run) VALUES (?, ?, ?)", leaves)
                connection.execute(SEAL, (key,))
        except BaseException:
            with suppress(OSError):
                unfinished.remove(run_folder(self.folder, id), lock)
                unfinished.marker_file(self.folder, id).unlink(missing_ok=True)
            raise
        with suppress(OSError):  # it is only looked at once more
            unfinished.marker_file(self.folder, id).unlink(missing_ok=True)
        return self._writer(key or 0, id, lock)

    def resume(self, which: str) -> Run:
        """Open a run for writing again; an error while another process writes it."""
        key, id = self._find(which)
        lock = Lock(lock_file(run_folder(self.folder, id)), f"run {id}")
        try:
            Run(self, key, id).info()  # a damaged line does not get a new checksum
            with self.database.write() as connection:
                change = "UPDATE run SET status = 'running', message = '', diverged_in = NULL, "
                change += "updated = max(updated, ?) WHERE key = ?"
                if not connection.execute(change, (time.time(), key)).rowcount:
                    raise StoreError(f"run {id} was deleted")
                connection.execute(SEAL, (key,))
            return self._writer(key, id, lock)
        except BaseException:
            lock.release()
            raise

    def flush(self, finishing: Run | None = None) -> None:
        """Commit what was recorded for every run that this store is writing, in one transaction."""
        with self.database.mutex:
            work = [(run, run.unsaved()) for run in self._writing.values()]
            work = [(run, rows) for run, rows in work if rows or run is finishing]
            if not work:
                return
            with self.database.write() as connection:
                for run, rows in work:
                    run.save(connection, rows)
            for run, _ in work:
                run.saved()

    def delete(self, which: str) -> None:
        """Delete a run and its files; an error while it is being written."""
        key, id = self._find(which)
        folder = run_folder(self.folder, id)
        lock, mark = Lock(lock_file(folder), f"run {id}"), unfinished.marker_file(self.folder, id)
        try:
            with suppress(OSError):  # on a full disk, deleting is what helps
                mark.touch()
            with self.database.write() as connection:
                for (config,) in connection.execute("SELECT config FROM run WHERE key = ?", (key,)).fetchall():
                    try:
                        leaves = [(leaf, value, key) for leaf, value in config_leaves(json.loads(config))]
                        connection.executemany("DELETE FROM setting WHERE key = ? AND value = ? AND run = ?", leaves)
                    except (
                        ValueError,
                        TypeError,
                        AttributeError,
                        RecursionError,
                    ):  # a damaged run must be deletable, too, if slowly
                        connection.execute("DELETE FROM setting WHERE run = ?", (key,))
                connection.execute("DELETE FROM block WHERE run = ?", (key,))
                connection.execute("DELETE FROM run WHERE key = ?", (key,))
            self.database.shrink()
        except BaseException:
            lock.release()
            raise
        with folder_errors(folder):
            unfinished.remove(folder, lock)
            mark.unlink(missing_ok=True)

    def forget(self, run: Run) -> None:
        """Note that a run is no longer written."""
        with self.database.mutex:
            self._writing.pop(run.id, None)

    # Looking

    def run(self, which: str) -> Run:
        """Look at a run, named by its id, the beginning or the last four characters of its id, or its name."""
        return Run(self, *self._find(which))

    def runs(
        self,
        *,
        status: str | None = None,
        sweep: str | None = None,
        name: str | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """List runs, the newest first.

        Parameters
        ----------
        status, sweep, name
            Only runs with these.
        where
            Only runs whose config has these values, by dotted key such as "participation.p_min"; the last part
            alone is enough when only one key ends with it.
        limit
            At most so many.
        """
        conditions: list[str] = []
        values: list[Any] = []
        for column, value in (("sweep", sweep), ("name", name)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        for key, value in (where or {}).items():
            conditions.append("key IN (SELECT run FROM setting WHERE key = ? AND value = ?)")
            values += [self._setting(key), comparable(value)]
        return self._list(conditions, values, status, limit)

    def find(self, config: Config, *, status: str | None = "finished") -> Run | None:
        """The newest run with exactly this config and status (any status when None), or None."""
        found = self._list(["hash = ?"], [digest(config)], status, 1)
        return self.run(found[0].id) if found else None

    def export_csv(self, target: str | Path | IO[str], runs: Iterable[str | RunInfo] | None = None) -> None:
        """Write one line per run and round: see `fedstale.store.export`."""
        export.write_csv(self, target, runs)

    def export_parquet(self, target: str | Path, runs: Iterable[str | RunInfo] | None = None) -> None:
        """Write the table of `export_csv` as a Parquet file; needs pyarrow."""
        export.write_parquet(self, target, runs)

    # Inside

    def _list(self, conditions: list[str], values: list[Any], status: str | None, limit: int | None) -> list[RunInfo]:
        query = f"SELECT {COLUMNS} FROM run"  # noqa: S608
        if status is not None:
            choose("status", status, dict.fromkeys(STATUSES))
            # A run whose process died still says "running" in the table.
            conditions = [*conditions, "status IN (?, 'running')" if status == "interrupted" else "status = ?"]
            values = [*values, status]
        if conditions:
            query += " WHERE " + " AND ".join(conditions)
        query += " ORDER BY run.key DESC"
        if limit is not None:
            positive_int("limit", limit, 0)
            if status not in ("running", "interrupted"):
                query, values = query + " LIMIT ?", [*values, limit]
        infos = (read_info(self.folder, row) for row in self.database.read(query, KINDS, values))
        return [info for info in infos if status in (None, info.status)][:limit]

    def _find(self, which: str) -> tuple[int, str]:
        if not isinstance(which, str) or not which or not which.isprintable():
            raise fail("run", which, "must be an id, the beginning of one, or a name")
        for condition, values in (
            ("id = ?", (which,)),
            ("name = ?", (which,)),
            ("id >= ? AND id < ? || char(1114111)", (which, which)),
            (f"substr(id, -{_SUFFIX}) = ?", (which,)),
        ):
            rows = self.database.read(f"SELECT key, id FROM run WHERE {condition} ORDER BY key DESC", "it", values)  # noqa: S608
            if len(rows) == 1:
                key, id = rows[0]
                return key, id
            if rows:
                few = ", ".join(id for _, id in rows[:5]) + (", …" if len(rows) > 5 else "")
                raise StoreError(f"run {which!r} matches {len(rows)} runs: {few}")
        rows = self.database.read("SELECT id, name FROM run ORDER BY key DESC", "tT")
        ids = {id: f"{id} ({name})" if name else id for id, name in rows}
        words = {text: ids[row[0]] for row in rows for text in row if text}
        near = difflib.get_close_matches(which, list(words), n=3, cutoff=0.5)
        newest = ", ".join(list(ids.values())[:5])
        hint = "the store is empty"
        if rows:
            hint = f"did you mean {' or '.join(words[word] for word in near)}?" if near else f"the newest are {newest}"
        raise UnknownName(f"unknown run {which!r} in {self.folder}: {hint}")

    def _remove(self) -> None:
        """Take back an empty store that was made for a run which was refused, as far as nobody else uses the folder."""
        with suppress(OSError):
            for file in ("store.sqlite-wal", "store.sqlite-shm", "store.sqlite"):
                (self.folder / file).unlink(missing_ok=True)
            (self.folder / "runs").rmdir()
            if self._new_folder:
                self.folder.rmdir()

    def _setting(self, key: str) -> str:
        if self.database.read("SELECT 1 FROM setting WHERE key = ? LIMIT 1", "i", (key,)):
            return key
        known = [name for (name,) in self.database.read("SELECT DISTINCT key FROM setting", "t")]
        ends = [name for name in known if name.endswith(f".{key}")]
        if known and len(ends) != 1:
            raise unknown("config key", key, ends or known)
        return ends[0] if ends else key

    def _claim(self) -> tuple[str, Lock]:
        """Make the folder of a new run, whose name nobody else can have then, and lock it."""
        with folder_errors(self.folder):
            while True:
                stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
                id = f"{stamp}-{''.join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX))}"
                try:
                    unfinished.marker_file(self.folder, id).parent.mkdir(parents=True, exist_ok=True)
                    unfinished.marker_file(self.folder, id).touch()
                    run_folder(self.folder, id).mkdir()
                except FileExistsError:
                    continue
                return id, Lock(lock_file(run_folder(self.folder, id)), f"run {id}")

    def _knows(self, id: str) -> bool:
        return bool(self.database.read("SELECT 1 FROM run WHERE id = ?", "i", (id,)))

    def _writer(self, key: int, id: str, lock: Lock) -> Run:
        run = Run(self, key, id, lock)
        with self.database.mutex:
            self._writing[id] = run
        return run


def _label(argument: str, value: str | None) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip() or not value.isprintable()):
        raise fail(argument, value, "must be a line of printable text")


def _patience(given: float | None, default: float) -> float:
    name, value = ("patience", given) if given is not None else (_PATIENCE_ENVIRONMENT, None)
    if value is None and (text := os.environ.get(_PATIENCE_ENVIRONMENT)):
        try:
            value = float(text)
        except ValueError:
            raise fail(name, text, "must be a number of seconds") from None
    if value is not None and not value >= 0:
        raise fail(name, value, "must be a number of seconds")
    return default if value is None else value
