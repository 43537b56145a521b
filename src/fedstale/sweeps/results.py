"""The results of a sweep, read from the store: one line per run, in the order of the grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis import tail
from ..durable import replacing
from ..simulation.settings import Settings
from ..spreadsheet import CsvWriter
from ..store import RunInfo, Store
from .identity import finished, identity


@dataclass(frozen=True)
class Measured:
    """One run that came to its end.

    Attributes
    ----------
    settings
        Of the run.
    accuracy
        Mean test accuracy over the evaluations in the last tenth of the rounds: the criterion for every method. NaN
        for a run that diverged.
    metrics
        The last value of every metric.
    diverged_in
        The round in which it diverged, counted from 1; None for a run that did not.
    """

    settings: Settings
    accuracy: float
    metrics: dict[str, float]
    diverged_in: int | None = None

    @property
    def diverged(self) -> bool:
        """Whether an update was not finite."""
        return self.diverged_in is not None


def results(store: Store, runs: Iterable[Settings]) -> list[Measured]:
    """Return the runs that came to their end, in the given order; those that are missing are left out."""
    found = finished(store)
    table = []
    for one in runs:
        info = found.get(identity(one.record()))
        if info is not None:
            table.append(_measured(store, one, info))
    return table


def _measured(store: Store, one: Settings, info: RunInfo) -> Measured:
    summary = {name: value for name, value in info.summary.items() if name != "accuracy_tail"}
    return Measured(one, tail_of(store, one, info, "accuracy"), summary, info.diverged_in)


def tail_of(store: Store, one: Settings, info: RunInfo, metric: str) -> float:
    """Mean of a metric over the evaluations in the last tenth of the rounds; NaN for a run that diverged or has none.

    A sweep keeps the accuracy and the excess loss with the run; other metrics, and runs that `fedstale run` made, are
    read round by round.
    """
    if info.diverged_in is not None or metric not in info.summary:
        return math.nan
    kept = info.summary.get(f"{metric}_tail", math.nan)
    if not math.isnan(kept):
        return kept
    columns = store.run(info.id).metrics([metric])
    return tail(columns["round"], columns[metric], planned=one.total_rounds, done=info.rounds_done)


def write_csv(path: Path, table: Sequence[Measured]) -> None:
    """Write one line per run: the settings in which the runs differ, the accuracy, the last value of every metric.

    A run that diverged has no accuracy, but the round in which it did; its last values are those before.
    """
    records = [row.settings.record() for row in table]
    varied = [name for name in (records[0] if records else {}) if len({repr(record[name]) for record in records}) > 1]
    names = list(dict.fromkeys(name for row in table for name in row.metrics))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as whole, open(whole, "w", newline="", encoding="utf-8") as file:
        writer = CsvWriter(file)
        # A setting and a metric may have one name: β as it was set, and as it was in the last round.
        writer.writerow([*varied, "accuracy_tail", *(f"last_{name}" for name in names), "diverged_in"])
        for row, record in zip(table, records, strict=True):
            numbers = [_text(row.metrics.get(name)) for name in names]
            writer.writerow([*(record[name] for name in varied), _text(row.accuracy), *numbers, row.diverged_in])


def _text(value: Any) -> str:
    return "" if value is None or math.isnan(value) else repr(float(value))
