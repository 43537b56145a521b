"""Which deadline? From how long replies took, the one that costs the least time for the same noise.

An unbiased average of the replies in time has a participation noise proportional to Σ_i α_i²/p_i, with p_i the share
of client i's rounds in which it answers before the deadline, and needs so many more rounds as that is larger. A round
lasts until the slowest reply or the deadline. So the time that a deadline d costs is

    C(d) = E[length of a round] · mean_i 1/p_i(d),    p_i(d) = (in time + ½) / (asked + 1)

(the ½ keeps a client that has never been in time finite: it is not known that it never will be). Late replies that a
memory takes up make an early deadline cheaper than C says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail
from ..federation import Ints

_CANDIDATES = 200
_WORTHWHILE = 1.05
"""Times faster from which on a deadline is recommended; what is less may be chance."""
FEW_ROUNDS = 10
"""Rounds below which an advice is a guess."""


@dataclass(frozen=True)
class DeadlineAdvice:
    """A deadline and what to expect of it.

    Attributes
    ----------
    deadline
        Seconds.
    in_time
        The share of the asked clients that answer before it.
    never
        How many clients never did.
    seconds
        Mean length of a round with it.
    seconds_without
        Mean length of a round that waits for all replies that came.
    times_faster
        C without a deadline over C with this one.
    rounds
        In how many rounds the client was asked that was asked least often.
    """

    deadline: float
    in_time: float
    never: int
    seconds: float
    seconds_without: float
    times_faster: float
    rounds: int

    @property
    def worthwhile(self) -> bool:
        """Whether it is faster than to wait for the slowest reply."""
        return self.times_faster >= _WORTHWHILE


def advise_deadline(rounds: ArrayLike, clients: ArrayLike, seconds: ArrayLike) -> DeadlineAdvice:
    """Recommend a deadline.

    Parameters
    ----------
    rounds, clients
        Who was asked in which round: two arrays of integers of equal length.
    seconds
        How long each reply took since its round began; infinite (or NaN) where none came.
    """
    t: Ints = np.unique(np.asarray(rounds), return_inverse=True)[1]
    i: Ints = np.unique(np.asarray(clients), return_inverse=True)[1]
    took: Float = np.asarray(seconds, dtype=np.float64)
    if not t.shape == i.shape == took.shape or took.ndim != 1 or not took.size:
        raise fail("seconds", f"array of shape {took.shape}", "there must be one for each pair of round and client")
    took = np.where(np.isnan(took), np.inf, took)
    answered = np.isfinite(took)
    if not answered.any():
        raise fail("seconds", "no reply", "at least one client must have answered")
    if (took <= 0).any():
        raise fail("seconds", float(took.min()), "times must be positive")
    asked = np.bincount(i)
    slowest = np.zeros(int(t.max()) + 1)
    np.maximum.at(slowest, t[answered], took[answered])
    silent = np.zeros(len(slowest), dtype=np.bool_)
    silent[t[~answered]] = True

    def cost(deadline: float) -> tuple[float, float]:
        lengths = np.where(silent, deadline, np.minimum(slowest, deadline)) if np.isfinite(deadline) else slowest
        p = (np.bincount(i[took <= deadline], minlength=len(asked)) + 0.5) / (asked + 1.0)
        return float(lengths.mean() * np.mean(1.0 / p)), float(lengths.mean())

    values = np.unique(took[answered])
    if len(values) > _CANDIDATES:
        values = np.quantile(values, np.linspace(0.0, 1.0, _CANDIDATES), method="higher")
    without, seconds_without = cost(float(values[-1]) if silent.any() else np.inf)
    costs = [cost(float(value)) for value in values]
    least = min(one for one, _ in costs)
    best = max(k for k, (one, _) in enumerate(costs) if one <= least * (1 + 1e-9))  # of equals the one that waits
    deadline = float(values[best])
    never = int((np.bincount(i[took <= deadline], minlength=len(asked)) == 0).sum())
    return DeadlineAdvice(
        deadline=deadline,
        in_time=float((took <= deadline).mean()),
        never=never,
        seconds=costs[best][1],
        seconds_without=seconds_without,
        times_faster=without / costs[best][0],
        rounds=int(asked.min()),
    )
