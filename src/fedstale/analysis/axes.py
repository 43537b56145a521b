"""What a curve is drawn against: rounds, bytes, seconds of computing, or the virtual time of a federation's clock."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, choose
from ..federation import Ints
from .curve import Curve, measured, over_seeds


@dataclass(frozen=True)
class _Axis:
    """One thing to draw curves against.

    Attributes
    ----------
    label
        On a button or in a sentence.
    title
        What stands at the axis.
    metrics
        What runs record of it; none for rounds.
    summed
        Whether a record is what one round used, to be summed; otherwise it is the reading of a clock at its end.
    """

    label: str
    title: str
    metrics: tuple[str, ...] = ()
    summed: bool = True

    def known(self, names: Container[str]) -> bool:
        """Whether a run with these metrics can be drawn against it."""
        return not self.metrics or any(name in names for name in self.metrics)

    def places(self, rounds: Ints, recorded: Sequence[tuple[ArrayLike, ArrayLike]]) -> Float | None:
        """Where the end of each round stands, shape (R,); None where nothing was recorded.

        Parameters
        ----------
        rounds
            Their indices, from 0, shape (R,).
        recorded
            Of each metric of the axis that the run has: the rounds and the values, NaN where not measured.
        """
        if not self.metrics:
            return rounds.astype(np.float64) + 1.0
        found = [(index, amount) for index, amount in (measured(*one) for one in recorded) if len(index)]
        if not found:
            return None
        total = np.zeros(len(rounds))
        for index, amount in found:
            # A recorded round stands for those before it that were not.
            reading = np.cumsum(amount * np.diff(index, prepend=-1)) if self.summed else amount
            before = np.searchsorted(index, rounds, side="right") - 1
            total += np.where(before >= 0, reading[np.maximum(before, 0)], 0.0)
        return total


ROUND, VIRTUAL = "round", "virtual_seconds"
AXES = {
    ROUND: _Axis("Rounds", "round"),
    "bytes": _Axis("Bytes", "bytes sent both ways", ("bytes_up", "bytes_down")),
    "seconds": _Axis("Seconds", "seconds of computing", ("seconds",)),
    VIRTUAL: _Axis("Virtual time", "virtual time", (VIRTUAL,), summed=False),
}
"""By the name in addresses and arguments."""


class _Reads(Protocol):
    def series(self, metric: str) -> tuple[ArrayLike, ArrayLike]:
        """Return the indices of rounds, from 0, and the metric in them; nothing where it was not recorded."""


def curve_over(runs: Iterable[_Reads], metric: str, x: str = ROUND, diverged: Iterable[int | None] = ()) -> Curve:
    """The mean of a metric over runs against an axis; of the runs that recorded what the axis needs."""
    axis, series, places = _axis_of(x), [], []
    for run in runs:
        at, values = run.series(metric)
        place = axis.places(np.asarray(at, dtype=np.int64), [run.series(name) for name in axis.metrics])
        if place is not None:
            series.append((at, values))
            places.append(place)
    return over_seeds(series, diverged, places)


_UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def _axis_of(name: str) -> _Axis:
    """The axis of a name, or an error that lists them."""
    return choose("x", name, AXES)


def unit(name: str, largest: float) -> tuple[float, str]:
    """What numbers on an axis are divided by, and the axis' title with that unit: virtual time may be days."""
    if name != VIRTUAL:
        return 1.0, AXES[name].title
    size, word = next((one for one in _UNITS if largest >= 3 * one[0]), _UNITS[-1])
    return size, f"{AXES[name].title} ({word})"
