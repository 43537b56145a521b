"""FedBuff: the mean over a buffer of K replies, each discounted by its age; and a form that corrects for speed.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek & Huba, Federated learning with buffered asynchronous aggregation,
AISTATS 2022, Algorithm 1.

    Δ = (1/|S|) Σ_S s(τ_i) Δ_i,   s(τ) = (1 + τ)^(−a), a = ½;   |S| = K unless a deadline made the server step earlier

Fast clients are in more buffers than slow ones, so FedBuff minimises an objective in which they weigh more. Weights
1/p_i for how often client i is in a step undo that, as in Leconte, Jonckheere, Samsonov & Moulines, Queuing dynamics of
asynchronous federated learning, AISTATS 2024; and since s also weighs slow clients down, it is divided by its mean:

    Δ = Σ_S w_i Δ_i / max(1, W/W_max),   w_i = (α_i/p_i)(s(τ_i)/s̄_i),   W = Σ_S w_i

with s̄_i the mean of s over client i's earlier replies (this combination is ours). Without the bound W_max, E[Δ] =
Σ α_i Δ_i over who answers, for the Δ_i that are sent; that they were computed from older models remains. In time that
is not enough: clients that come seldom come for a while and then answer in many steps in a row, each with a large 1/p̂,
and a few such steps undo what everybody has learned (docs/time.md). W_max = 1 bounds every step to the weight that one
with all clients would have, at the price of a bias towards frequent clients in the steps that it bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, number
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..rule_state import RuleState, per_client
from ..state import State
from .averaging import round_weights
from .base import Rule, refuse_non_finite
from .fedasync import discount


@dataclass(frozen=True, kw_only=True)
class FedBuff(Rule):
    """Δ = (1/|S|) Σ_S s(τ_i) Δ_i; how many replies there are in a step is the server's (`--server-option size=10`).

    Parameters
    ----------
    exponent
        a ≥ 0 of s(τ) = (1 + τ)^(−a).
    """

    exponent: float = 0.5

    name: ClassVar[str] = "fedbuff"
    caveat: ClassVar[str] = (
        "gives clients weights by how often they answer: it is biased towards fast and frequent ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        number("exponent", self.exponent, 0.0)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the buffer."""
        weights = round_weights(round) * discount(round.ages, self.exponent)
        delta = weighted_sum(round.updates, weights, state.federation.num_params)
        refuse_non_finite(round, delta)
        return delta


@dataclass(eq=False, kw_only=True)
class DiscountState(RuleState):
    """What the unbiased form remembers."""

    sums: Float = per_client()
    """Σ s over a client's replies so far, shape (N,)"""
    count: Ints = per_client()
    """how many there were, shape (N,)"""


def bounded(weights: Float, most: float | None) -> Float:
    """Scale the weights of a step down where their sum exceeds a bound; None: as they are."""
    total = float(weights.sum())
    return weights if most is None or total <= most else weights * (most / total)


@dataclass(frozen=True, kw_only=True)
class UnbiasedFedBuff(FedBuff):
    """Δ = Σ_S (α_i/p_i)(s(τ_i)/usual s of i) Δ_i, no step heavier than one with all clients.

    Parameters
    ----------
    exponent
        As for `FedBuff`.
    max_step
        W_max > 0: the largest sum of the weights of a step; None for none, and an update that is exactly unbiased.
    """

    max_step: float | None = 1.0

    name: ClassVar[str] = "u-fedbuff"
    caveat: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_step is not None:
            number("max_step", self.max_step, 0.0, open_low=True)

    def start(self, state: State) -> RuleState:
        """Nobody has answered."""
        n = state.federation.num_clients
        return DiscountState(sums=np.zeros(n), count=np.zeros(n, dtype=np.int64))

    def update(self, state: State, round: CheckedRound) -> Float:
        """Weight replies by how seldom they come, and by their age relative to what is usual for their client."""
        own, fresh = state.own(DiscountState), discount(round.ages, self.exponent)
        sums, count = own.sums[round.clients], own.count[round.clients]
        usual = np.where(count > 0, sums / np.maximum(count, 1), fresh)
        weights = bounded(round.alpha / round.probabilities * fresh / usual, self.max_step)
        delta = weighted_sum(round.updates, weights, state.federation.num_params)
        refuse_non_finite(round, delta)
        own.sums[round.clients] = sums + fresh
        own.count[round.clients] = count + 1
        return delta
