"""FedSteer: what a client would send is predicted from the others' latest updates, by coordinates fitted when it came.

Zhang, Pereira, Siew, Liu, Joe-Wong & El-Azouzi, FedSteer: taming extreme gradient staleness in federated learning with
corrective projections and caching, UAI 2026 (arXiv 2606.10124).

    q_1 … q_k: the last updates of a core set of k clients;   x_i = Σ_j s_ij q_j predicts Δ_i
    s_i ← argmin_s ‖Δ_i/‖Δ_i‖ − Σ_j s_j q_j/‖q_j‖‖² + λ‖s‖², scaled back, for i ∈ S
    Δ = Σ_i α_i x_i + Σ_S (α_i/p_i)(Δ_i − x_i),   then   q_j ← Δ_j for j ∈ S in the core set

A client that stays away keeps its coordinates s_i, while the q_j move on with those who come: that is the steering.

Refitted first, as in the paper, the x_i of those who come are not the x_i that would have been used had they stayed
away, and E[Δ] = Σ α_i Δ_i + Σ α_i (1 − p_i)(x_i before the fit − x_i after it). `UnbiasedFedSteer` fits afterwards: the
same x_i in both terms, whoever comes. (`tests/rules/test_rivals.py` sums over all participation sets.)

The reading here is that of the authors' code where the paper's text could not be had: the q_j are those of before the
round. Two things differ. The paper chooses the core set by matching pursuit on fresh updates of all clients, which
needs everybody in the first rounds; here it is the first k who come, and with k ≥ N it is everybody. The paper's λ is
p_i/α_i² times a constant; here it is the same for all, so that it does not depend on N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, fail, number, positive_int
from ..federation import CheckedRound, Ints, all_finite
from ..memory import StaleMemory
from ..memory.kernel import weighted_sum
from ..rule_state import RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class SteeringState(RuleState):
    """What FedSteer remembers."""

    directions: StaleMemory
    """q_j: the last updates of the core set, and no others"""
    place: Ints = per_client(fill=-1)
    """j of the clients in the core set, −1 of the others, shape (N,)"""
    taken: int = 0
    """how many clients there have been in the core set"""
    coordinates: Float = per_client()
    """s_i, shape (N, k)"""


@dataclass(frozen=True, kw_only=True)
class FedSteer(Rule):
    """Δ = Σ_i α_i x_i + Σ_S (α_i/p_i)(Δ_i − x_i) with x_i = Σ_j s_ij q_j, and s_i fitted to Δ_i first for i ∈ S.

    Parameters
    ----------
    core
        k, how many clients the updates of which are kept; a round costs O((k + |S|)·k·d + N·k).
    ridge
        λ > 0, on directions of length 1: the larger, the smaller are the coordinates.
    """

    core: int = 32
    ridge: float = 0.01

    name: ClassVar[str] = "fedsteer"
    takes_late: ClassVar[bool] = True
    refit_first: ClassVar[bool] = True
    """Whether coordinates are fitted before they are used in the same round."""
    caveat: ClassVar[str] = (
        "fits its forecasts to the participants in the round that uses them, and is biased by that (see u-fedsteer)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("core", self.core)
        number("ridge", self.ridge, 0.0, open_low=True)

    def start(self, state: State) -> RuleState:
        """Nobody is in the core set, and every forecast is 0."""
        n = state.federation.num_clients
        return SteeringState(
            directions=state.remember("directions", exact=True),
            place=np.full(n, -1, dtype=np.int64),
            coordinates=np.zeros((n, min(self.core, n))),
        )

    def update(self, state: State, round: CheckedRound) -> Float:
        """The forecasts of everybody, and the correction by those who came."""
        own, federation = state.own(SteeringState), state.federation
        weights = round.alpha / round.probabilities
        delta = weighted_sum(round.updates, weights, federation.num_params)
        refuse_non_finite(round, delta)
        directions = self._directions(own)
        fitted = own.coordinates.copy()
        fitted[round.clients] = self._fit(directions, round)
        used = fitted if self.refit_first else own.coordinates
        delta += (federation.alpha() @ used - weights @ used[round.clients]) @ directions
        refuse_non_finite(round, delta)
        own.coordinates = fitted
        self._keep(own, round)
        return delta

    def take_late(self, state: State, late: CheckedRound) -> None:
        """s_i is fitted to Δ_i of an earlier round, and q_i ← Δ_i for i in the core set."""
        if not all(all_finite(row) for row in late.updates):
            raise fail("updates", "non-finite numbers", "every update must be finite")
        own = state.own(SteeringState)
        own.coordinates[late.clients] = self._fit(self._directions(own), late)
        self._keep(own, late)

    def _directions(self, own: SteeringState) -> Float:
        """q_j in the order of their coordinates, shape (k, d); 0 where there is none."""
        directions = np.zeros((own.coordinates.shape[1], own.directions.num_params))
        members = np.flatnonzero(own.place >= 0)
        directions[own.place[members]] = own.directions.rows(members)
        return directions

    def _fit(self, directions: Float, round: CheckedRound) -> Float:
        """s_i of those who came, shape (|S|, k); the length of Δ_i goes in and out of the fit, so it needs no care."""
        lengths = np.linalg.norm(directions, axis=1)
        units = directions / np.where(lengths > 0, lengths, 1.0)[:, None]
        inner = np.array([units @ np.asarray(row, dtype=np.float64) for row in round.updates])
        solved = np.linalg.solve(units @ units.T + self.ridge * np.eye(len(units)), inner.reshape(-1, len(units)).T).T
        return np.asarray(np.divide(solved, lengths, out=np.zeros_like(solved), where=lengths > 0))

    def _keep(self, own: SteeringState, round: CheckedRound) -> None:
        """q_j ← Δ_j; while there is room in the core set, who comes for the first time is taken into it."""
        room = own.coordinates.shape[1] - own.taken
        new = round.clients[own.place[round.clients] < 0][:room]
        own.place[new] = own.taken + np.arange(len(new))
        own.taken += len(new)
        members = np.flatnonzero(own.place[round.clients] >= 0)
        own.directions.replace(round.clients[members], [round.updates[int(k)] for k in members], masses=0.0)


@dataclass(frozen=True, kw_only=True)
class UnbiasedFedSteer(FedSteer):
    """Δ = Σ_i α_i x_i + Σ_S (α_i/p_i)(Δ_i − x_i), then s_i is fitted to Δ_i for i ∈ S: always unbiased."""

    name: ClassVar[str] = "u-fedsteer"
    unbiased: ClassVar[bool] = True
    refit_first: ClassVar[bool] = False
    caveat: ClassVar[str] = ""
