"""SPIDER over clients: SARAH's recursion with large-batch anchors and steps of bounded length.

Fang, Li, Lin & Zhang, SPIDER: near-optimal non-convex optimization via stochastic path-integrated differential
estimator, NeurIPS 2018.

    anchor:    v = mean of Δ_i(w_t) over the first ⌈share · N⌉ clients that come
    between:   v ← v + (1/|S|) Σ_S (Δ_i(w_t) − Δ_i(w_{t−1}))
    always:    Δ = min(1, clip / ‖v‖) v
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, number, probability
from ..federation import CheckedRound
from ..state import State
from .sarah import SARAH


@dataclass(frozen=True, kw_only=True)
class SPIDER(SARAH):
    """SARAH with cheaper anchors and steps that cannot be longer than `clip`.

    Parameters
    ----------
    share
        The share of the clients that an anchor needs.
    clip
        The largest ‖Δ‖, the paper's ε/(L n₀); None (default) never clips, because no length suits every model.
    """

    share: float = 0.75
    clip: float | None = None

    name: ClassVar[str] = "spider"

    def __post_init__(self) -> None:
        super().__post_init__()
        probability("share", self.share)
        if self.clip is not None:
            number("clip", self.clip, 0.0, open_low=True)

    @property
    def required(self) -> float:
        """The share."""
        return self.share

    def update(self, state: State, round: CheckedRound) -> Float:
        """As SARAH, with a bounded step."""
        delta = super().update(state, round)
        if self.clip is None or (norm := float(np.linalg.norm(delta))) <= self.clip:
            return delta
        return delta * (self.clip / norm)
