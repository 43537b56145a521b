"""AFA-CS: anarchic federated averaging for cross-silo federations.

Yang, Zhang, Khanduri & Liu, Anarchic federated learning, ICML 2022.

    h_i ← Δ_i for the arrivals (computed from an older model, as in AFA-CD),   Δ = K̄ Σ_i α_i h_i / K_i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import Float
from ..federation import CheckedRound
from ..rule_state import MemoryState, RuleState
from ..state import State
from .afa_cd import AFACD, ArrivalState
from .mifa import SAG, refreshed_mean


@dataclass(eq=False, kw_only=True)
class ArrivalMemoryState(ArrivalState, MemoryState):
    """What AFA-CS remembers."""


@dataclass(frozen=True, kw_only=True)
class AFACS(AFACD):
    """The mean over all clients of their latest update per local step; see `AFACD` for the parameters."""

    name: ClassVar[str] = "afa-cs"
    memory: ClassVar[bool] = True
    takes_late: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def start(self, state: State) -> RuleState:
        """Nobody has arrived."""
        return ArrivalMemoryState(models=self._models(state), stale=state.remember())

    def update(self, state: State, round: CheckedRound) -> Float:
        """Refresh the arrivals' rows and average all."""
        scale = self._scale(state, round)
        mean = refreshed_mean(state.own(ArrivalMemoryState).stale, state.federation, round, 1.0 / self._steps(round))
        self._arrived(state, round)
        return scale * mean

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i of an earlier round."""
        masses = state.federation.masses(late.clients) / self._steps(late)
        state.own(ArrivalMemoryState).stale.replace(late.clients, late.updates, masses)
