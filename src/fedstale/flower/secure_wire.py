"""How an answer travels through Flower's SecAgg+: as masked vectors of whole numbers, of which only sums come out.

SecAgg+ clips every number to [−C, C], rounds it at random to a multiple of 2C/T (C and T: clipping and quantization
range) and weighs it by the number of examples over `max_weight`; what comes out is the mean. We let every client have
the largest weight and send x_i and y_i in units of that weight. y_i and the statistics are multiples of the step
already, so that they come out exactly; x_i comes out with the quantisation's error, which has no bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import Float, fail

_DIGITS, _BITS, _LOWEST = 5, 16, -40
"""A statistic is sent as so many digits of so many bits, the lowest of which counts 2^−40."""


@dataclass(frozen=True)
class SecureScale:
    """What the two sides agree on.

    Attributes
    ----------
    clipping_range, quantization_range
        C and T of the workflow.
    weight
        Its `max_weight`: the number of examples that counts as one.
    unit
        What x_i and y_i are divided by: the weight, or 1 where every client weighs the same.
    """

    clipping_range: float
    quantization_range: int
    weight: float
    unit: float

    @classmethod
    def of(cls, workflow: Any, *, by_sample: bool) -> SecureScale:
        """Read them off a `SecAggPlusWorkflow`."""
        weight = float(workflow.max_weight)
        if workflow.quantization_range < 2 ** (_BITS + 2):
            raise fail("quantization_range", workflow.quantization_range, f"must be at least 2**{_BITS + 2} here")
        return cls(float(workflow.clipping_range), workflow.quantization_range, weight, weight if by_sample else 1.0)

    @property
    def step(self) -> float:
        """The step of the quantisation."""
        return 2.0 * self.clipping_range / self.quantization_range

    @property
    def grid(self) -> tuple[float, float]:
        """Step and largest number of y_i that comes out exactly."""
        return self.unit * self.step, self.unit * self.clipping_range

    def digits(self, statistics: Float) -> Float:
        """Write statistics of any size as small multiples of the step, shape (2 · digits,)."""
        found = []
        most = 2.0 ** (_BITS * _DIGITS + _LOWEST) - 1.0
        for value in np.clip(np.nan_to_num(statistics / self.unit**2), -most, most):
            whole = int(abs(value) * 2.0**-_LOWEST)
            sign = -1.0 if value < 0 else 1.0
            found += [sign * ((whole >> (_BITS * k)) & (2**_BITS - 1)) * self.step for k in range(_DIGITS)]
        return np.array(found)

    def statistics(self, digits: Float) -> Float:
        """Read sums of `digits` back."""
        whole = np.rint(digits / self.step).reshape(-1, _DIGITS)
        return np.asarray(whole @ 2.0 ** (_LOWEST + _BITS * np.arange(_DIGITS)) * self.unit**2)
