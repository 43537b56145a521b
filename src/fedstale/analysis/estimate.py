"""A mean over seeds with its standard error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


def diverged_text(rounds: Sequence[int], seeds: int = 1) -> str:
    """Say which of so many seeds diverged, and when: "diverged in round 17 (1 of 3 seeds)"."""
    first, last = min(rounds), max(rounds)
    when = f"round {first:,}" if first == last else f"rounds {first:,} to {last:,}"
    return f"diverged in {when}" + (f" ({len(rounds)} of {seeds} seeds)" if seeds > 1 else "")


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error over seeds.

    NaN is never left out: where a seed has no number the mean is NaN, because the mean of the others would be one of
    chosen seeds. Where the reason is that runs diverged, `diverged` has their rounds, and the text says so in place of
    the number. A table ranks such a method last.

    Attributes
    ----------
    mean, error
        The mean and its standard error, which is NaN for a single seed.
    count
        How many seeds have a number.
    diverged
        The rounds, counted from 1, in which seeds diverged.
    """

    mean: float
    error: float
    count: int = 0
    diverged: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float], diverged: Iterable[int | None] = ()) -> Estimate:
        """Mean and standard error of one number per seed, and for each seed the round in which it diverged, or None."""
        array = np.array(list(values), dtype=np.float64)
        ended = list(diverged) or [None] * array.size
        rounds = tuple(round for round in ended if round is not None)
        count = sum(round is None and not np.isnan(value) for value, round in zip(array, ended, strict=True))
        if rounds or not array.size:
            return cls(float("nan"), float("nan"), count, rounds)
        with np.errstate(invalid="ignore"):  # the spread of infinite losses is not a number
            error = float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else float("nan")
        return cls(float(array.mean()), error, count)

    @property
    def decided(self) -> bool:
        """Whether it is away from 0 by more than two standard errors; a single seed decides nothing."""
        return bool(abs(self.mean) > 2 * self.error)

    def __format__(self, spec: str) -> str:
        """Mean ± error, each by the given format; or that seeds diverged; or a dash."""
        if np.isnan(self.mean):
            return self._instead()
        return f"{self.mean:{spec}}" + ("" if np.isnan(self.error) else f" ± {self.error:{spec}}")

    def points(self) -> str:
        """In percentage points, as the paper's tables have it."""
        if np.isnan(self.mean):
            return self._instead()
        return f"{100 * self.mean:+.2f}" + ("" if np.isnan(self.error) else f" ± {100 * self.error:.2f}")

    def short(self, *, sign: bool = False) -> str:
        """In points with one decimal and the error, for a square of a heat map; "diverged" or a dash without a mean."""
        if np.isnan(self.mean):
            return "diverged" if self.diverged else "–"
        error = "" if np.isnan(self.error) else f"±{100 * self.error:.1f}"
        return f"{round(100 * self.mean, 1) + 0.0:{'+' if sign else ''}.1f}{error}"  # no −0.0

    def _instead(self) -> str:
        return diverged_text(self.diverged, self.count + len(self.diverged)) if self.diverged else "–"
