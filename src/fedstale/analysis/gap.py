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
