"""One run: what its writer records and what its readers see."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import MOST_CLIENTS, Float, choose, fail, positive_int, unknown
from ..durable import Lock
from .blocks import (
    Ints,
    Series,
    SeriesKind,
    decode,
    encode,
    join,
    to_matrix,
    undo_differences,
    with_checksum,
    without_checksum,
    without_client,
)
from .errors import StoreError, damaged
from .info import CHECKSUM, COLUMNS, KINDS, RunInfo, read_info, run_folder
from .recorder import Number, Recorder, Row

if TYPE_CHECKING:
    from .store import Store

_INTERVAL = 1.0  # seconds between commits
_READ = 1 << 30  # bytes of numbers that are read at once
_WRITE = (
    "INSERT INTO block (run, kind, name, first, data) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run, kind, name, first) DO UPDATE SET data = excluded.data"
)
SEAL = f"UPDATE run SET checksum = {CHECKSUM} WHERE key = ?"  # noqa: S608


class Run:
    """A run of the store; made by `Store.start`, `Store.resume` (to write) or `Store.run` (to read).

    As a context it finishes by itself: "finished", or "interrupted" by Ctrl-C, or "failed" by an exception.
    """

    def __init__(self, store: Store, key: int, id: str, lock: Lock | None = None) -> None:
        self.id = id
        self.folder: Path = run_folder(store.folder, id)
        self._store, self._key, self._lock = store, key, lock
        self._status, self._message = "running", ""
        self._diverged_in: int | None = None
        self._recorder = Recorder(-1, {})
        self._tried = time.monotonic()
        if lock is not None:
            info = self.info()
            self._recorder = Recorder(info.rounds_done - 1, info.summary)

    @property
    def store(self) -> Path:
        """The folder of its store."""
        return self._store.folder

    @property
    def checkpoint(self) -> Path:
        """The folder for `State.save`; call `flush` before, so that the metrics are never behind it."""
        return self.folder / "checkpoint"

    def info(self) -> RunInfo:
        """The run as the store has it now."""
        rows = self._store.database.read(f"SELECT {COLUMNS} FROM run WHERE key = ?", KINDS, (self._key,))  # noqa: S608
        if not rows:
            raise StoreError(f"run {self.id} was deleted")
        return read_info(self._store.folder, rows[0])

    # Writing

    def record(
        self,
        round: int,
        metrics: Mapping[str, Number],
        *,
        participants: ArrayLike | None = None,
        clients: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Note the numbers of a round; they are committed about once a second.

        Parameters
        ----------
        round
            Its index; each call's must be larger than the last one's.
        metrics
            Numbers by name; infinities and NaN are kept as they are.
        participants
            Indices of the clients that took part.
        clients
            One number per client by name, shape (N,); N may grow from round to round.
        """
        self._must_write()
        with self._store.database.mutex:
            self._recorder.add(round, metrics, participants, clients)
            if time.monotonic() - self._tried >= _INTERVAL:
                self.flush()

    def flush(self) -> None:
        """Commit what was recorded, of every run that this store is writing, in one transaction."""
        self._must_write()
        self._store.flush()

    def truncate(self, after_round: int) -> None:
        """Forget every round after this one: on resume, `run.truncate(state.round - 1)`."""
        self._must_write()
        after_round = positive_int("after_round", after_round, -1)
        with self._store.database.mutex:
            self.flush()
            self._cut(after_round)

    def _cut(self, after_round: int) -> None:
        last, summary = -1, {}
        with self._store.database.write() as connection:
            connection.execute("DELETE FROM block WHERE run = ? AND first > ?", (self._key, after_round))
            query = "SELECT kind, name, max(first), data FROM block WHERE run = ? GROUP BY kind, name"
            for number, name, first, data in self._store.database.checked_rows(
                connection.execute(query, (self._key,)), "itib"
            ):
                kind, series = self._decode(number, name, first, data)
                if series.rounds[-1] > after_round:
                    series = series.until(after_round)
                    block_key = self._key, number, name, first
                    connection.execute(_WRITE, (*block_key, with_checksum(encode(kind, series), *block_key)))
                if kind is SeriesKind.METRIC:
                    summary[name] = float(series.values[-1])
                last = max(last, int(series.rounds[-1]))
            self._save(connection, last, summary)
        self._recorder = Recorder(last, summary)

    def forget_client(self, client: int) -> None:
        """Erase a client: it is nobody's participant any more, and its numbers are NaN; what it was is overwritten."""
        self._must_write()
        client = positive_int("client", client, 0)
        with self._store.database.mutex:
            self.flush()
            with self._store.database.write() as connection:
                connection.execute("PRAGMA secure_delete = ON")
                query = "SELECT kind, name, first, data FROM block WHERE run = ? AND kind IN (?, ?)"
                rows = connection.execute(
                    query, (self._key, int(SeriesKind.PARTICIPANTS), int(SeriesKind.CLIENTS))
                ).fetchall()
                for number, name, first, data in self._store.database.checked_rows(rows, "itib"):
                    kind, series = self._decode(number, name, first, data)
                    block_key = self._key, number, name, first
                    blob = encode(kind, without_client(kind, series, client))
                    connection.execute(_WRITE, (*block_key, with_checksum(blob, *block_key)))
            self._recorder = Recorder(self._recorder.last, self._recorder.summary)  # its open blocks know the client
        self._store.database.empty_journal()

    def finish(self, status: str = "finished", message: str = "", *, diverged_in: int | None = None) -> None:
        """Commit everything, set the status and let the lock go.

        Parameters
        ----------
        status
            "finished", "diverged", "failed" or "interrupted".
        message
            Why, where the status does not say it.
        diverged_in
            The round in which it diverged, counted from 1; with that status, and no other.
        """
        self._must_write()
        choose("status", status, dict.fromkeys(("finished", "diverged", "failed", "interrupted")))
        if (status == "diverged") != (diverged_in is not None):
            raise fail("diverged_in", diverged_in, 'must be given with status "diverged", and only then')
        if diverged_in is not None:
            diverged_in = positive_int("diverged_in", diverged_in)
        with self._store.database.mutex:
            self._status, self._message, self._diverged_in = status, message, diverged_in
            try:
                self._store.flush(self)
            except BaseException:
                self._status, self._message, self._diverged_in = "running", "", None
                raise
            self.release()

    def release(self) -> None:
        """Let the lock go without a word, as a killed process does."""
        if self._lock is not None:
            self._store.forget(self)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._lock is None:
            return
        if error is None:
            self.finish()
            return
        try:
            if isinstance(error, Exception):
                self.finish("failed", f"{type(error).__name__}: {error}")
            else:
                self.finish("interrupted")
        except StoreError:  # the first error is the one to tell; this one is most often the same full disk
            self.release()

    # The store's side of writing

    def unsaved(self) -> list[Row]:
        """What is to be committed."""
        self._tried = time.monotonic()  # a commit that fails is not tried again in every round
        return self._recorder.rows()

    def save(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        """Write rows of `unsaved` and how the run stands."""
        block_keys = [(self._key, kind, name, first) for kind, name, first, _ in rows]
        checksummed_rows = [
            (*block_key, with_checksum(row[-1], *block_key)) for block_key, row in zip(block_keys, rows, strict=True)
        ]
        connection.executemany(_WRITE, checksummed_rows)
        self._save(connection, self._recorder.last, self._recorder.summary)

    def saved(self) -> None:
        """Note that the transaction is through."""
        self._recorder.saved()

    def _save(self, connection: sqlite3.Connection, last: int, summary: dict[str, float]) -> None:
        # The clock may have gone backwards: a run is never older than it was.
        connection.execute(
            "UPDATE run SET status = ?, message = ?, diverged_in = ?, updated = max(updated, ?), rounds_done = ?, "
            "summary = ? WHERE key = ?",
            (self._status, self._message, self._diverged_in, time.time(), last + 1, json.dumps(summary), self._key),
        )
        connection.execute(SEAL, (self._key,))

    def _must_write(self) -> None:
        if self._lock is None:
            raise StoreError(f"run {self.id} is open for reading only: use Store.resume to write to it")

    # Reading

    def metrics(self, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return "round" and one column per metric, aligned; NaN where a metric has no value.

        Parameters
        ----------
        names
            Which metrics; all of them when None.
        """
        rounds, found = self.columns(names)
        self._bound(8 * len(rounds) * len(found))
        result: dict[str, NDArray[Any]] = {"round": rounds}
        for name, series in found.items():
            result[name] = np.full(len(rounds), np.nan)
            result[name][np.searchsorted(rounds, series.rounds)] = series.values
        return result

    def columns(self, names: Iterable[str] | None = None) -> tuple[Ints, dict[str, Series]]:
        """The recorded rounds, and each metric with the rounds that have it."""
        wanted = None if names is None else list(names)
        series = self._read((SeriesKind.ROUNDS, SeriesKind.METRIC), None if wanted is None else ["", *wanted])
        rounds = series.pop((SeriesKind.ROUNDS, ""), join(SeriesKind.ROUNDS, [])).rounds
        found = {name: values for (_, name), values in series.items()}
        if not all(np.isin(values.rounds, rounds, assume_unique=True).all() for values in found.values()):
            raise self._damaged("a metric has values for a round that was not recorded")
        for name in wanted or ():
            if name not in found:
                raise unknown("metric", name, self.metric_names())
        return rounds, {name: found[name] for name in (found if wanted is None else wanted)}

    def metric_names(self) -> list[str]:
        """The metrics that the run has."""
        return self._names(SeriesKind.METRIC)

    def participants(self) -> dict[int, Ints]:
        """Who took part, by round; only rounds whose participants were recorded."""
        gaps = self._series(SeriesKind.PARTICIPANTS, "")
        series = undo_differences(gaps)
        if (gaps.values < 0).any() or series.values.max(initial=0) >= MOST_CLIENTS:
            raise self._damaged("a participant is out of range")
        return dict(zip(series.rounds.tolist(), series.split(), strict=True))

    def client_metrics(self, name: str) -> tuple[Ints, Float]:
        """Rounds, shape (R,), and one row per round of one number per client, shape (R, N)."""
        series = self._series(SeriesKind.CLIENTS, name)
        if not len(series.rounds):
            raise unknown("client metric", name, self.client_metric_names())
        self._bound(8 * len(series.rounds) * int(series.counts.max(initial=0)))
        return series.rounds, to_matrix(series)

    def client_metric_names(self) -> list[str]:
        """The metrics per client that the run has."""
        return self._names(SeriesKind.CLIENTS)

    def _series(self, kind: SeriesKind, name: str) -> Series:
        return self._read((kind,), [name]).get((kind, name), join(kind, []))

    def _read(self, kinds: Iterable[SeriesKind], names: list[str] | None) -> dict[tuple[SeriesKind, str], Series]:
        # One query is one snapshot: a writer cannot make the columns of a run differ in length.
        kind_numbers = list(map(int, kinds))
        query = f"SELECT kind, name, first, data FROM block WHERE run = ? AND kind IN ({_marks(kind_numbers)})"  # noqa: S608
        if names is not None:
            query += f" AND name IN ({_marks(names)})"
        query += " UNION ALL SELECT -1, '', rounds_done, NULL FROM run WHERE key = ? ORDER BY kind, name, first"
        self._flush_own_writes()
        values = (self._key, *kind_numbers, *(names or ()), self._key)
        parts: dict[tuple[SeriesKind, str], list[Series]] = {}
        done = 0
        size = 0
        for number, name, first, data in self._store.database.read(query, "itiB", values):
            if data is None:
                done = first
                continue
            kind, series = self._decode(number, name, first, data)
            before = parts.setdefault((kind, name), [])
            if before and before[-1].rounds[-1] >= first:
                raise self._damaged("its rounds do not increase")
            before.append(series)
            size += series.values.nbytes
            self._bound(size)
        found = {key: join(key[0], blocks) for key, blocks in parts.items()}
        self._complete(found.get((SeriesKind.ROUNDS, "")), done, SeriesKind.ROUNDS in kind_numbers)
        return found

    def _complete(self, rounds: Series | None, done: int, asked: bool) -> None:
        last = -1 if rounds is None else int(rounds.rounds[-1])
        if asked and last != done - 1:
            what = f"the metrics of run {self.id} end in round {last}, but {done} rounds were recorded"
            raise damaged(self._store.database.file, what)

    def _names(self, kind: SeriesKind) -> list[str]:
        self._flush_own_writes()
        query = "SELECT DISTINCT name FROM block WHERE run = ? AND kind = ? ORDER BY name"
        return [name for (name,) in self._store.database.read(query, "t", (self._key, int(kind)))]

    def _flush_own_writes(self) -> None:
        if self._recorder.unsaved:
            self.flush()

    def _decode(self, number: int, name: str, first: int, data: bytes) -> tuple[SeriesKind, Series]:
        try:
            kind = SeriesKind(number)
            return kind, decode(kind, first, without_checksum(data, self._key, number, name, first))
        except ValueError as error:
            raise self._damaged(str(error)) from None

    def _bound(self, size: int) -> None:
        """Refuse to fill the memory: a small file may hold numbers that compress a thousandfold."""
        if size > _READ:
            what = f"the metrics of run {self.id} take more than {_READ >> 20} MB: request fewer of them"
            raise StoreError(f"store {self._store.database.file}: {what}")

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"store {self._store.database.file}: the metrics of run {self.id} are damaged: {what}")


def _marks(values: list[Any]) -> str:
    return ", ".join("?" * len(values))
