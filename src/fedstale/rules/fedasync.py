"""FedAsync: every reply is mixed into the model at once, the less the older the model it was computed from.

Xie, Koyejo & Gupta, Asynchronous federated optimization, OPT 2020 (arXiv 1903.03934), Algorithm 1.

    w ← (1 − α_τ) w + α_τ w_i,   α_τ = α (1 + τ)^(−a)   (the paper's polynomial staleness; a = 0 is its constant one)

Clients send their model, so Δ_i = w_t − w_i with the server's present model, and Δ = α_τ Δ_i. Several replies in one
step are mixed in one after the other: Δ = Σ_j α_j Π_{l after j} (1 − α_l) Δ_j. The paper's local objective has a term
(ρ/2)‖w − w_t‖²: `prox`. Its hinge staleness is not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, number
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..state import State
from .base import Local, Rule, refuse_non_finite


def discount(ages: Float, exponent: float) -> Float:
    """(1 + τ)^(−a)."""
    return np.asarray((1.0 + ages) ** -exponent)


@dataclass(frozen=True, kw_only=True)
class FedAsync(Rule):
    """w ← (1 − α_τ) w + α_τ w_i.

    Parameters
    ----------
    mixing
        α in (0, 1], the weight of a reply to the present model.
    exponent
        a ≥ 0: how fast the weight falls with the age τ.
    prox
        ρ ≥ 0 of the clients' proximal term.
    """

    mixing: float = 0.6
    exponent: float = 0.5
    prox: float = 0.0

    name: ClassVar[str] = "fedasync"
    answers_with_model: ClassVar[bool] = True
    caveat: ClassVar[str] = (
        "gives clients weights by how often they answer: it is biased towards fast and frequent ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        number("mixing", self.mixing, 0.0, 1.0, open_low=True)
        number("exponent", self.exponent, 0.0)
        number("prox", self.prox, 0.0)

    def local(self, state: State, clients: Ints) -> Local | None:
        """With the proximal term, where there is one."""
        return Local(prox=self.prox) if self.prox else None

    def update(self, state: State, round: CheckedRound) -> Float:
        """Mix the replies in, in the order in which they came."""
        weights = self.mixing * discount(round.ages, self.exponent)
        after = np.append(np.cumprod((1.0 - weights)[::-1])[::-1][1:], 1.0)[: round.size]
        delta = weighted_sum(round.updates, weights * after, state.federation.num_params)
        refuse_non_finite(round, delta)
        return delta
