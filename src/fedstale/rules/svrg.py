"""SVRG over clients.

Johnson & Zhang, Accelerating stochastic gradient descent using predictive variance reduction, NIPS 2013.

    anchor:    w̃ = w_t,  g̃ = Σ_i α_i Δ_i(w̃) of all clients,  Δ = g̃
    between:   Δ = g̃ + (1/|S|) Σ_S (Δ_i(w_t) − Δ_i(w̃))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import Float
from ..federation import CheckedRound
from ..state import State
from .anchors import Anchored, AnchorState


@dataclass(frozen=True, kw_only=True)
class SVRG(Anchored):
    """The anchor's full update, corrected by how far the participants have moved since; see `Anchored`."""

    name: ClassVar[str] = "svrg"

    def _between(self, state: State, round: CheckedRound) -> Float:
        return state.own(AnchorState).update + self._correction(state, round)
