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
    """Return what a method closes over settings; where their numbers of seeds differ, nothing is pooled.

    Parameters
    ----------
    gaps
        Of the settings, at least one.
    objectives
        The method's own, one array over the seeds for each setting.
    """
    shares = [gap.closed(own).mean for gap, own in zip(gaps, objectives, strict=True)]
    if len({gap.plain.size for gap in gaps}) > 1:
        pooled = Estimate(float("nan"), float("nan"))
        return ClosedOverCells(Estimate.of(shares), float(np.median(shares)), float(np.min(shares)), pooled)
    plain, full = (np.sum([getattr(gap, name) for gap in gaps], axis=0) for name in ("plain", "everybody"))
    pooled = ratio_of_means(plain - np.sum(objectives, axis=0), plain - full)
    return ClosedOverCells(Estimate.of(shares), float(np.median(shares)), float(np.min(shares)), pooled)


def ratio_of_means(part: Float, whole: Float) -> Estimate:
    """mean(part)/mean(whole) over seeds with the standard error of the jackknife."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    count = part.size
    mean = float(part.mean() / whole.mean())
    if count < 2 or not np.isfinite(mean):
        return Estimate(mean, float("nan"), count)
    without = (part.sum() - part) / (whole.sum() - whole)
    error = float(np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))
    return Estimate(mean, error, count)
