"""ACE and ACED: with every reply a step along the mean of all clients' latest updates; ACED leaves out the old ones.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak & Roy-Chowdhury, Mitigating participation imbalance bias
in asynchronous federated learning, 2025 (arXiv 2511.19066).

    h_i ← Δ_i for i ∈ S;   ACE: Δ = Σ_i α_i h_i;   ACED: Δ = Σ_A α_i h_i / Σ_A α_j,  A = {i : t − v_i ≤ max_age}

v_i is the server step whose model h_i was computed from. The paper's server steps with every reply (asynchronous); with
a buffer they are the same formulas over more fresh rows. ACE's is MIFA's (Gu et al., NeurIPS 2021), whose paper has
rounds. A client that has not answered yet has h_i = 0 in ACE, and is not in A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, positive_int
from ..federation import CheckedRound, Ints
from ..memory.kernel import Mix
from ..rule_state import MemoryState, RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite
from .mifa import MIFA, SAG


@dataclass(frozen=True, kw_only=True)
class ACE(MIFA):
    """Δ = Σ_i α_i h_i with h_i already refreshed: MIFA, run asynchronously."""

    name: ClassVar[str] = "ace"


@dataclass(eq=False, kw_only=True)
class RecentState(MemoryState):
    """What ACED remembers."""

    version: Ints = per_client(fill=-1)
    """v_i, the step whose model h_i was computed from; −1 for a client that is not in A, shape (N,)"""


@dataclass(frozen=True, kw_only=True)
class ACED(Rule):
    """Δ = Σ_A α_i h_i / Σ_A α_j over the clients whose latest update is not too old.

    Parameters
    ----------
    max_age
        The most server steps since the model that an update was computed from (the paper's τ_algo).
    """

    max_age: int = 50

    name: ClassVar[str] = "aced"
    memory: ClassVar[bool] = True
    caveat: ClassVar[str] = SAG

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("max_age", self.max_age, 0)

    def start(self, state: State) -> RuleState:
        """Nobody has answered."""
        n = state.federation.num_clients
        return RecentState(stale=state.remember(), version=np.full(n, -1, dtype=np.int64))

    def update(self, state: State, round: CheckedRound) -> Float:
        """Refresh the rows of those who answered, leave out what has become too old, and average the rest."""
        own, federation = state.own(RecentState), state.federation
        oldest = round.index - self.max_age
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
