"""The table of measured runs: the seeds of a method are one cell, and cells are methods under conditions.

Everything that compares methods is a view of these cells: `simulation.Comparison` has one condition, `report.Study`
those of one task, `HeatMap` those of p_min and swap with β across; `tuned` makes them of the runs of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from .. import configs
from .axes import ROUND, curve_over
from .curve import Curve
from .estimate import Estimate
from .methods import METHOD_SETTINGS, method_order

if TYPE_CHECKING:
    from ..simulation.settings import Settings

Edge = Literal["low", "high", "both"]
_Condition = tuple[tuple[str, Any], ...]
"""The settings that make it, by name."""
_NOT_CONDITIONS = ("task", "seed", "lr", *METHOD_SETTINGS)


class _RunMetrics(Protocol):
    """Reads the metrics of a run: `simulation.Result`, or `sweeps.measure` for a run in a store."""

    def final(self, metric: str) -> float:
        """Return the last value; NaN where there is none."""

    def tail(self, metric: str) -> float:
        """Return the mean over the evaluations in the last tenth of the rounds; NaN for a run that diverged."""

    def series(self, metric: str) -> tuple[ArrayLike, ArrayLike]:
        """Return the indices of rounds, from 0, and the metric in them."""


@dataclass(frozen=True)
class MeasuredRun:
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
    id
        Of the run in its store.
    run
        Where its other metrics are read.
    """

    settings: Settings
    accuracy: float
    metrics: dict[str, float]
    diverged_in: int | None = None
    id: str = field(default="", compare=False)
    run: _RunMetrics | None = field(default=None, compare=False, repr=False)

    @property
    def diverged(self) -> bool:
        """Whether an update was not finite."""
        return self.diverged_in is not None


@dataclass(frozen=True)
class Cell:
    """One method under one condition, at its best learning rate.

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

    runs: tuple[MeasuredRun, ...]
    lr: float | None = None
    rates: dict[float | None, float] = field(default_factory=dict)
    at_edge: Edge | None = None

    @property
    def settings(self) -> Settings:
        """Of the first seed."""
        return self.runs[0].settings

    @property
    def method(self) -> str:
        """What the method is called."""
        return self.settings.label

    @property
    def values(self) -> dict[int, float]:
        """Accuracy by seed."""
        return {run.settings.seed: run.accuracy for run in self.runs}

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

    def minus(self, other: Cell) -> dict[int, float]:
        """How much more accurate than another cell, by the seeds that both have."""
        mine, theirs = self.values, other.values
        return {seed: mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())}

    def gain(self, other: Cell) -> Estimate:
        """How much more accurate than another cell, seed by seed; one that diverged in either has no difference."""
        gains = self.minus(other)
        ended: dict[int, list[int]] = {seed: [] for seed in gains}
        for run in (*self.runs, *other.runs):
            if run.diverged_in is not None and run.settings.seed in ended:
                ended[run.settings.seed].append(run.diverged_in)
        return Estimate.of(gains.values(), [min(rounds, default=None) for rounds in ended.values()])

    def has(self, metric: str) -> bool:
        """Whether a seed has a metric."""
        return any(metric in run.metrics for run in self.runs)

    def over_seeds(self, metric: str, how: Literal["tail", "final", "sum"] = "tail") -> Estimate:
        """A metric over the seeds: its tail (mean of the last tenth), its final value or the sum over the rounds."""
        read: dict[str, Callable[[_RunMetrics], float]] = {
            "tail": lambda run: run.tail(metric),
            "final": lambda run: run.final(metric),
            "sum": lambda run: float(np.nansum(run.series(metric)[1])),
        }
        values = [np.nan if run.run is None else read[how](run.run) for run in self.runs]
        return Estimate.of(values, [run.diverged_in for run in self.runs])

    def curve(self, metric: str, x: str = ROUND) -> Curve:
        """A metric over the seeds, at the rounds in which any seed has it; empty where none has the axis `x`."""
        runs = [run.run for run in self.runs if run.run is not None]
        return curve_over(runs, metric, x, [run.diverged_in for run in self.runs])


@dataclass(eq=False)
class Table:
    """Cells of one task: every method under every condition.

    Parameters
    ----------
    cells
        In any order.
    """

    cells: list[Cell]

    @cached_property
    def keys(self) -> list[str]:
        """The settings that make conditions: those that vary, but for the method's own, rate and seed."""
        records = [cell.settings.record() for cell in self.cells]
        varied = [name for name in (records[0] if records else {}) if name not in _NOT_CONDITIONS]
        return [name for name in varied if len({repr(record[name]) for record in records}) > 1]

    @cached_property
    def methods(self) -> list[str]:
        """The methods in order."""
        return sorted({cell.method for cell in self.cells}, key=method_order)

    def condition(self, cell: Cell, *leave_out: str) -> _Condition:
        """The condition of a cell, but for some settings; p_min is None where it does not say who comes."""
        meant = {"p_min": None} if not cell.settings.takes_p_min else {}
        return tuple(
            (name, meant.get(name, getattr(cell.settings, name))) for name in self.keys if name not in leave_out
        )

    def by_condition(self, *leave_out: str) -> dict[str, list[Cell]]:
        """The cells by condition in words, both in order; a method of which a seed diverged has no rank and is last."""
        order = {name: k for k, name in enumerate(self.methods)}
        found: dict[str, list[Cell]] = {}
        for cell in sorted(
            self.cells,
            key=lambda cell: (
                [_order(value) for _, value in self.condition(cell, *leave_out)],
                bool(cell.estimate.diverged),
                order[cell.method],
            ),
        ):
            found.setdefault(_condition_text(self.condition(cell, *leave_out)), []).append(cell)
        return found


def _condition_text(condition: Iterable[tuple[str, Any]]) -> str:
    """A condition in words."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in condition)


def value_text(value: Any) -> str:
    """A setting's value as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return configs.text(value)


def _order(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, float(value), "") if number else (1, 0.0, repr(value))
