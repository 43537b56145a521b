"""Where the board looks: one store, opened for reading only, and again when its file was replaced.

A file that is deleted while it is open can be read on, and would never change: so every look first asks whether the
file is still the one that was opened.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..checks import Float
from ..federation import Ints
from ..store import RunInfo, Store, StoreError, Watch
from ..store.blocks import Series

_PATIENCE = 2.0  # seconds for a locked file: a page must not hang
_PAUSE = 0.4  # seconds in which a second look sees what the first saw: several pages may be open
_KEPT = 4096  # series that stay in memory; a series of 500 rounds is 8 kB
_NOWHERE = (0, 0)
_HISTORY = 120.0  # seconds over which the speed of a run is taken


class Source:
    """The runs of a store and their numbers, as fresh as the last `look`.

    Parameters
    ----------
    folder
        The store's folder, or its store.sqlite; None: as `Store.open`.

    Attributes
    ----------
    runs
        By id, the newest first.
    version
        Grows whenever some run changed.
    trouble
        Why the store cannot be read at present, in one line; empty when it can.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        if folder is not None and Path(folder).name == "store.sqlite":
            folder = Path(folder).parent
        self._lock = threading.RLock()
        self._given = folder
        self._cache: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._looked = 0.0
        self._paces: dict[str, list[tuple[float, int]]] = {}
        self.runs: dict[str, RunInfo] = {}
        self.version = 0
        self.trouble = ""
        self._store = self._open()
        self.folder = self._store.folder
        self._refresh()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._store.close()

    def look(self) -> None:
        """See what changed; an unreadable store becomes `trouble`, and what was seen before stays."""
        with self._lock:
            if time.monotonic() - self._looked < _PAUSE:
                return
            try:
                if self._replaced():
                    self._store.close()
                    self._identity = _NOWHERE  # until it is open again
                    self._store = self._open()
                self._refresh()
                self.trouble = ""
            except StoreError as error:
                self.trouble = str(error)
            self._looked = time.monotonic()

    def pace(self, id: str) -> float | None:
        """Rounds per second of a running run, as far as the board has seen it run."""
        seen = self._paces.get(id, [])
        if len(seen) < 2 or seen[-1][1] <= seen[0][1]:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def series(self, info: RunInfo, names: Iterable[str]) -> dict[str, Series]:
        """The chosen metrics of a run, each with the rounds that have it; those it has not are left out."""
        stamp = (info.id, info.updated, info.rounds_done)
        with self._lock:
            wanted = [name for name in dict.fromkeys(names) if name in info.summary]
            missing = [name for name in wanted if (*stamp, name) not in self._cache]
            if missing:
                for name, series in self._store.run(info.id).columns(missing)[1].items():
                    self._cache[(*stamp, name)] = series
            found = {name: self._cache[(*stamp, name)] for name in wanted}
            while len(self._cache) > _KEPT:
                self._cache.popitem(last=False)
        return found

    def participants(self, info: RunInfo) -> dict[int, Ints]:
        """Who took part, by round; empty where that was not recorded."""
        with self._lock:
            return self._store.run(info.id).participants()

    def clients(self, info: RunInfo, name: str) -> tuple[Ints, Float] | None:
        """Rounds and one row per round of one number per client, or None where that was not recorded."""
        with self._lock:
            run = self._store.run(info.id)
            return run.client_metrics(name) if name in run.client_metric_names() else None

    @property
    def store(self) -> Store:
        """The open store, for functions that read results from one."""
        return self._store

    def _open(self) -> Store:
        store = Store.open(self._given, create=False, read_only=True, patience=_PATIENCE)
        # Twice locked: the file is opened with mode=ro, and this connection refuses to write even so.
        store.database.read("PRAGMA query_only = 1", "")
        self._identity = _identity(store.database.file)
        self._watch = Watch(store)
        return store

    def _replaced(self) -> bool:
        found = _identity(self._store.database.file)
        return found == _NOWHERE or found != self._identity

    def _refresh(self) -> None:
        changed = self._watch.refresh()
        now = time.monotonic()
        if changed:
            self.runs = {info.id: info for _, info in sorted(self._watch.runs.items(), reverse=True)}
            self.version += 1
        running = {info.id: info.rounds_done for info in self.runs.values() if info.status == "running"}
        self._paces = {id: [*self._recent(id, now), (now, done)] for id, done in running.items()}

    def _recent(self, id: str, now: float) -> list[tuple[float, int]]:
        return [(at, done) for at, done in self._paces.get(id, []) if now - at < _HISTORY]


def _identity(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return _NOWHERE
    return (found.st_dev, found.st_ino)
