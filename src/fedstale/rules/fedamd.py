"""FedAMD: some of those who come renew the anchors, the others walk along them.

Wu, Guo, Qu, He, Liu & Gao, Anchor sampling for federated learning with partial client participation, ICML 2023.

    anchors (each participant with probability q):   v_i ← ∇F_i(w_t), on all samples of its round
    miners (the others):   g_0 = v = Σ α_i v_i,   g_k = g_{k−1} + ∇f_i(w_k; B_k) − ∇f_i(w_{k−1}; B_k),
                           w_{k+1} = w_k − η_c g_k
    Δ = (1/|miners|) Σ_miners (w_t − w_K)

In the paper every client computes an anchor before the first round. Here v is the mean over those that have one, and
while nobody has, all who come are anchors. A round without miners does not move the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, positive_int, probability
from ..federation import CheckedRound, Ints
from ..memory import StaleMemory
from ..memory.kernel import Mix, weighted_sum
from ..randomness import generator
from ..rule_state import RuleState
from ..state import State
from .base import Local, Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class FedAMDState(RuleState):
    """What FedAMD remembers."""

    anchors: StaleMemory
    """v_i"""


@dataclass(frozen=True, kw_only=True)
class FedAMD(Rule):
    """The mean of the miners' updates, guided by remembered gradients of everybody. Needs η_c in the rounds.

    Parameters
    ----------
    anchors
        q, the probability that a participant renews its anchor instead of mining.
    seed
        Decides who does.
    """

    anchors: float = 0.2
    seed: int = 0

    name: ClassVar[str] = "fedamd"
    asynchronous: ClassVar[bool] = False
    download: ClassVar[int] = 2
    caveat: ClassVar[str] = (
        "assumes uniformly sampled clients; otherwise the mean of its miners is biased towards those who come often"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        probability("anchors", self.anchors)
        positive_int("seed", self.seed, 0)

    def start(self, state: State) -> RuleState:
        """Nobody has an anchor."""
        return FedAMDState(anchors=state.remember("anchors", exact=True))

    def local(self, state: State, clients: Ints) -> Local | None:
        """Walk from v; what anchors compute on the way is not used."""
        return Local(linear=np.tile(self._direction(state), (len(clients), 1)), recursive=True)

    def second_pass(self, state: State, clients: Ints) -> Local | None:
        """The gradient at w_t; what miners compute is not used."""
        return Local(gradient=True)

    def traffic(self, state: State, clients: Ints) -> tuple[int, int]:
        """Everybody sends one vector; anchors need the model, miners the model and v."""
        anchors = int(self._anchors(state, state.round, clients).sum())
        return len(clients), 2 * len(clients) - anchors

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the miners, then renew the anchors."""
        anchors = self._anchors(state, round.index, round.clients)
        mined = np.where(anchors, 0.0, round.alpha)
        delta = weighted_sum(round.updates, mined / (mined.sum() or 1.0), state.federation.num_params)
        refuse_non_finite(round, delta)
        which = np.flatnonzero(anchors)
        if len(which):
            clients = round.clients[which]
            gradients = [np.asarray(round.second_pass[int(k)] / round.lr) for k in which]
            mix = Mix(np.ones(len(which)), np.zeros(len(which)), 0.0, state.federation.masses(clients))
            exchange = state.own(FedAMDState).anchors.prepare_exchange(clients, gradients, mix)
            refuse_non_finite(round, exchange.sums.mix)
            exchange.commit()
        state.report["anchors"] = float(len(which))
        return delta

    def _direction(self, state: State) -> Float:
        """Return v, the mean over the clients that have an anchor."""
        memory = state.own(FedAMDState).anchors
        return np.asarray(memory.total / (memory.masses[memory.seen].sum() or 1.0))

    def _anchors(self, state: State, index: int, clients: Ints) -> NDArray[np.bool_]:
        """Who of the participants renews its anchor."""
        if not len(state.own(FedAMDState).anchors.seen):
            return np.ones(len(clients), dtype=np.bool_)
        drawn = [generator(self.seed, "fedamd anchors", index, int(client)).random() for client in clients]
        return np.array(drawn, dtype=np.float64) < self.anchors
