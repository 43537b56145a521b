"""FedStale whose stale updates count less the older they are: β_i = β ρ^(age of h_i).

FedStale: Rodio & Neglia, ECAI 2024, Eq. 8; the ageing is ours, for servers on which updates differ widely in age.

    Δ = Σ_i α_i β_i h_i + Σ_S w_i (Δ_i − β_i h_i),   β_i = β ρ^(t − v_i),   ρ = 2^(−1/half_life)
    w_i = (α_i/p_i) / max(1, W/W_max),   W = Σ_S α_i/p_i

v_i is the server step whose model h_i was computed from. The same β_i h_i is in both terms, so that without the bound
W_max the update is unbiased for every β and half-life, as FedStale's is. The bound keeps clients that come seldom, but
then in many steps in a row, from undoing what everybody has learned: see `fedstale.rules.fedbuff`. All β_i fall by the
same factor ρ in a step, so that Σ α_i β_i h_i remains one running sum: it counts h_i with the mass a_i ρ^(s − v_i), s
an origin that is moved along before numbers grow large. An infinite half-life without a bound is FedStale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..checks import Float, fail, number
from ..federation import CheckedRound, Ints
from ..memory.held import Announcement
from ..memory.kernel import Mix
from ..rule_state import RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite
from .fedbuff import bounded
from .stale import FedStale, StaleState, learn

_FURTHEST = 8.0
"""Half-lives after which the origin of the masses moves: the larger masses are, the more digits the move costs."""


@dataclass(eq=False, kw_only=True)
class AgeingState(StaleState):
    """What FedStale with ageing remembers."""

    version: Ints = per_client(fill=-1)
    """v_i, −1 for a client never seen, shape (N,)"""
    origin: int = 0
    """s"""


@dataclass(frozen=True, kw_only=True)
class FedStaleAsync(FedStale):
    """FedStale with β_i = β ρ^(t − v_i).

    Parameters
    ----------
    beta
        As for `FedStale`, but not one for each client: how much a fresh memory counts.
    half_life
        Server steps after which a stale update counts half.
    max_step
        W_max > 0: the largest Σ_S α_i/p_i of a step; None for none, and an update that is exactly unbiased.
    """

    half_life: float = 50.0
    max_step: float | None = 1.0

    name: ClassVar[str] = "fedstale-async"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        number("half_life", self.half_life, 0.0, open_low=True)
        if self.max_step is not None:
            number("max_step", self.max_step, 0.0, open_low=True)
        if self._chooser.per_client:
            raise fail("beta", self.beta, "β_i follows from the age here: give one β for all clients")

    def start(self, state: State) -> RuleState:
        """No update is remembered yet, and nothing is known of β."""
        n, chooser = state.federation.num_clients, self._chooser
        version = np.full(n, -1, dtype=np.int64)
        return AgeingState(stale=state.remember(), beta=chooser.init(state), per_client=False, version=version)

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """Refuse: clients that hold the memory would have to know its age."""
        return Rule.announce(self, state, index, clients, probabilities)

    def _faded(self, steps: Any) -> Any:
        """ρ^steps."""
        return np.exp2(-np.asarray(steps, dtype=np.float64) / self.half_life)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Eq. 9 with the β_i of the ages."""
        own, federation, chooser = state.own(AgeingState), state.federation, self._chooser
        of_beta, clients = state.inside(own.beta), round.clients
        beta = chooser.value(of_beta, round.index)
        weights = bounded(round.alpha / round.probabilities, self.max_step)
        known = own.version[clients] >= 0
        faded = np.where(known, self._faded(round.index - own.version[clients]), 1.0)
        version = round.index - round.ages.astype(np.int64)
        total = beta * float(self._faded(round.index - own.origin)) / federation.total_mass
        masses = federation.masses(clients) * self._faded(own.origin - version)
        mix = Mix(weights, beta * faded * weights, total, masses, chooser.statistics)
        exchange = own.stale.prepare_exchange(clients, round.updates, mix)
        refuse_non_finite(round, exchange.sums.mix)
        exchange.commit()
        sums = exchange.sums
        learn(chooser, of_beta, round, replace(sums, inner=sums.inner * faded, stale_sq=sums.stale_sq * faded**2))
        own.version[clients] = version
        self._move_origin(state, round.index)
        state.report["beta"] = beta
        return sums.mix

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i of an earlier round."""
        own = state.own(AgeingState)
        version = late.index - late.ages.astype(np.int64)
        masses = state.federation.masses(late.clients) * self._faded(own.origin - version)
        own.stale.replace(late.clients, late.updates, masses)
        own.version[late.clients] = version

    def _move_origin(self, state: State, index: int) -> None:
        """Begin to count ages anew, before masses become too large; old rows may come to count nothing at all."""
        own = state.own(AgeingState)
        if index - own.origin < _FURTHEST * self.half_life:
            return
        seen = own.stale.seen
        own.origin = index
        masses = state.federation.masses(seen) * self._faded(index - own.version[seen])
        own.stale.replace(seen, own.stale.rows(seen), masses)
