"""What a page that stays open asks again and again: which runs changed since it last looked.

One small index tells (`run_state` of `database.py`); only the rows of runs that did change are read and parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .info import COLUMNS, KINDS, RunInfo, read_info

if TYPE_CHECKING:
    from .store import Store

_STATES = "SELECT key, updated, status, rounds_done FROM run"
"""What is asked every time."""

_AT_ONCE = 500  # values of one query: below every limit that SQLite is built with


class Watch:
    """The runs of a store as they were at the last `refresh`.

    Attributes
    ----------
    runs
        By key, which grows with every new run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: dict[int, tuple[float, str, int]] = {}
        self.runs: dict[int, RunInfo] = {}

    def refresh(self) -> set[int]:
        """Look again; return the keys of runs that are new, changed or gone."""
        found = {
            key: (updated, status, done) for key, updated, status, done in self._store.database.read(_STATES, "ifti")
        }
        gone = self._states.keys() - found.keys()
        # The process of a run that says "running" may have died without a word to the store.
        suspect = {key for key, state in found.items() if state[1] == "running" or self._states.get(key) != state}
        fresh = dict(self._read(sorted(suspect)))
        changed = {key for key, info in fresh.items() if self.runs.get(key) != info}
        if changed or gone:  # a new dict: whoever reads the old one is not disturbed
            kept = {key: info for key, info in self.runs.items() if key in found}
            self.runs = {**kept, **{key: fresh[key] for key in sorted(changed)}}
        self._states = found
        return changed | gone

    def _read(self, keys: list[int]) -> Iterable[tuple[int, RunInfo]]:
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            for key, *row in self._store.database.read(_rows_query(len(some)), f"i{KINDS}", some):
                yield key, read_info(self._store.folder, tuple(row))


def _rows_query(count: int) -> str:
    """The query for so many runs by key."""
    return f"SELECT key, {COLUMNS} FROM run WHERE key IN ({', '.join('?' * count)})"  # noqa: S608
