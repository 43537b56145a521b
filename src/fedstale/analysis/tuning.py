"""Learning rates tuned as in the paper (Section 5.1): the best of the grid, per cell and method, by one criterion.

The criterion is the same for every method: test accuracy, averaged over the evaluations in the last tenth of the rounds
and over the seeds. A rate at which some seed diverged is out, unless that is so at every rate. A best rate at the edge
of its grid is no best rate: a method may do better beyond, and `widening` looks there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .estimate import Estimate

if TYPE_CHECKING:
    from ..simulation.settings import Settings

_Key = tuple[tuple[str, str], ...]
_Edge = Literal["low", "high", "both"]


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
    at_edge
        On which side no rate stands beyond the best one; "both" for a single rate, None where the best is interior. A
        rate at which a seed diverged closes its side: there is nothing to be had beyond it.
    """

    runs: tuple[Measured, ...]
    lr: float | None
    rates: dict[float | None, float]
    at_edge: _Edge | None = None

    @property
    def values(self) -> dict[int, float]:
        """Accuracy by seed."""
        return {run.settings.seed: run.accuracy for run in self.runs}

    def minus(self, other: Cell) -> dict[int, float]:
        """How much more accurate than another cell, by the seeds that both have."""
        mine, theirs = self.values, other.values
        return {seed: mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())}

    @property
    def estimate(self) -> Estimate:
        """Accuracy over the seeds; none, but the rounds, when a seed diverged at every rate."""
        return Estimate.of((run.accuracy for run in self.runs), [run.diverged_in for run in self.runs])

    @property
    def mean(self) -> float:
        """Of the estimate."""
        return self.estimate.mean

    @property
    def error(self) -> float:
        """Of the estimate."""
        return self.estimate.error


def _setting_key(run: Measured, *leave_out: str) -> _Key:
    """Everything that the settings say but for some names."""
    return tuple((name, repr(value)) for name, value in run.settings.record().items() if name not in leave_out)


def tuned(table: Iterable[Measured], tuned_on: Iterable[Cell] = ()) -> list[Cell]:
    """Group runs that differ only in rate and seed, and take the best rate of each group, in order of appearance.

    Parameters
    ----------
    table
        The finished runs.
    tuned_on
        Cells of other seeds, on which the rates of these runs were chosen: they say whether a rate is at an edge.
    """
    edges = {_setting_key(cell.runs[0], "lr", "seed"): cell.at_edge for cell in tuned_on}
    groups: dict[_Key, dict[float | None, list[Measured]]] = {}
    for run in table:
        rates = groups.setdefault(_setting_key(run, "lr", "seed"), {})
        rates.setdefault(run.settings.lr, []).append(run)
    cells = []
    for key, rates in groups.items():
        means = {rate: float(np.mean([run.accuracy for run in runs])) for rate, runs in rates.items()}
        # Rates for which fewer seeds are there yet are not compared with those that have all.
        most = max(map(len, rates.values()))
        full = {rate: mean for rate, mean in means.items() if len(rates[rate]) == most}
        best = max(full, key=lambda rate: (-np.inf, -(rate or 0.0)) if np.isnan(full[rate]) else (full[rate], 0.0))
        known = [*full, *(rate for rate, runs in rates.items() if any(run.diverged for run in runs))]
        edge = edges[key] if key in edges else _edge(best, known)
        cells.append(Cell(tuple(rates[best]), best, means, edge))
    return cells


def _edge(best: float | None, known: Iterable[float | None]) -> _Edge | None:
    others = [rate for rate in known if rate is not None and rate != best]
    low = best is None or not any(rate < best for rate in others)
    high = best is None or not any(rate > best for rate in others)
    return "both" if low and high else "low" if low else "high" if high else None
