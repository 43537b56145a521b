"""Rules without memory: FedAvg (Eq. 2) and unbiased FedAvg (Eq. 5).

McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float
from ..federation import CheckedRound
from ..memory.kernel import weighted_sum
from ..state import State
from .base import Rule, refuse_non_finite


def round_weights(round: CheckedRound) -> Float:
    """α_i / Σ_S α_j: 1/|S| when every client weighs the same."""
    total = round.alpha.sum()
    return round.alpha / total if total > 0 else np.zeros(round.size)


@dataclass(frozen=True, kw_only=True)
class FedAvg(Rule):
    """Δ = (1/|S|) Σ_S Δ_i (Eq. 2). Biased when the p_i differ: it minimises Σ w_i F_i with w_i = E[1{i ∈ S}/|S|].

    `fedstale.participation.averaging_weights` computes the w_i; the paper's p_i/Σ p_j (Eq. 4) approximates them.
    """

    name: ClassVar[str] = "fedavg"
    caveat: ClassVar[str] = (
        "approximately minimises Σ p_i F_i / Σ p_j instead of F: it is biased towards clients that participate often"
    )

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average those who came; nobody came: stay."""
        delta = weighted_sum(round.updates, round_weights(round), state.federation.num_params)
        refuse_non_finite(round, delta)
        return delta


@dataclass(frozen=True, kw_only=True)
class UnbiasedFedAvg(Rule):
    """Δ = Σ_S (α_i/p_i) Δ_i (Eq. 5). Unbiased; its variance grows like 1/p_i."""

    name: ClassVar[str] = "u-fedavg"
    unbiased: ClassVar[bool] = True

    def update(self, state: State, round: CheckedRound) -> Float:
        """Weight who came by how seldom they come."""
        delta = weighted_sum(round.updates, round.alpha / round.probabilities, state.federation.num_params)
        refuse_non_finite(round, delta)
        return delta
