"""FedLaAvg: MIFA's direction with the rows at the clients, and the least recently used clients asked first.

Yan, Niu, Ding, Zheng, Tang & Wu, Federated optimization under intermittent client availability, INFORMS Journal on
Computing 2024 (arXiv 2002.07399, "Distributed non-convex optimization with sublinear speedup under intermittent client
availability").

    client i ∈ S sends Δ_i − h_i and keeps h_i ← Δ_i;   the server keeps   Δ ← Δ + Σ_S α_i (Δ_i − h_i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import Float, positive_int
from ..federation import CheckedRound
from ..memory import StaleMemory
from ..participation import LeastRecent, Selection
from ..rule_state import RuleState, held_by_clients
from ..state import State
from .base import Rule
from .mifa import SAG, refreshed_mean


@dataclass(eq=False, kw_only=True)
class LastState(RuleState):
    """What FedLaAvg remembers."""

    last: StaleMemory = held_by_clients()
    """each client's last update; the server keeps their running sum"""


@dataclass(frozen=True, kw_only=True)
class FedLaAvg(Rule):
    """Δ = Σ_i α_i h_i, the server's running average of everybody's latest update.

    Parameters
    ----------
    m
        How many of the available clients are asked, those that took part longest ago; None asks all of them.
    """

    m: int | None = None

    name: ClassVar[str] = "fedlaavg"
    client_memory: ClassVar[int] = 1
    takes_late: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m is not None:
            positive_int("m", self.m)

    def start(self, state: State) -> RuleState:
        """No client has an update yet."""
        return LastState(last=state.remember("last", exact=True))

    def selection(self) -> Selection | None:
        """The least recently used of the available clients."""
        return None if self.m is None else LeastRecent(self.m)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Add what changed at the participants."""
        return refreshed_mean(state.own(LastState).last, state.federation, round, round.updates)

    def take_late(self, state: State, late: CheckedRound) -> None:
        """Add what changed at clients of an earlier round."""
        state.own(LastState).last.replace(late.clients, late.updates, state.federation.masses(late.clients))
