"""The heat map of β_opt over the store's runs: the numbers of Figure 2, by `analysis.HeatMap`.

Runs that differ in anything but p_min, swap, β, learning rate and seed belong to different maps. A map takes the
finished runs of one sweep or, as `fedstale reproduce` does, of all of them together.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from .. import configs
from ..analysis import HeatMap, MeasuredRun
from ..analysis.heatmap import Point
from ..simulation.identity import identity
from ..simulation.settings import Settings, make_settings
from ..store import RunInfo
from ..sweeps import measure, settings_of
from .source import Source

_AXES = ("p_min", "swap", "beta", "lr", "seed")
_DEFAULTS = make_settings().record()


@dataclass(frozen=True)
class _FinishedRun:
    """A finished run of the simulator."""

    info: RunInfo
    measured: MeasuredRun
    map: str
    label: str
    identity: str


@dataclass(frozen=True)
class _AvailableMap:
    """A map that can be drawn: its key, what its runs have in common, and how many there are."""

    key: str
    label: str
    runs: int


class HeatMaps:
    """The maps of a source; a run is looked at once, when it has finished.

    Parameters
    ----------
    source
        Where the runs are.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._known: dict[str, _FinishedRun | None] = {}
        self._version = -1
        self._tables: dict[tuple[str, str], HeatMap] = {}

    def sweeps(self) -> list[str]:
        """The names of the sweeps, in the order of their newest runs."""
        return list(dict.fromkeys(info.sweep for info in self._source.runs.values() if info.sweep))

    def maps(self, sweep: str = "") -> list[_AvailableMap]:
        """The maps of a sweep (empty: of all runs), the largest first."""
        counts: dict[str, int] = {}
        labels: dict[str, str] = {}
        points: dict[str, set[Point]] = {}
        for run in self._runs(sweep):
            settings = run.measured.settings
            if isinstance(settings.beta, (int, float, str)) and run.measured.accuracy == run.measured.accuracy:
                counts[run.map] = counts.get(run.map, 0) + 1
                labels[run.map] = run.label
                points.setdefault(run.map, set()).add((settings.p_min, settings.swap))
        found = [_AvailableMap(key, labels[key], count) for key, count in counts.items() if len(points[key]) > 1]
        return sorted(found, key=lambda one: (-one.runs, one.label))

    def table(self, key: str, sweep: str = "") -> HeatMap:
        """The numbers of a map."""
        runs = self._runs(sweep)
        with self._lock:
            if (key, sweep) not in self._tables:
                self._tables[key, sweep] = HeatMap.of(run.measured for run in runs if run.map == key)
            return self._tables[key, sweep]

    def runs_behind(self, key: str, point: Point, sweep: str = "") -> list[str]:
        """The ids of the runs behind a cell: every β at its best rate, all seeds."""
        cells = self.table(key, sweep).cells.get(point, {})
        return [run.id for cell in cells.values() for run in cell.runs]

    def _runs(self, sweep: str) -> list[_FinishedRun]:
        """Finished runs, the newest of equals, in the order in which they were made."""
        with self._lock:
            runs, version = self._source.runs, self._source.version
            if version != self._version:
                old, self._version = self._known, version
                done = [info for info in reversed(runs.values()) if info.ended]
                if [info.id for info in done] != list(old):  # a run that is under way changes no map
                    self._known = {info.id: old[info.id] if info.id in old else self._read(info) for info in done}
                    self._tables.clear()
            known = [run for run in self._known.values() if run is not None]
        return _newest(run for run in known if sweep in ("", run.info.sweep))

    def _read(self, info: RunInfo) -> _FinishedRun | None:
        settings = settings_of(info)
        if settings is None:  # a run of something else
            return None
        record = settings.record()
        common = {name: value for name, value in record.items() if name not in _AXES}
        key = hashlib.sha256(repr(sorted(common.items())).encode()).hexdigest()[:16]
        measured = measure(self._source.store, settings, info)
        return _FinishedRun(info, measured, key, _label(settings), identity(record))


def _newest(runs: Iterable[_FinishedRun]) -> list[_FinishedRun]:
    found: dict[str, _FinishedRun] = {}
    for run in runs:
        found.pop(run.identity, None)
        found[run.identity] = run
    return list(found.values())


def _label(settings: Settings) -> str:
    """The task, and the settings that are not at their defaults."""
    other = {
        name: value
        for name, value in settings.record().items()
        if name not in (*_AXES, "task") and value != _DEFAULTS.get(name)
    }
    return ", ".join([settings.task_name, *(f"{name} {configs.text(value)}" for name, value in other.items())])
