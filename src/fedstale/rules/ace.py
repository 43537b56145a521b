"""ACE and ACED: with every reply a step along the mean of all clients' latest updates; ACED leaves out the old ones.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak & Roy-Chowdhury, Mitigating participation imbalance bias
in asynchronous federated learning, 2025 (arXiv 2511.19066), Algorithms 1 and 2.

    h_i ← Δ_i for i ∈ S,   then   Δ = Σ_A α_i h_i / Σ_A α_j
    ACE:  A = everybody who has answered;   ACED:  A = {i : t − v_i ≤ max_age}  (the paper's τ_algo)

v_i is the server step whose model h_i was computed from; where A is empty the model stays. The paper has α_i = 1/N, one
gradient for Δ_i and a server that steps with every reply; with more local steps or a buffer the formulas are the same.

Checked against the paper's abstract and programs that seem to be its authors' (github.com/xchang1121/AsyncFL), not
against the text of its algorithms, which was not at hand. Two things differ from the programs. They begin with an
update of every client, which a federation cannot have whose clients are away: here A grows as clients answer, unless
ACE is told to `wait`. And their ACED counts a client's age from when it was last given a model, not from the model of
its update.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, positive_int
from ..federation import CheckedRound, Ints
from ..memory.kernel import Mix
from ..rule_state import MemoryState, RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite
from .mifa import SAG


@dataclass(eq=False, kw_only=True)
class RecentState(MemoryState):
    """What ACE and ACED remember."""

    version: Ints = per_client(fill=-1)
    """v_i, the step whose model h_i was computed from; −1 for a client that is not in A, shape (N,)"""
    rounds_lost: int = 0
    """steps in which ACE waited"""


@dataclass(frozen=True, kw_only=True)
class _LatestUpdates(Rule):
    """Δ = Σ_A α_i h_i / Σ_A α_j."""

    memory: ClassVar[bool] = True
    takes_late: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def start(self, state: State) -> RuleState:
        """Nobody has answered."""
        n = state.federation.num_clients
        return RecentState(stale=state.remember(), version=np.full(n, -1, dtype=np.int64))

    @abstractmethod
    def _oldest(self, index: int) -> int:
        """The least v_i in A."""

    def update(self, state: State, round: CheckedRound) -> Float:
        """Refresh the rows of those who answered, leave out what has become too old, and average the rest."""
        own, federation = state.own(RecentState), state.federation
        oldest = self._oldest(round.index)
        version = own.version.copy()
        version[round.clients] = round.index - round.ages.astype(np.int64)
        gone = np.flatnonzero((own.version >= 0) & (version < oldest)).astype(np.int64)
        gone = gone[~np.isin(gone, round.clients)]
        young = version[round.clients] >= oldest
        masses = np.where(young, federation.masses(round.clients), 0.0)
        exchange = own.stale.prepare_exchange(
            round.clients, round.updates, Mix(masses, own.stale.masses[round.clients], 1.0, masses)
        )
        refuse_non_finite(round, exchange.sums.mix)
        exchange.commit()
        if len(gone):
            own.stale.replace(gone, own.stale.rows(gone), 0.0)  # the rows stay, and count no more
        version[version < oldest] = -1
        own.version = version
        total = float(federation.masses(np.flatnonzero(version >= 0)).sum())
        state.report["active_clients"] = float((version >= 0).sum())
        return own.stale.total / total if total > 0 else np.zeros(federation.num_params)

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i of an earlier round."""
        own = state.own(RecentState)
        own.stale.replace(late.clients, late.updates, state.federation.masses(late.clients))
        own.version[late.clients] = late.index - late.ages.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class ACE(_LatestUpdates):
    """Δ = Σ_A α_i h_i / Σ_A α_j over everybody who has answered: MIFA's mean, run asynchronously.

    Parameters
    ----------
    wait
        Do not move the model before every client has answered, as in the paper.
    """

    wait: bool = False

    name: ClassVar[str] = "ace"

    def _oldest(self, index: int) -> int:
        return 0

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average everybody's latest update."""
        delta, own = super().update(state, round), state.own(RecentState)
        if self.wait and (state.federation.masses(np.flatnonzero(own.version < 0)) > 0).any():
            own.rounds_lost += 1
            delta = np.zeros_like(delta)
        state.report["rounds_lost"] = float(own.rounds_lost)
        return delta


@dataclass(frozen=True, kw_only=True)
class ACED(_LatestUpdates):
    """Δ = Σ_A α_i h_i / Σ_A α_j over the clients whose latest update is not too old.

    Parameters
    ----------
    max_age
        The most server steps since the model that an update was computed from (the paper's τ_algo).
    """

    max_age: int = 50

    name: ClassVar[str] = "aced"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("max_age", self.max_age, 0)

    def _oldest(self, index: int) -> int:
        return index - self.max_age
