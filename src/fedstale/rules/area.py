"""AREA: the model is the exact average of the clients' latest models, however often each of them answers.

Iakovidou & Kim, Asynchronous federated stochastic optimization for heterogeneous objectives under arbitrary delays,
2024 (arXiv 2405.10123, asynchronous exact averaging).

    client i: w_i after local steps from the model it fetched; sends w_i − y_i and keeps y_i ← w_i  (y_i = w_1 at first)
    server:   w ← w + Σ_S α_i (w_i − y_i),   so that always   w = Σ_i α_i y_i

The paper has α_i = 1/N. Implemented is the variant in which a client remembers the model that it sent. With
h_i = w_1 − y_i and H = Σ_i α_i h_i = w_1 − w_t, a client's new h_i is H + Δ_i, Δ_i = w_t − w_i, and the step is
Δ = Σ_S α_i (h_i⁺ − h_i): nothing but H is kept at the server. The average is exact for η_s = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import Float
from ..federation import CheckedRound
from ..memory import StaleMemory
from ..memory.kernel import Mix
from ..rule_state import RuleState, held_by_clients
from ..state import State
from .base import Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class AreaState(RuleState):
    """What AREA remembers."""

    sent: StaleMemory = held_by_clients()
    """h_i = w_1 − y_i; the server keeps their running sum"""


@dataclass(frozen=True, kw_only=True)
class AREA(Rule):
    """w = Σ_i α_i y_i, the average of everybody's latest model."""

    name: ClassVar[str] = "area"
    client_memory: ClassVar[int] = 1
    answers_with_model: ClassVar[bool] = True

    def start(self, state: State) -> RuleState:
        """Everybody has the first model."""
        return AreaState(sent=state.remember("sent", exact=True))

    def update(self, state: State, round: CheckedRound) -> Float:
        """Replace the models of those who answered."""
        sent, federation = state.own(AreaState).sent, state.federation
        total = federation.total_mass
        rows = [sent.total / total + row for row in round.updates]
        mix = Mix(round.alpha, sent.masses[round.clients] / total, 0.0, federation.masses(round.clients))
        exchange = sent.prepare_exchange(round.clients, rows, mix)
        refuse_non_finite(round, exchange.sums.mix)
        exchange.commit()
        return exchange.sums.mix
