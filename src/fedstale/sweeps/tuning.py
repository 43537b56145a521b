"""Learning rates tuned as in the paper (Section 5.1): the best of the grid, per cell and method, by one criterion.

The criterion is the same for every method: test accuracy, averaged over the evaluations in the last tenth of the rounds
and over the seeds. A rate at which some seed diverged is out, unless that is so at every rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .results import Measured

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """One method in one setting at its best rate.

    Attributes
    ----------
    runs
        One per seed.
    lr
        The rate that was best (None: the task's default).
    rates
        Mean accuracy at every rate that was tried.
    """

    runs: tuple[Measured, ...]
    lr: float | None
    rates: dict[float | None, float]

    @property
    def values(self) -> dict[int, float]:
        """Accuracy by seed."""
        return {run.settings.seed: run.accuracy for run in self.runs}

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds; NaN when a seed diverged at every rate."""
        return float(np.mean(list(self.values.values())))

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single seed."""
        values = list(self.values.values())
        return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def setting_key(run: Measured, *leave_out: str) -> Key:
    """Everything that the settings say but for some names."""
    return tuple((name, repr(value)) for name, value in run.settings.record().items() if name not in leave_out)


def tuned(table: Iterable[Measured]) -> list[Cell]:
    """Group runs that differ only in rate and seed, and take the best rate of each group, in order of appearance."""
    groups: dict[Key, dict[float | None, list[Measured]]] = {}
    for run in table:
        rates = groups.setdefault(setting_key(run, "lr", "seed"), {})
        rates.setdefault(run.settings.lr, []).append(run)
    cells = []
    for rates in groups.values():
        means = {rate: float(np.mean([run.accuracy for run in runs])) for rate, runs in rates.items()}
        # Rates for which fewer seeds are there yet are not compared with those that have all.
        most = max(map(len, rates.values()))
        full = {rate: mean for rate, mean in means.items() if len(rates[rate]) == most}
        best = max(full, key=lambda rate: -np.inf if np.isnan(full[rate]) else full[rate])
        cells.append(Cell(tuple(rates[best]), best, means))
    return cells
