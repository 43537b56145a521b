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
from ..federation import CheckedRound
from ..memory.kernel import Mix
from ..state import State
from .base import Rule, refuse_non_finite

SAG = "counts stale updates like fresh ones: the rarer a client, the more biased is the update"


def refreshed_mean(state: State, round: CheckedRound, rows: Sequence[NDArray[Any]], name: str) -> Float:
    """h_i ← the given rows for i ∈ S in the named memory, then Σ_i α_i h_i."""
    memory, federation = state.memories[name], state.federation
    total = federation.total_mass
    old = memory.masses[round.clients] / total
    swap = memory.swap(round.clients, rows, Mix(round.alpha, old, 1.0 / total, federation.masses(round.clients)))
    refuse_non_finite(round, swap.sums.mix)
    swap.commit()
    return swap.sums.mix


@dataclass(frozen=True, kw_only=True)
class MIFA(Rule):
    """Δ = Σ_i α_i h_i with h_i already refreshed for i ∈ S; h_i = 0 until client i is first seen."""

    name: ClassVar[str] = "mifa"
    memory: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def update(self, state: State, round: CheckedRound) -> Float:
        """Refresh the participants' rows and average all."""
        return refreshed_mean(state, round, round.rows, "stale")


@dataclass(frozen=True, kw_only=True)
class WaitingMIFA(MIFA):
    """MIFA that does not move the model before every client has been seen; the rounds lost are counted."""

    name: ClassVar[str] = "mifa-wait"

    def start(self, state: State) -> None:
        """No round is lost yet."""
        state.scalars["rounds_lost"] = 0.0

    def update(self, state: State, round: CheckedRound) -> Float:
        """As MIFA, once nobody who counts is missing."""
        delta = super().update(state, round)
        missing = np.flatnonzero(state.memory.slots < 0)
        if (state.federation.masses(missing) > 0).any():
            state.scalars["rounds_lost"] += 1.0
            delta = np.zeros_like(delta)
        state.report["rounds_lost"] = state.scalars["rounds_lost"]
        return delta
