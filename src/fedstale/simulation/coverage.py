"""Whom the objective is about: clients that never come are coverage lost, and no rule can make up for it.

A rule learns from those who come. With weights 1/p_i its mean update is that of Σ α_i F_i over the clients that come;
the metric `objective` is over all clients, `objective_covered` over those who come, their α_i scaled to a sum of 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..checks import Float, fail
from ..federation import Ints
from ..participation import (
    Bootstrap,
    Cyclic,
    DailyMarkov,
    Participation,
    Trace,
    groups_text,
    quantile_groups,
    quantiles_text,
)


class CoverageLost(UserWarning):
    """Some clients never come."""


@dataclass(frozen=True, eq=False)
class Coverage:
    """Which clients never come, and what the others are of the objective.

    Attributes
    ----------
    never
        The clients that never come, sorted.
    share
        Σ α_i over those who come.
    alpha
        α_i over those who come, summing to 1, and 0 for the others, shape (N,); None where nobody comes.
    """

    never: Ints
    share: float
    alpha: Float | None

    @classmethod
    def of(cls, participation: Participation, alpha: Float) -> Coverage | None:
        """Look who never comes; None where everybody does, or where it is not known."""
        try:
            p = participation.availability.probabilities()
        except ValueError:  # a schedule without a mean
            return None
        never = np.flatnonzero(p == 0.0)
        comes = np.where(p > 0.0, alpha, 0.0)
        share = float(comes.sum())
        return cls(never, share, comes / share if share else None) if never.size else None

    def warn(self, *, objective: bool = True) -> None:
        """Say it.

        Parameters
        ----------
        objective
            Whether the metrics objective and objective_covered are recorded.
        """
        if self.alpha is None:
            text = f"None of the {self.never.size} clients ever comes: coverage 0%. There is nothing to learn from"
            warnings.warn(text, CoverageLost, stacklevel=4)
            return
        n = self.alpha.size
        text = f"{self.never.size} of {n} clients never come: coverage {self.share:.0%}. No rule learns from them. "
        if objective:
            text += f"The objective is over all {n} clients, objective_covered over the {n - self.never.size} that come"
        else:
            text += f"Losses are over all {n} clients"
        warnings.warn(text, CoverageLost, stacklevel=4)


def rounds_of_a_day(participation: Participation) -> int | None:
    """Return how many rounds a day has, where the process knows it."""
    process = participation.availability
    if isinstance(process, Trace):
        return process.rounds_per_day
    return process.period if isinstance(process, (Bootstrap, Cyclic, DailyMarkov)) else None


def quantiles_of(participation: Participation, quantiles: int | Sequence[int] | None) -> Ints | None:
    """Return the finer group of each client, from 1 for the most frequent, shape (N,); None where none are asked for.

    Parameters
    ----------
    participation
        Who shows up.
    quantiles
        How many groups by p_i, or the group of each client.
    """
    if quantiles is None:
        return None
    if not isinstance(quantiles, int):
        if len(quantiles) != participation.num_clients or min(quantiles) < 1:
            allowed = f"must be a number of groups, or {participation.num_clients} groups from 1, one for each client"
            raise fail("quantiles", quantiles, allowed)
        return np.array(quantiles, dtype=np.int64)
    try:
        p = participation.availability.probabilities()
    except ValueError:
        raise fail("quantiles", quantiles, "needs p_i that have a mean over the rounds") from None
    return 1 + quantile_groups(p, quantiles)


def groups_of(participation: Participation, quantiles: int | Sequence[int] | None = None) -> str:
    """Say who is frequent and who is rare, with sizes and ranges of p; nothing where p has no mean.

    Parameters
    ----------
    participation
        Who shows up.
    quantiles
        The number of finer groups to name as well. None, or groups that were given: none.
    """
    try:
        p = participation.availability.probabilities()
        text = groups_text(p, participation.participation_groups())
    except ValueError:  # a schedule without a mean
        return ""
    if not isinstance(quantiles, int):
        return text
    return f"{text}. Quantiles by p: {quantiles_text(p, quantile_groups(p, quantiles))}"
