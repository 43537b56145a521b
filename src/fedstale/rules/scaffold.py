"""SCAFFOLD: control variates at the clients.

Karimireddy, Kale, Mohri, Reddi, Stich & Suresh, SCAFFOLD: stochastic controlled averaging for federated learning,
ICML 2020.

    local gradient + c − c_i,   Δ = (1/|S|) Σ_S Δ_i,   c ← c + Σ_S α_i (c_i⁺ − c_i)   (α_i = 1/N in the paper)
    option I:   c_i⁺ = g_i(w_t), the gradient at the server's model: one more pass over the round's samples
    option II:  c_i⁺ = c_i − c + Δ_i / (K η_c)

c = Σ α_i c_i at all times, so the running sum of the clients' memory is the server's c. Model and c go down, update and
change of c_i go up: twice the communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..checks import Float, fail
from ..federation import CheckedRound, Ints
from ..memory import StaleMemory
from ..memory.kernel import Mix, weighted_sum
from ..rule_state import RuleState, held_by_clients
from ..state import State
from .averaging import round_weights
from .base import Local, Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class ScaffoldState(RuleState):
    """What SCAFFOLD remembers."""

    control: StaleMemory = held_by_clients()
    """c_i; the server keeps c, their running sum"""


@dataclass(frozen=True, kw_only=True)
class Scaffold(Rule):
    """FedAvg of updates whose local gradients were corrected by c − c_i. Needs η_c and K in the rounds.

    Parameters
    ----------
    option
        "II" (default) reuses the local steps for c_i⁺, "I" computes a gradient at w_t.
    """

    option: Literal["I", "II"] = "II"

    name: ClassVar[str] = "scaffold"
    asynchronous: ClassVar[bool] = False
    upload: ClassVar[int] = 2
    download: ClassVar[int] = 2
    client_memory: ClassVar[int] = 1
    caveat: ClassVar[str] = (
        "assumes that all clients participate with the same probability; otherwise its average is biased"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option not in ("I", "II"):
            raise fail("option", self.option, 'must be "I" or "II"')

    def start(self, state: State) -> RuleState:
        """All c_i, and so c, start at 0."""
        return ScaffoldState(control=state.remember("control", exact=True))

    def local(self, state: State, clients: Ints) -> Local | None:
        """Correct every participant's gradients by c − c_i."""
        control = state.own(ScaffoldState).control
        return Local(linear=control.total / state.federation.total_mass - control.rows(clients))

    def second_pass(self, state: State, clients: Ints) -> Local | None:
        """Option I: the gradient at w_t, uncorrected."""
        return Local(gradient=True) if self.option == "I" else None

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the updates, then renew the participants' control variates."""
        delta = weighted_sum(round.updates, round_weights(round), state.federation.num_params)
        refuse_non_finite(round, delta)
        if not round.size:
            return delta
        control = state.own(ScaffoldState).control
        if self.option == "I":
            renewed = np.stack(round.second_pass) / round.lr
        else:
            c = control.total / state.federation.total_mass
            renewed = np.stack(round.updates) / round.travelled[:, None] + (control.rows(round.clients) - c)
        masses = state.federation.masses(round.clients)
        mix = Mix(np.ones(round.size), np.zeros(round.size), 0.0, masses)
        exchange = control.prepare_exchange(round.clients, list(renewed), mix)
        refuse_non_finite(round, exchange.sums.mix)
        exchange.commit()
        return delta
