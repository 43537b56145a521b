"""FedAWE: every client has a model of its own, and who returns makes up for the rounds that it missed.

Xiang, Ioannidis, Yeh, Joe-Wong & Su, Efficient federated learning against heterogeneous and non-stationary client
unavailability, NeurIPS 2024, Algorithm 1.

    client i ∈ S: K local steps from its own model x_i, which it fetched when it last took part, in round τ_i
    w_{t+1} = (1/|S|) Σ_S (x_i − η_s (t − τ_i) Δ_i),   then   x_i ← w_{t+1} for i ∈ S;   x_i = w_0 and τ_i = −1 at first

The factor t − τ_i echoes the update once for every round missed. The server sends w_{t+1} at the end of a round, and to
those who took part alone: averaging models that were fetched at different times is the paper's implicit gossip. It
needs no p_i. In the form of a rule, with averages weighted by α_i as everywhere,

    Δ = (1/|S|) Σ_S ((w_t − x_i)/η_s + (t − τ_i) Δ_i);   nobody comes: the model stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail
from ..federation import CheckedRound, Ints
from ..memory import StaleMemory
from ..memory.kernel import weighted_sum
from ..rule_state import RuleState, held_by_clients
from ..state import State
from .averaging import round_weights
from .base import Local, Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class OwnModelsState(RuleState):
    """What FedAWE remembers; clients whose x_i is the server's present model have no row."""

    apart: StaleMemory = held_by_clients()
    """x_i − w_0"""
    first: NDArray[Any] | None = held_by_clients()
    """w_0, shape (d,)"""
    founders: int
    """how many clients there were at first; who joins later starts with the model of the round it first comes to"""


@dataclass(frozen=True, kw_only=True)
class FedAWE(Rule):
    """w_{t+1} = (1/|S|) Σ_S (x_i − η_s (t − τ_i) Δ_i). Needs the model: pass it to `init`."""

    name: ClassVar[str] = "fedawe"
    asynchronous: ClassVar[bool] = False
    client_memory: ClassVar[int] = 1

    def start(self, state: State) -> RuleState:
        """Everybody has w_0."""
        first = None if state.model is None else state.model.copy()
        apart = state.remember("apart", exact=True)
        return OwnModelsState(apart=apart, first=first, founders=state.federation.num_clients)

    def local(self, state: State, clients: Ints) -> Local | None:
        """Everybody starts from its own model."""
        return Local(start=self._models(state, clients)) if len(clients) else None

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the participants' models, each with its echoed update; who stays away keeps the present model."""
        own, weights = state.own(OwnModelsState), round_weights(round)
        missed = np.where(self._joined(state, round.clients), 1, round.index - state.last_seen[round.clients])
        delta = weighted_sum(round.updates, weights * missed, state.federation.num_params)
        elsewhere = np.flatnonzero(~self._has_present(state, round.clients))
        if elsewhere.size:
            models = self._models(state, round.clients[elsewhere])
            delta += weights[elsewhere] @ (self._known(state)[0] - models.astype(np.float64)) / self.server_lr
        refuse_non_finite(round, delta)
        if state.model is not None and own.first is not None:
            came_last = np.flatnonzero((state.last_seen == state.round - 1) & (state.last_seen >= 0))
            leaving = np.setdiff1d(came_last, round.clients)
            present = np.subtract(state.model, own.first, dtype=np.float64)
            own.apart.replace(leaving, [present] * len(leaving), masses=0.0)
        return delta

    def _joined(self, state: State, clients: Ints) -> NDArray[np.bool_]:
        """Who was not there at first and comes for the first time."""
        return np.asarray((state.last_seen[clients] < 0) & (clients >= state.own(OwnModelsState).founders))

    def _has_present(self, state: State, clients: Ints) -> NDArray[np.bool_]:
        """Whose model is w_t: those of the last round, at first everybody, and who joins."""
        return np.asarray((state.last_seen[clients] == state.round - 1) | self._joined(state, clients))

    def _models(self, state: State, clients: Ints) -> NDArray[Any]:
        """x_i, shape (n, d)."""
        model, first = self._known(state)
        models: NDArray[Any] = (first + state.own(OwnModelsState).apart.rows(clients)).astype(model.dtype)
        models[self._has_present(state, clients)] = model
        return models

    def _known(self, state: State) -> tuple[NDArray[Any], NDArray[Any]]:
        """w_t and w_0."""
        first = state.own(OwnModelsState).first
        if state.model is None or first is None:
            raise fail("model", None, "clients train from their own models: pass model=w to init")
        return state.model, first
