"""How much of the gap that participation leaves a method closes.

Between U-FedAvg, which corrects for absence and remembers nothing, and everybody in every round, which no method can
have, lies what is to be gained. By the objective F = Σ α_i F_i over the clients' training data, each method at its own
best rate, gap closed = (F_U-FedAvg − F)/(F_U-FedAvg − F_everybody): 0 is U-FedAvg, 1 is full participation, and below 0
a method loses. Where the gap is not larger than its own error nothing can be closed, and the ratio says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..checks import Float
from .estimate import Estimate


@dataclass(frozen=True)
class Gap:
    """Objectives by seed in one setting: of U-FedAvg and of everybody in every round.

    Attributes
    ----------
    plain, everybody
        Shape (seeds,); both with the same seeds in the same order.
    """

    plain: Float
    everybody: Float

    @property
    def size(self) -> Estimate:
        """What is to be gained, over the seeds."""
        return Estimate.of(np.asarray(self.plain) - np.asarray(self.everybody))

    @property
    def there(self) -> bool:
        """Whether the gap is more than twice its standard error."""
        return self.size.mean > 0 and self.size.decided

    def closed(self, objective: Sequence[float] | Float) -> Estimate:
        """Share that a method with these objectives closes: the ratio of means, its error by leaving out seeds."""
        gained = np.asarray(self.plain) - np.asarray(objective, dtype=np.float64)
        return ratio_of_means(gained, np.asarray(self.plain) - np.asarray(self.everybody))


@dataclass(frozen=True)
class ClosedOverCells:
    """What a method closes over several settings that have a gap.

    Attributes
    ----------
    mean
        Of the shares of the settings, with the error over settings.
    median, least
        Of the shares.
    pooled
        The sum of what it gains over the sum of the gaps, with the error over seeds.
    """

    mean: Estimate
    median: float
    least: float
    pooled: Estimate


def closed_over_cells(gaps: Sequence[Gap], objectives: Sequence[Float]) -> ClosedOverCells:
    """Return what a method closes over settings.

    Parameters
    ----------
    gaps
        Of the settings, at least one.
    objectives
        The method's own, one array over the seeds for each setting.
    """
    shares = [gap.closed(own).mean for gap, own in zip(gaps, objectives, strict=True)]
    gained: dict[int, list[Float]] = {}  # by the number of seeds: one that several settings share is one draw
    sizes: dict[int, list[Float]] = {}
    for gap, own in zip(gaps, objectives, strict=True):
        gained.setdefault(gap.plain.size, []).append(gap.plain - np.asarray(own, dtype=np.float64))
        sizes.setdefault(gap.plain.size, []).append(gap.plain - gap.everybody)
    parts, wholes = ([np.sum(arrays, axis=0) for arrays in found.values()] for found in (gained, sizes))
    pooled = _ratio_of_sums(parts, wholes)
    return ClosedOverCells(Estimate.of(shares), float(np.median(shares)), float(np.min(shares)), pooled)


def ratio_of_means(part: Float, whole: Float) -> Estimate:
    """mean(part)/mean(whole) over seeds with the standard error of the jackknife."""
    return _ratio_of_sums([np.asarray(part, dtype=np.float64)], [np.asarray(whole, dtype=np.float64)])


def _ratio_of_sums(parts: Sequence[Float], wholes: Sequence[Float]) -> Estimate:
    """Σ mean(part)/Σ mean(whole) over arrays with seeds of their own; the jackknife leaves out a seed of one array."""
    above, below = sum(float(part.mean()) for part in parts), sum(float(whole.mean()) for whole in wholes)
    mean, counts = above / below, [part.size for part in parts]
    if min(counts) < 2 or not np.isfinite(mean):
        return Estimate(mean, float("nan"), max(counts))
    variance = 0.0
    for part, whole, count in zip(parts, wholes, counts, strict=True):
        without = (above + (part.mean() - part) / (count - 1)) / (below + (whole.mean() - whole) / (count - 1))
        variance += (count - 1) / count * float(np.sum((without - without.mean()) ** 2))
    return Estimate(mean, float(np.sqrt(variance)), max(counts))
