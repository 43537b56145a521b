"""Estimators of p_i: FedAU with and without cutoff, Beta frequency, forgetting frequency (spec §4).

`observe` touches the participants only: an absent client's gap is the difference of two round numbers, and
the cutoffs it has passed since are a division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, number, positive_int
from ..checks import probabilities as check_probabilities
from ..federation import Ints
from .estimator import Columns, Estimator, EstimatorState


@dataclass(frozen=True)
class FedAUEstimator(Estimator):
    """FedAU (Wang & Ji 2024): 1/p̂_i is the mean of the past intervals between participations, 1 before any.

    An interval ends with a participation, or with the cutoff when a client has been absent for so many
    rounds; the interval that ends now counts only from the next round on. Lengths are summed as integers:
    nothing rounds. The cutoff leaves a bias that does not go away: see `limit`.

    Parameters
    ----------
    cutoff
        K_c, at least 1; None for no cutoff (then a long absence is not noticed before the client returns).
    """

    cutoff: int | None = 50

    def __post_init__(self) -> None:
        if self.cutoff is not None:
            positive_int("cutoff", self.cutoff)

    def limit(self, p: ArrayLike) -> Float:
        """Return the weight 1/p̂ to which a client tends that comes on its own with probability p in every round.

        Intervals are then independent copies of min(G, K_c), G geometric with P(G > k) = (1−p)^k, and their mean tends
        to E min(G, K_c) = Σ_{k < K_c} (1−p)^k = (1 − (1−p)^{K_c})/p with probability 1. The client's mean contribution
        is p times that: a share 1 − (1−p)^{K_c} of what it should be, 1 only without a cutoff. After finitely many
        rounds the weight differs from its limit in mean, too: it is 1 before the first interval has ended.
        """
        values = check_probabilities("p", p)
        if self.cutoff is None:
            return np.asarray(1.0 / values)
        with np.errstate(divide="ignore"):  # p = 1: log 0 = −inf, and the share is 1
            return np.asarray(-np.expm1(self.cutoff * np.log1p(-values)) / values)

    clocks: ClassVar[tuple[str, ...]] = ("start",)

    def _columns(self, round: int, count: int) -> Columns:
        # start: the first round of the interval that is running, without the cutoffs passed since.
        return {
            "start": np.full(count, round, dtype=np.int64),
            "sum": np.zeros(count, dtype=np.int64),
            "count": np.zeros(count, dtype=np.int64),
        }

    def _past(self, state: EstimatorState, ids: Ints) -> tuple[Ints, Ints, Ints]:
        """Return (sum, count, gap) as if every absent round had been counted when it passed."""
        absent: Ints = state.round - state.columns["start"][ids]
        passed = np.zeros_like(absent) if self.cutoff is None else absent // self.cutoff
        length = passed * (self.cutoff or 0)
        return state.columns["sum"][ids] + length, state.columns["count"][ids] + passed, absent - length

    def _estimate(self, state: EstimatorState, ids: Ints) -> Float:
        total, count, _ = self._past(state, ids)
        return np.where(count > 0, count / np.maximum(total, 1), 1.0)

    def _count(self, state: EstimatorState, ids: Ints) -> None:
        total, count, gap = self._past(state, ids)
        state.columns["sum"][ids] = total + gap + 1
        state.columns["count"][ids] = count + 1
        state.columns["start"][ids] = state.round + 1


@dataclass(frozen=True)
class BetaFrequency(Estimator):
    """Posterior mean of p_i with a Beta(a, b) prior: (a + participations) / (a + b + rounds since joining).

    Parameters
    ----------
    prior_a
        a > 0, which keeps p̂ positive.
    prior_b
        b ≥ 0.
    """

    prior_a: float = 1.0
    prior_b: float = 1.0

    def __post_init__(self) -> None:
        number("prior_a", self.prior_a, 0.0, open_low=True)
        number("prior_b", self.prior_b, 0.0)

    clocks: ClassVar[tuple[str, ...]] = ("joined",)

    def _columns(self, round: int, count: int) -> Columns:
        return {"joined": np.full(count, round, dtype=np.int64), "count": np.zeros(count, dtype=np.int64)}

    def _estimate(self, state: EstimatorState, ids: Ints) -> Float:
        rounds = state.round - state.columns["joined"][ids]
        return np.asarray((self.prior_a + state.columns["count"][ids]) / (self.prior_a + self.prior_b + rounds))

    def _count(self, state: EstimatorState, ids: Ints) -> None:
        state.columns["count"][ids] += 1


@dataclass(frozen=True)
class Forgetting(Estimator):
    """Frequency that forgets, for availability that changes: a round that is k rounds old weighs decay^k.

    p̂ = (a + Σ_s λ^(t−1−s) X_s) / (a + b + Σ_s λ^(t−1−s)) over the rounds s < t since the client joined. The
    prior does not fade: it bounds 1/p̂ by (a + b + 1/(1−λ))/a however long a client stays away, at the price
    of a p̂ that is too large for clients with p_i well below 1−λ.

    Parameters
    ----------
    decay
        λ in (0, 1): the memory is about 1/(1−λ) rounds long.
    prior_a, prior_b
        As in `BetaFrequency`.
    """

    decay: float = 0.99
    prior_a: float = 1.0
    prior_b: float = 1.0

    def __post_init__(self) -> None:
        if number("decay", self.decay, 0.0, 1.0, open_low=True) == 1.0:
            raise fail("decay", self.decay, "must lie in (0, 1); BetaFrequency is the estimator that forgets nothing")
        number("prior_a", self.prior_a, 0.0, open_low=True)
        number("prior_b", self.prior_b, 0.0)

    clocks: ClassVar[tuple[str, ...]] = ("joined", "updated")

    def _columns(self, round: int, count: int) -> Columns:
        # weight: the discounted participations as they stood at round `updated`.
        return {
            "joined": np.full(count, round, dtype=np.int64),
            "updated": np.full(count, round, dtype=np.int64),
            "weight": np.zeros(count),
        }

    def _weight(self, state: EstimatorState, ids: Ints) -> Float:
        age = state.round - state.columns["updated"][ids]
        return np.asarray(state.columns["weight"][ids] * np.exp(age * np.log(self.decay)))

    def _estimate(self, state: EstimatorState, ids: Ints) -> Float:
        rounds = state.round - state.columns["joined"][ids]
        total = -np.expm1(rounds * np.log(self.decay)) / (1.0 - self.decay)
        p = (self.prior_a + self._weight(state, ids)) / (self.prior_a + self.prior_b + total)
        return np.asarray(np.minimum(p, 1.0))

    def _count(self, state: EstimatorState, ids: Ints) -> None:
        state.columns["weight"][ids] = self.decay * self._weight(state, ids) + 1.0
        state.columns["updated"][ids] = state.round + 1
