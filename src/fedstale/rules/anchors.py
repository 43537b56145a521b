"""What SVRG, SCSG, SARAH and SPIDER share: anchor rounds that need (nearly) every client.

These methods were made for one machine that can compute a full gradient whenever it likes. A federation cannot: the
paper calls the demand that all clients take part in certain rounds impractical. Here it is simulated kindly. While an
anchor is being computed the model stands still, whoever comes contributes once, and the anchor is complete
when enough clients have; every round in which the model did not move is counted as lost (`rounds_lost`). The update
Δ_i(w) of K local steps from w stands in for the gradient of client i at w, and a client that trains from two models
uses the same batches for both.

Between anchors a participant fetches two models (w_t and the reference w̃) and sends one vector, Δ_i(w_t) − Δ_i(w̃).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail, positive_int
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..rule_state import RuleState, per_client
from ..state import State
from .averaging import round_weights
from .base import Local, Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class AnchorState(RuleState):
    """What a rule with anchors remembers."""

    seen: NDArray[np.bool_] = per_client(fill=False)
    """who has contributed to the anchor that is being computed, shape (N,)"""
    sum: Float
    """their updates, weighted, shape (d,)"""
    update: Float
    """g̃ or v: the update of the last anchor, or as moved along since, shape (d,)"""
    model: Float | None = None
    """w̃, the model that `update` was computed at, shape (d,)"""
    left: int = 0
    """rounds until the next anchor; 0 while one is being computed"""
    rounds_lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Anchored(Rule):
    """A rule with anchors.

    Parameters
    ----------
    period
        Rounds between two anchors.
    """

    period: int = 20

    download: ClassVar[int] = 2
    asynchronous: ClassVar[bool] = False
    caveat: ClassVar[str] = (
        "assumes full rounds, and uniformly sampled clients in between; otherwise its correction is biased"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("period", self.period)

    @property
    def required(self) -> float:
        """The share of the clients that an anchor needs."""
        return 1.0

    def length(self, round: int) -> int:
        """How many rounds follow an anchor that was completed in this round."""
        return self.period

    def start(self, state: State) -> RuleState:
        """The first anchor is the first model."""
        n, d = state.federation.num_clients, state.federation.num_params
        return AnchorState(seen=np.zeros(n, dtype=np.bool_), sum=np.zeros(d), update=np.zeros(d))

    def anchoring(self, state: State) -> bool:
        """Whether an anchor is being computed."""
        return state.own(AnchorState).left == 0

    def second_pass(self, state: State, clients: Ints) -> Local | None:
        """Between anchors, the same batches once more from the reference model."""
        if self.anchoring(state):
            return None
        reference = state.own(AnchorState).model
        if reference is None:
            raise fail("model", None, "clients also train from the anchor's model: pass model=w to init")
        return Local(start=reference)

    def traffic(self, state: State, clients: Ints) -> tuple[int, int]:
        """While an anchor is being computed, only clients that have not contributed yet."""
        if self.anchoring(state):
            new = int((~state.own(AnchorState).seen[clients]).sum())
            return new, new
        return super().traffic(state, clients)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Work on the anchor, or use it."""
        own = state.own(AnchorState)
        if self.anchoring(state):
            delta = self._anchor(state, round)
        else:
            delta = self._between(state, round)
            own.left -= 1
        state.report["rounds_lost"] = float(own.rounds_lost)
        return delta

    def _anchor(self, state: State, round: CheckedRound) -> Float:
        federation, own = state.federation, state.own(AnchorState)
        seen = own.seen
        masses = np.where(seen[round.clients], 0.0, federation.masses(round.clients))
        total = own.sum + weighted_sum(round.updates, masses, federation.num_params)
        refuse_non_finite(round, total)
        own.sum = total
        seen[round.clients] = True
        if not self._complete(state):
            own.rounds_lost += 1
            return np.zeros(federation.num_params)
        update: Float = total / federation.masses(np.flatnonzero(seen)).sum()
        own.sum, own.update = np.zeros_like(total), update
        seen[:] = False
        self._remember_model(state)
        own.left = self.length(round.index)
        return update.copy()

    def _complete(self, state: State) -> bool:
        seen = state.own(AnchorState).seen
        if seen.sum() < math.ceil(self.required * len(seen) - 1e-9):
            missing = np.flatnonzero(~seen)
            return self.required == 1.0 and not (state.federation.masses(missing) > 0).any()
        return bool(state.federation.masses(np.flatnonzero(seen)).sum() > 0)

    def _remember_model(self, state: State) -> None:
        if state.model is not None:
            state.own(AnchorState).model = state.model.copy()

    @abstractmethod
    def _between(self, state: State, round: CheckedRound) -> Float:
        """Compute Δ between anchors."""

    def _correction(self, state: State, round: CheckedRound) -> Float:
        """(1/|S|) Σ_S (Δ_i(w_t) − Δ_i(w̃))."""
        if not round.size:
            return np.zeros(state.federation.num_params)
        weights = round_weights(round)
        rows, signed = [*round.updates, *round.second_pass], np.concatenate([weights, -weights])
        result = weighted_sum(rows, signed, state.federation.num_params)
        refuse_non_finite(round, result)
        return result
