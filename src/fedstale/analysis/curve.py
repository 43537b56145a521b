"""A metric over the rounds, mean over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float
from .estimate import diverged_text


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean and standard error over seeds at every evaluated round.

    Attributes
    ----------
    rounds
        Counted from 1, shape (R,).
    mean, error
        Shape (R,); the error is NaN where one seed is all there is.
    seeds
        How many there are.
    diverged
        The rounds, counted from 1, in which seeds diverged. The curve ends before the first of them: from there on its
        mean would be one of the seeds that happened to survive.
    x
        Where the rounds stand on the axis, shape (R,), mean over seeds; by default their numbers.
    """

    rounds: Float
    mean: Float
    error: Float
    seeds: int
    diverged: tuple[int, ...] = ()
    x: Float = field(kw_only=True, default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if not self.x.size:
            object.__setattr__(self, "x", self.rounds)

    @property
    def ending(self) -> str:
        """How it ends if seeds diverged: "diverged in round 17 (1 of 3 seeds)"; otherwise nothing."""
        return diverged_text(self.diverged, self.seeds) if self.diverged else ""


def over_seeds(
    series: Sequence[tuple[ArrayLike, ArrayLike]],
    diverged: Iterable[int | None] = (),
    places: Sequence[ArrayLike] | None = None,
) -> Curve:
    """Put the seeds of a method together.

    Parameters
    ----------
    series
        For each seed the indices of rounds, from 0, and the metric in them, NaN where it was not measured. At every
        round the mean is over the seeds that were evaluated there: one that is still going has no say beyond its end.
    diverged
        For each seed the round, counted from 1, in which it diverged, or None.
    places
        For each seed where its rounds stand on the axis; default: their numbers.
    """
    ended = tuple(round for round in diverged if round is not None)
    found = [measured(at, values) for at, values in series]
    rounds = np.unique(np.concatenate([at for at, _ in found] or [np.empty(0, dtype=np.int64)]))
    rounds = rounds[rounds + 1 < min(ended)] if ended else rounds
    table = np.full((len(found), len(rounds)), np.nan)
    for k, (at, values) in enumerate(found):
        kept = np.isin(at, rounds)
        table[k, np.searchsorted(rounds, at[kept])] = values[kept]
    count = (~np.isnan(table)).sum(axis=0)
    mean = np.nansum(table, axis=0) / np.maximum(count, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.sqrt(np.nansum((table - mean) ** 2, axis=0) / np.maximum(count - 1, 1) / np.maximum(count, 1))
    placed: list[tuple[ArrayLike, ArrayLike]] = []
    for (each, measurements), where in zip(series, places or (), strict=False):
        placed.append((each, _like(where, measurements)))
    x = over_seeds(placed, ended).mean if placed else np.empty(0)
    return Curve(rounds + 1.0, mean, np.where(count > 1, spread, np.nan), len(series), ended, x=x)


def _like(places: ArrayLike, values: ArrayLike) -> Float:
    """Places, where there is a value."""
    return np.where(np.isnan(np.asarray(values, dtype=np.float64)), np.nan, np.asarray(places, dtype=np.float64))


def measured(at: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.int64], Float]:
    """The rounds in which a metric was measured, and its values there."""
    rounds, metric = np.asarray(at, dtype=np.int64), np.asarray(values, dtype=np.float64)
    good = ~np.isnan(metric)
    return rounds[good], metric[good]


def late_range(lines: Iterable[tuple[Float, Float, Float]]) -> tuple[float, float] | None:
    """Return the range of y after the first tenth of the axis, where a steep beginning would flatten the rest.

    Parameters
    ----------
    lines
        x, mean and error of each; an error may be NaN.

    Returns
    -------
    The range with a margin, or None where the beginning does not stand in the way.
    """
    drawn = [line for line in lines if len(line[0])]
    end = max((float(x[-1]) for x, _, _ in drawn), default=0.0)
    low, high, start = np.inf, -np.inf, np.inf
    for x, mean, error in drawn:
        band = np.nan_to_num(error)
        after = x > 0.1 * end
        start = min(start, float(mean[0]))
        if after.any():
            low = min(low, float(np.nanmin((mean - band)[after])))
            high = max(high, float(np.nanmax((mean + band)[after])))
    if not np.isfinite(low) or low - start < high - low:
        return None
    return low - 0.06 * (high - low) - 0.005, high + 0.06 * (high - low) + 0.005
