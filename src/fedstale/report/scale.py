"""Axes: from numbers to places in a drawing, and where the ticks stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..checks import Float


@dataclass(frozen=True)
class Scale:
    """From [low, high] to [start, end], by value or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: Float | float) -> Float:
        """Where values stand; those outside stand on the edge."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        array = np.asarray(values, dtype=np.float64)
        if self.log:
            array = np.log10(np.maximum(array, self.low))
        share = np.clip((array - low) / (high - low), 0.0, 1.0)
        return np.asarray(self.start + share * (self.end - self.start))

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside, about so many."""
        if not self.log:
            return ticks(self.low, self.high, about)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last - first < 1:  # less than two powers of ten
            parts = [k * 10.0**e for e in range(first - 1, last + 1) for k in (1, 2, 5)]
            return [value for value in parts if self.low <= value <= self.high]
        step = math.ceil((last - first) / about) or 1
        return [10.0**e for e in range(first, last + 1, step)]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high]."""
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step + 0.0 for k in range(first, last + 1)]


def span(values: list[Float], *, log: bool = False, whole: bool = False, least: float = 0.0) -> tuple[float, float]:
    """The range of all finite values with a little room; never empty, and at least `least` wide.

    Parameters
    ----------
    values
        Arrays of numbers.
    log
        Whether the axis is logarithmic: only positive numbers count, and room is by a factor.
    whole
        Whether to leave no room: for rounds.
    least
        The smallest width.
    """
    every = np.concatenate([np.ravel(array) for array in values] or [np.empty(0)])
    every = every[np.isfinite(every) & ((every > 0) if log else True)]
    if not every.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(every.min()), float(every.max())
    if log:
        return (low / 1.3, high * 1.3)
    if high - low < max(least, 1e-12 * max(abs(high), 1.0)):
        middle, half = (low + high) / 2, max(least, 0.05 * abs(high), 1e-9) / 2
        return middle - half, middle + half
    room = 0.0 if whole else 0.04 * (high - low)
    return low - room, high + room


def labels(values: list[float], *, percent: bool = False) -> list[str]:
    """Texts of ticks: as many decimals as tell them apart."""
    factor, unit = (100.0, " %") if percent else (1.0, "")
    if any(value and not 1e-4 <= abs(value * factor) < 1e5 for value in values):
        return [f"{value * factor:.0e}".replace("e-0", "e-").replace("e+0", "e") + unit for value in values]
    for decimals in range(7):
        texts = [f"{value * factor:,.{decimals}f}" for value in values]
        if all(abs(float(t.replace(",", "")) - v * factor) < 1e-9 for t, v in zip(texts, values, strict=True)):
            break
    return [text + unit for text in texts]
