"""Methods over many settings: their ranks, and by how much one is ahead of another, setting by setting.

The settings are what varies: the error of a mean is that over settings, and whether a difference is more than chance is
judged by flipping the signs of whole settings (`evidence`). A method without a number where others have one (it
diverged) is last there; one that was not run somewhere has no rank there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..checks import Float
from .estimate import Estimate
from .evidence import by_flips


def ranks(losses: Mapping[str, float]) -> dict[str, float]:
    """Rank methods by their loss, the least is 1; equal ones share the mean of their ranks, NaN is last."""
    names = list(losses)
    values = np.array([losses[name] for name in names], dtype=np.float64)
    values = np.where(np.isnan(values), np.inf, values)
    below = np.sum(values[None, :] < values[:, None], axis=1)
    equal = np.sum(values[None, :] == values[:, None], axis=1)
    return {name: float(b + (e + 1) / 2) for name, b, e in zip(names, below, equal, strict=True)}


def mean_ranks(settings: Mapping[str, Mapping[str, float]]) -> dict[str, Estimate]:
    """Average the ranks of each method over the settings in which it has one; `count` says how many these are."""
    found: dict[str, list[float]] = {}
    for losses in settings.values():
        for name, rank in ranks(losses).items():
            found.setdefault(name, []).append(rank)
    return {name: Estimate.of(values) for name, values in found.items()}


@dataclass(frozen=True)
class Ahead:
    """By how much one method is ahead of another, over the settings that both have.

    Attributes
    ----------
    by
        Mean of the differences with the error over settings.
    wins, losses
        Settings in which it is ahead, or behind, by more than twice the error of that setting's difference.
    p
        Two-sided, by flipping the signs of settings; NaN for fewer than two.
    """

    by: Estimate
    wins: int
    losses: int
    p: float


def ahead(differences: Mapping[str, Estimate]) -> Ahead:
    """Judge the differences between two methods, one for each setting, positive where the first is ahead."""
    values: Float = np.array([one.mean for one in differences.values()], dtype=np.float64)
    decided = [one for one in differences.values() if one.decided]
    evidence, _ = by_flips(len(values), lambda signs: signs @ values)
    wins = sum(one.mean > 0 for one in decided)
    return Ahead(Estimate.of(values), wins, len(decided) - wins, evidence.p)
