"""FedDyn: dynamic regularisation at the clients.

Acar, Zhao, Matas, Mattina, Whatmough & Saligrama, Federated learning based on dynamic regularization, ICLR 2021.

    local gradient − λ_i + a (w − w_t),   then   λ_i ← λ_i + a Δ_i
    h ← h + a Σ_S α_i Δ_i   (α_i = 1/N in the paper),   Δ = (1/|S|) Σ_S Δ_i + h/a

The paper solves the local problem exactly. With K local steps h/a acts like a momentum that never fades, unless the
regulariser is strong enough to be felt within them: a ≈ 1/(K η_c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, number
from ..federation import CheckedRound, Ints
from ..memory import StaleMemory
from ..memory.kernel import weighted_sum
from ..rule_state import RuleState, held_by_clients
from ..state import State
from .averaging import round_weights
from .base import Local, Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class DynState(RuleState):
    """What FedDyn remembers."""

    dual: StaleMemory = held_by_clients()
    """λ_i; h = Σ α_i λ_i at all times, so the server keeps h, their running sum"""


@dataclass(frozen=True, kw_only=True)
class FedDyn(Rule):
    """The participants' mean update, and the pull h that their regularisers leave.

    Parameters
    ----------
    a
        The paper's α, the strength of the regulariser; the default suits K = 5 steps of η_c = 0.1.
    """

    a: float = 2.0

    name: ClassVar[str] = "feddyn"
    asynchronous: ClassVar[bool] = False
    client_memory: ClassVar[int] = 1
    caveat: ClassVar[str] = (
        "assumes that all clients participate with the same probability; otherwise its average is biased"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        number("a", self.a, 0.0, open_low=True)

    def start(self, state: State) -> RuleState:
        """λ_i and h start at 0."""
        return DynState(dual=state.remember("dual", exact=True))

    def local(self, state: State, clients: Ints) -> Local | None:
        """−λ_i and the proximal term."""
        return Local(linear=-state.own(DynState).dual.rows(clients), prox=self.a)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the models, then correct them by h."""
        mean = weighted_sum(round.updates, round_weights(round), state.federation.num_params)
        refuse_non_finite(round, mean)
        dual = state.own(DynState).dual
        if round.size:
            renewed = dual.rows(round.clients) + self.a * np.stack(round.updates).astype(np.float64)
            dual.replace(round.clients, renewed, state.federation.masses(round.clients))
        return mean + dual.total / (state.federation.total_mass * self.a)
