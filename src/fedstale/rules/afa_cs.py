"""AFA-CS: anarchic federated averaging for cross-silo federations.

Yang, Zhang, Khanduri & Liu, Anarchic federated learning, ICML 2022.

    h_i ← Δ_i / K_i for the arrivals (computed from an older model, as in AFA-CD),   Δ = K̄ Σ_i α_i h_i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

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
    per_step: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def start(self, state: State) -> RuleState:
        """Nobody has arrived."""
        return ArrivalMemoryState(models=self._models(state), stale=state.remember())

    def update(self, state: State, round: CheckedRound) -> Float:
        """Refresh the arrivals' rows and average all."""
        scale = self._scale(state, round)
        mean = refreshed_mean(state.own(ArrivalMemoryState).stale, state.federation, round, self._per_step(round))
        self._arrived(state, round)
        return scale * mean

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i / K_i of an earlier round."""
        masses = state.federation.masses(late.clients)
        state.own(ArrivalMemoryState).stale.replace(late.clients, self._per_step(late), masses)

    def _per_step(self, round: CheckedRound) -> list[NDArray[Any]]:
        return [row / steps for row, steps in zip(round.updates, self._steps(round), strict=True)]
