"""The results of a sweep, read from the store: one line per run, in the order of the grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..analysis import MeasuredRun, tail
from ..checks import Float, InvalidInput
from ..federation import Ints
from ..simulation.identity import finished, identity
from ..simulation.settings import Settings, make_settings
from ..spreadsheet import number_cell, write_table
from ..store import RunInfo, Store


@dataclass(frozen=True)
class _StoredMetrics:
    """The metrics of a run in a store: a sweep keeps the tails with the run, other numbers are read round by round.

    Attributes
    ----------
    store, info
        Where it is, and which run.
    planned
        How many rounds it was to have.
    """

    store: Store
    info: RunInfo
    planned: int

    def final(self, metric: str) -> float:
        """Return the last value of a metric; NaN where there is none."""
        return self.info.summary.get(metric, math.nan)

    def tail(self, metric: str) -> float:
        """Return the mean over the evaluations in the last tenth; NaN for a run that diverged or has none."""
        if self.info.diverged_in is not None or metric not in self.info.summary:
            return math.nan
        kept = self.final(f"{metric}_tail")
        if not math.isnan(kept):
            return kept
        return tail(*self.series(metric), planned=self.planned, done=self.info.rounds_done)

    def series(self, metric: str) -> tuple[Ints, Float]:
        """Return the rounds and the metric in them."""
        if metric not in self.info.summary:
            return np.empty(0, dtype=np.int64), np.empty(0)
        columns = self.store.run(self.info.id).metrics([metric])
        return columns["round"], columns[metric]


def results(store: Store, runs: Iterable[Settings], metric: str = "accuracy") -> list[MeasuredRun]:
    """Return the runs that came to their end, in the given order; those that are missing are left out.

    They are judged by their accuracy, or by minus another metric.
    """
    found = finished(store)
    infos = ((settings, found.get(identity(settings.record()))) for settings in runs)
    return [measure(store, settings, info, metric) for settings, info in infos if info is not None]


def measure(store: Store, settings: Settings, info: RunInfo, metric: str = "accuracy") -> MeasuredRun:
    """Read what a run is judged by: its accuracy, or minus another metric, so that the largest is the best."""
    summary = {name: value for name, value in info.summary.items() if name != "accuracy_tail"}
    run = _StoredMetrics(store, info, settings.total_rounds)
    score = run.tail(metric) if metric == "accuracy" else -run.tail(metric)
    return MeasuredRun(settings, score, summary, info.diverged_in, info.id, run)


def settings_of(info: RunInfo) -> Settings | None:
    """Return the settings of a run; None for a run of something else than the simulator."""
    if not {"task", "rule"} <= info.config.keys():
        return None
    try:
        return make_settings(**info.config)
    except InvalidInput:
        return None


def write_csv(path: Path, table: Sequence[MeasuredRun]) -> None:
    """Write one line per run: the settings in which the runs differ, the accuracy, the last value of every metric.

    A run that diverged has no accuracy, but the round in which it did; its last values are those before.
    """
    records = [row.settings.record() for row in table]
    varied = [name for name in (records[0] if records else {}) if len({repr(record[name]) for record in records}) > 1]
    names = list(dict.fromkeys(name for row in table for name in row.metrics))
    lines = (
        [
            *(record[name] for name in varied),
            number_cell(row.accuracy),
            *(number_cell(row.metrics.get(name)) for name in names),
            row.diverged_in,
        ]
        for row, record in zip(table, records, strict=True)
    )
    # A setting and a metric may have one name: β as it was set, and as it was in the last round.
    write_table(path, [*varied, "accuracy_tail", *(f"last_{name}" for name in names), "diverged_in"], lines)
