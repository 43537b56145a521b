"""SARAH over clients: a recursive estimate of the full update.

Nguyen, Liu, Scheinberg & Takáč, SARAH: a novel method for machine learning problems using stochastic recursive
gradient, ICML 2017.

    anchor:    v = Σ_i α_i Δ_i(w_t) of all clients,  Δ = v
    between:   v ← v + (1/|S|) Σ_S (Δ_i(w_t) − Δ_i(w_{t−1})),  Δ = v

In a round in which nobody comes v stays, and w_{t−1} stays the model that v was last made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import Float
from ..federation import CheckedRound
from ..state import State
from .anchors import Anchored, AnchorState


@dataclass(frozen=True, kw_only=True)
class SARAH(Anchored):
    """The anchor's full update, moved along from round to round; see `Anchored`."""

    name: ClassVar[str] = "sarah"

    def _between(self, state: State, round: CheckedRound) -> Float:
        own = state.own(AnchorState)
        moved = own.update = own.update + self._correction(state, round)
        if round.size:
            self._remember_model(state)
        return moved.copy()
