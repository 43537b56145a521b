"""MIFA: everybody's latest update counts alike, fresh or stale.

Gu, Huang, Zhang & Huang, Fast federated learning in the presence of arbitrary device unavailability, NeurIPS 2021.

    h_i ← Δ_i for i ∈ S,   then   Δ = Σ_i α_i h_i

SAG-like: given the memory, E[Δ] = Σ α_i (p_i Δ_i + (1 − p_i) h_i), which is not Σ α_i Δ_i. The paper lets the first
round last until every device has answered; `WaitingMIFA` does, `MIFA` counts h_i = 0 for a client not seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..federation import CheckedRound, Federation
from ..memory import StaleMemory
from ..memory.kernel import Mix
from ..rule_state import MemoryState, RuleState
from ..state import State
from .base import Rule, refuse_non_finite

SAG = "gives stale updates the same weight as fresh ones: the rarer a client, the more biased the update"


def refreshed_mean(
    memory: StaleMemory, federation: Federation, round: CheckedRound, rows: Sequence[NDArray[Any]]
) -> Float:
    """h_i ← the given rows for i ∈ S, then Σ_i α_i h_i."""
    total = federation.total_mass
    old = memory.masses[round.clients] / total
    mix = Mix(round.alpha, old, 1.0 / total, federation.masses(round.clients))
    exchange = memory.prepare_exchange(round.clients, rows, mix)
    refuse_non_finite(round, exchange.sums.mix)
    exchange.commit()
    return exchange.sums.mix


@dataclass(frozen=True, kw_only=True)
class MIFA(Rule):
    """Δ = Σ_i α_i h_i with h_i already refreshed for i ∈ S; h_i = 0 until client i is first seen."""

    name: ClassVar[str] = "mifa"
    memory: ClassVar[bool] = True
    takes_late: ClassVar[bool] = True
    reads_once: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def update(self, state: State, round: CheckedRound) -> Float:
        """Refresh the participants' rows and average all."""
        return refreshed_mean(state.own(MemoryState).stale, state.federation, round, round.updates)

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i of an earlier round."""
        state.own(MemoryState).stale.replace(late.clients, late.updates, state.federation.masses(late.clients))


@dataclass(eq=False, kw_only=True)
class WaitingState(MemoryState):
    """What MIFA remembers while it waits."""

    rounds_lost: int = 0


@dataclass(frozen=True, kw_only=True)
class WaitingMIFA(MIFA):
    """MIFA that does not move the model before every client has been seen; the rounds lost are counted."""

    name: ClassVar[str] = "mifa-wait"

    def start(self, state: State) -> RuleState:
        """No round is lost yet."""
        return WaitingState(stale=state.remember())

    def update(self, state: State, round: CheckedRound) -> Float:
        """As MIFA, once nobody who counts is missing."""
        own, delta = state.own(WaitingState), super().update(state, round)
        missing = np.flatnonzero(own.stale.slots < 0)
        if (state.federation.masses(missing) > 0).any():
            own.rounds_lost += 1
            delta = np.zeros_like(delta)
        state.report["rounds_lost"] = float(own.rounds_lost)
        return delta
