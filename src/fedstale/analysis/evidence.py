"""How sure a finding is: sign flips of whole seeds, and Holm's correction for the number of findings.

What is independent in a sweep are its seeds. For one seed all β, swaps and p_min share the data's partition, the first
model and the draws of participants and batches, so that cells are no replicates of each other, and neighbouring β are
more alike than distant ones. The test therefore never takes a seed apart. If a claim is about nothing (no β is better
than another, no slope), the names of the methods could be exchanged within a seed, in all its cells together, and its
differences are as likely as their negatives. Flipping the signs of whole seeds gives every data set that would have
been as likely as the one at hand, with the dependence among cells and among β as it is, and the p-value is the share of
them that speak for the claim at least as much. It needs no normal distribution and is exact for few seeds; S of them
give no p-value below 2/2^S (two-sided).

Permuting the labels of the β within a seed instead would assume that all pairs of β are equally alike: it says that
three of five β win 60 % of the cells by chance, whatever the data, while random slopes in β alone make the ends win
most. Signs keep that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..checks import Float

_EXACT = 13
"""Up to so many seeds all 2^S signs are listed; beyond it, as many are drawn."""
LEVEL = 0.05
_NEAR = 1e-12
"""Statistics that differ by less than this are equal: they differ in the order of additions."""

BySeed = dict[int, float]
"""A quantity by seed."""


def stacked(parts: Iterable[BySeed]) -> Float:
    """Lay quantities side by side, shape (S, K), for the seeds that all of them have."""
    columns = list(parts)
    seeds = sorted(set.intersection(*map(set, columns))) if columns else []
    return np.array([[column[seed] for column in columns] for seed in seeds], dtype=np.float64)


def averaged(parts: Iterable[BySeed]) -> BySeed:
    """Mean of several quantities by seed; nothing where one of them has no runs."""
    columns = list(parts)
    seeds = sorted(set.intersection(*map(set, columns))) if columns else []
    return {seed: float(np.mean([column[seed] for column in columns])) for seed in seeds}


@dataclass(frozen=True)
class Evidence:
    """What speaks for and against a claim.

    Attributes
    ----------
    in_favour, against
        One-sided p-values; NaN where nothing can be said.
    """

    in_favour: float
    against: float

    @property
    def p(self) -> float:
        """Two-sided p-value."""
        return min(1.0, 2.0 * min(self.in_favour, self.against)) if self else float("nan")

    def __bool__(self) -> bool:
        """Whether anything can be said."""
        return bool(np.isfinite([self.in_favour, self.against]).all())


NONE = Evidence(float("nan"), float("nan"))


def signs(seeds: int) -> Float:
    """Return the signs to flip S seeds by, shape (M, S); the first row is all ones: the data as they are."""
    if seeds <= _EXACT:
        flipped = np.arange(2**seeds)[:, None] >> np.arange(seeds) & 1
    else:
        flipped = np.random.default_rng(0).integers(0, 2, (2**_EXACT, seeds))
        flipped[0] = 0
    return np.where(flipped, -1.0, 1.0).astype(np.float64)


def by_flips(seeds: int, statistic: Callable[[Float], Float]) -> tuple[Evidence, float]:
    """Compare a statistic with what it is after flips.

    Parameters
    ----------
    seeds
        S; with fewer than two, nothing can be said.
    statistic
        Given signs of shape (M, S), the statistic of each flipped data set, shape (M,); large ones speak for the claim.

    Returns
    -------
    The evidence, and the mean over all flips: what chance gives.
    """
    if seeds < 2:
        return NONE, float("nan")
    values = statistic(signs(seeds))
    return _tails(values), float(values.mean())


def _tails(values: Float) -> Evidence:
    """Compare the first of the values, that of the data, with all of them."""
    if not np.isfinite(values).all():
        return NONE
    return Evidence(float(np.mean(values >= values[0] - _NEAR)), float(np.mean(values <= values[0] + _NEAR)))


def all_positive(values: Float) -> Evidence:
    """Judge the claim that several quantities are positive, all of them.

    For the claim, each must be positive by itself (the largest p-value counts); against it, the lowest of all, in units
    of its own size, is compared with the lowest after flips, so that looking at many costs what it must.

    Parameters
    ----------
    values
        Shape (S, K): K quantities by seed.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or len(table) < 2 or not np.isfinite(table).all():
        return NONE
    size = np.sqrt(np.mean(table**2, axis=0))  # which flips do not change
    sums = signs(len(table)) @ np.divide(table, size, out=np.zeros_like(table), where=size > 0)
    return Evidence(max(_tails(column).in_favour for column in sums.T), _tails(sums.min(axis=1)).against)


def any_of(claims: Iterable[Evidence]) -> Evidence:
    """Judge the claim that at least one of several holds: the choice of the best is paid for (Bonferroni)."""
    several = list(claims)
    if not several or not all(several):
        return NONE
    best = min(found.in_favour for found in several)
    return Evidence(min(1.0, len(several) * best), max(found.against for found in several))


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm 1979): an error among all is then as rare as in one test; NaN stays."""
    known = sorted((value, index) for index, value in enumerate(p) if not np.isnan(value))
    adjusted = [float("nan")] * len(p)
    so_far = 0.0
    for rank, (value, index) in enumerate(known):
        so_far = max(so_far, min(1.0, (len(known) - rank) * value))
        adjusted[index] = so_far
    return adjusted
