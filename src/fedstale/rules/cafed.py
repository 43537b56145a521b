"""CA-Fed: clients that are seldom there, or that come and stay away in long runs, may be left out.

Rodio, Faticanti, Marfoq, Neglia & Leonardi, Federated learning under heterogeneous and correlated client availability,
INFOCOM 2023.

    Δ = Σ_{S ∩ K} (α_i/p_i) Δ_i,   K: the clients that count, chosen anew in each round so that
    ε(K) = Σ_K α_i e_i / α(K) + κ d_TV(α, α|K)² max_i e_i,   e_i = F_i(w_t) − min F_i,   α(K) = Σ_K α_i

is small: the first term bounds how far the model is from the best for K, the second how far that is from the best for
all, and d_TV(α, α|K) = 1 − α(K). K starts with everybody. One by one, first by falling autocorrelation |λ_i| of coming
and then by rising availability π_i, a client is taken out if that makes ε(K) smaller.

What a server does not know is replaced. Clients would have to send F_i(w_t) and the least value of F_i; ‖Δ_i‖² stands
in for e_i, which it bounds from both sides up to constants where F_i is smooth and satisfies the Polyak–Łojasiewicz
inequality, and a common constant changes no choice. A client never seen counts with the mean of the others. λ_i and π_i
are those of the rounds so far, without the paper's prior; p_i is the round's, as for every rule. And clients that are
left out are not told so: they train and send in vain, which is what keeps their e_i fresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, number
from ..federation import CheckedRound, Ints
from ..memory.kernel import squares, weighted_sum
from ..rule_state import RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class AvailabilityState(RuleState):
    """What CA-Fed remembers, one number of each per client."""

    rounds: Ints = per_client()
    """how many rounds there were"""
    visits: Ints = per_client()
    """to how many of them the client came"""
    again: Ints = per_client()
    """and how often in two rounds in succession"""
    error: Float = per_client()
    """e_i when it last came"""


@dataclass(frozen=True, kw_only=True)
class CAFed(Rule):
    """Δ = Σ_{S ∩ K} (α_i/p_i) Δ_i, where K leaves out whom it is better to do without; a round costs O(N) numbers.

    Parameters
    ----------
    bias_weight
        κ ≥ 0, how much it counts that a client is left out; the larger, the closer to U-FedAvg.
    """

    bias_weight: float = 1.0

    name: ClassVar[str] = "ca-fed"
    caveat: ClassVar[str] = (
        "may leave out clients that are seldom there or come in long runs: it is biased against them on purpose"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        number("bias_weight", self.bias_weight, 0.0)

    def start(self, state: State) -> RuleState:
        """Nothing is known of anybody."""
        n = state.federation.num_clients
        rounds, visits, again = np.zeros((3, n), dtype=np.int64)
        return AvailabilityState(rounds=rounds, visits=visits, again=again, error=np.zeros(n))

    def update(self, state: State, round: CheckedRound) -> Float:
        """Count who came, choose who counts, and weigh these by how seldom they come."""
        own, clients = state.own(AvailabilityState), round.clients
        error = own.error.copy()
        error[clients] = squares(round.updates)
        visits, again = own.visits.copy(), own.again.copy()
        visits[clients] += 1
        again[clients] += (state.last_seen[clients] == state.round - 1) & (state.last_seen[clients] >= 0)
        rounds = own.rounds + 1
        kept = self._kept(state.federation.alpha(), error, rounds, visits, again)
        weights = np.where(kept[clients], round.alpha / round.probabilities, 0.0)
        delta = weighted_sum(round.updates, weights, state.federation.num_params)
        refuse_non_finite(round, delta)
        own.rounds, own.visits, own.again, own.error = rounds, visits, again, error
        return delta

    def _kept(self, alpha: Float, error: Float, rounds: Ints, visits: Ints, again: Ints) -> NDArray[np.bool_]:
        """K as a mask, shape (N,)."""
        kept = np.ones(len(alpha), dtype=np.bool_)
        seen = (visits > 0) & np.isfinite(error)
        known = error[seen & (alpha > 0)]
        if known.size:
            error = np.where(seen, error, known.mean())
            available = visits / rounds
            varies = available * (1.0 - available)
            together = again / np.maximum(rounds - 1, 1) - available**2
            correlation = np.divide(together, varies, out=np.zeros(len(alpha)), where=varies > 0)
            for order in (-np.abs(correlation), available):
                self._leave_out(kept, np.argsort(order, kind="stable"), alpha, error, float(known.max()))
        return kept

    def _leave_out(self, kept: NDArray[np.bool_], order: Ints, alpha: Float, error: Float, worst: float) -> None:
        """Go through the clients in this order, and leave out each without whom ε(K) is smaller, in place."""
        order = order[kept[order] & (alpha[order] > 0)]
        masses, risks = alpha[order], (alpha * error)[order]
        mass, risk = float(alpha[kept].sum()), float((alpha * error)[kept].sum())
        at, ahead = 0, 1
        while at < len(order):  # as many at once as are kept, or left out, in a row
            now = slice(at, at + ahead)
            alike = _first(~self._smaller(mass, risk, mass - masses[now], risk - risks[now], worst))
            if not alike:
                left_mass = np.subtract.accumulate(np.concatenate([[mass], masses[now]]))
                left_risk = np.subtract.accumulate(np.concatenate([[risk], risks[now]]))
                alike = _first(self._smaller(left_mass[:-1], left_risk[:-1], left_mass[1:], left_risk[1:], worst))
                kept[order[at : at + alike]] = False
                mass, risk = float(left_mass[alike]), float(left_risk[alike])
            at += alike
            ahead = 2 * ahead if alike == ahead else 1

    def _smaller(
        self, mass: float | Float, risk: float | Float, mass_without: Float, risk_without: Float, worst: float
    ) -> NDArray[np.bool_]:
        """Whether ε(K) is smaller without a client, from α(K) and Σ_K α_i e_i with it and without it."""
        with np.errstate(divide="ignore", invalid="ignore"):
            before = risk / mass + self.bias_weight * (1.0 - mass) ** 2 * worst
            after = risk_without / mass_without + self.bias_weight * (1.0 - mass_without) ** 2 * worst
        return np.asarray((mass_without > 1e-12) & (after < before))


def _first(holds: NDArray[np.bool_]) -> int:
    """How many hold before the first that does not."""
    return len(holds) if holds.all() else int(np.argmin(holds))
