"""FedAsync: every reply is mixed into the model at once, the less the older the model it was computed from.

Xie, Koyejo & Gupta, Asynchronous federated optimization, OPT 2020 (arXiv 1903.03934), Algorithm 1; s(τ) as
in its evaluation setup (Section 5.2), a = 10 and b = 4 for the hinge.

    w ← (1 − α_τ) w + α_τ w_i,   α_τ = α s(τ),   τ the age of the model that w_i was computed from

    constant   s(τ) = 1
    polynomial s(τ) = (1 + τ)^(−a)
    hinge      s(τ) = 1 for τ ≤ b, else 1 / (a (τ − b) + 1)

Clients send their model, so Δ_i = w_t − w_i with the server's present model, and Δ = α_τ Δ_i. Several replies in one
step are mixed in one after the other: Δ = Σ_j α_j Π_{l after j} (1 − α_l) Δ_j. The paper's local objective has a term
(ρ/2)‖w − w_t‖²: `prox`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, number, unknown
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..state import State
from .base import Local, Rule, refuse_non_finite

_STALENESS = "constant", "polynomial", "hinge"


def discount(ages: Float, exponent: float) -> Float:
    """(1 + τ)^(−a)."""
    return np.asarray((1.0 + ages) ** -exponent)


def _hinge(ages: Float, slope: float, grace: float) -> Float:
    """1 up to the age b, then 1 / (a (τ − b) + 1)."""
    return np.asarray(1.0 / (slope * np.maximum(ages - grace, 0.0) + 1.0))


@dataclass(frozen=True, kw_only=True)
class FedAsync(Rule):
    """w ← (1 − α_τ) w + α_τ w_i, α_τ = α s(τ).

    Parameters
    ----------
    mixing
        α in (0, 1], the weight of a reply to the present model.
    staleness
        s: "polynomial", "hinge" or "constant".
    exponent
        a ≥ 0 of the polynomial: how fast the weight falls with the age τ.
    slope, grace
        a and b ≥ 0 of the hinge: up to the age b a reply counts in full, then the less the larger a is.
    prox
        ρ ≥ 0 of the clients' proximal term.
    """

    mixing: float = 0.6
    staleness: str = "polynomial"
    exponent: float = 0.5
    slope: float = 10.0
    grace: float = 4.0
    prox: float = 0.0

    name: ClassVar[str] = "fedasync"
    answers_with_model: ClassVar[bool] = True
    caveat: ClassVar[str] = (
        "gives clients weights by how often they answer: it is biased towards fast and frequent ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        number("mixing", self.mixing, 0.0, 1.0, open_low=True)
        if self.staleness not in _STALENESS:
            raise unknown("staleness", self.staleness, _STALENESS)
        for name in ("exponent", "slope", "grace", "prox"):
            number(name, getattr(self, name), 0.0)

    def local(self, state: State, clients: Ints) -> Local | None:
        """With the proximal term, where there is one."""
        return Local(prox=self.prox) if self.prox else None

    def _discount(self, ages: Float) -> Float:
        """s(τ)."""
        if self.staleness == "hinge":
            return _hinge(ages, self.slope, self.grace)
        return discount(ages, self.exponent if self.staleness == "polynomial" else 0.0)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Mix the replies in, in the order in which they came."""
        weights = self.mixing * self._discount(round.ages)
        after = np.append(np.cumprod((1.0 - weights)[::-1])[::-1][1:], 1.0)[: round.size]
        delta = weighted_sum(round.updates, weights * after, state.federation.num_params)
        refuse_non_finite(round, delta)
        return delta
