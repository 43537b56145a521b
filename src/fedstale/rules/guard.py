"""Bounds on what one client can do to a round, around any rule: a largest norm, and a largest weight 1/p.

    Δ_i ← Δ_i · min(1, C/‖Δ_i‖)         before it is mixed or stored (norm clipping, C = `clip_norm`)
    1/p_i ← min(1/p_i, W)               (W = `max_weight`), which is p_i ← max(p_i, 1/W)

Both trade bias for a bound, and both are off unless asked for. With c_i = min(1, C/‖Δ_i‖) and w_i = min(1/p_i, W),
for FedStale (Eq. 8; β = 0 and 1 are U-FedAvg and U-FedVARP):

    E[Δ] = Σ α_i Δ_i − Σ α_i (1 − c_i) Δ_i − Σ α_i (1 − p_i w_i)(c_i Δ_i − β h_i)

because E[Δ] = β Σ α_i h_i + Σ α_i p_i w_i (c_i Δ_i − β h_i). The cap costs nothing for clients with p_i ≥ 1/W, and for
a rarer one it costs what the memory does not know already: where h_i is near Δ_i and β = 1, next to nothing. Clipping
costs the part of the update that is cut off, whatever is in the memory. Whether a client comes to a round or not then
makes a difference of at most η_s α_i W (1 + β) C to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail, number
from ..federation import CheckedRound, Ints
from ..memory.held import Announcement
from ..memory.kernel import squares
from ..state import State
from .anchors import Anchored
from .base import Rule
from .fedamd import FedAMD
from .fedau import FedAU
from .scaffold import Scaffold
from .wrapped import WrappedRule

BY_DIFFERENCES = (Anchored, FedAMD, Scaffold)
"""Rules that use differences between the clients' updates, or between their gradients: these must not be changed."""


def _clip_factors(rows: Sequence[NDArray[Any]], clip_norm: float) -> Float:
    """min(1, C/‖Δ_i‖) of each row; NaN where a row is not finite, so that it is refused and never hidden."""
    norms = np.sqrt(squares(rows))
    for i in np.flatnonzero(~np.isfinite(norms)):  # the square of a large number may overflow: scale it first
        row = np.asarray(rows[int(i)], dtype=np.float64)
        largest = float(np.abs(row).max())
        if np.isfinite(largest):
            norms[i] = largest * float(np.linalg.norm(row / largest))
    factors = np.full(len(rows), np.nan)
    finite = np.isfinite(norms)
    factors[finite] = clip_norm / np.maximum(norms[finite], clip_norm)
    return factors


def clip(rows: Sequence[NDArray[Any]], factors: Float) -> list[NDArray[Any]]:
    """Scale each row by its factor; a row whose factor is 1 is returned as it is, without a copy."""
    pairs = zip(rows, factors, strict=True)
    return [row if factor == 1.0 else np.asarray(row * np.float64(factor), dtype=row.dtype) for row, factor in pairs]


@dataclass(frozen=True, kw_only=True)
class Guarded(WrappedRule):
    """A rule whose updates are clipped and whose weights are capped: `Guarded(FedStale(), max_weight=100)`.

    Parameters
    ----------
    rule
        The rule, with or without a server optimiser.
    clip_norm
        C: the largest ℓ2 norm of a client's update, > 0; None: no clipping.
    max_weight
        W: the largest 1/p, at least 1; None: no cap.
    """

    clip_norm: float | None = None
    max_weight: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule) or isinstance(self.rule, Guarded):
            raise fail("rule", self.rule, "must be a rule that is not guarded already, such as FedStale()")
        if self.clip_norm is not None:
            number("clip_norm", self.clip_norm, 0.0, open_low=True)
        if self.max_weight is not None:
            number("max_weight", self.max_weight, 1.0)
        inner = self.innermost
        if self.clip_norm is not None and isinstance(inner, BY_DIFFERENCES):
            allowed = f"{self.rule.name} uses differences between the clients' updates, which clipping would destroy"
            raise fail("clip_norm", self.clip_norm, allowed)
        if self.max_weight is not None and isinstance(inner, FedAU):
            raise fail("max_weight", self.max_weight, f"{self.rule.name} estimates 1/p itself: its cutoff is the cap")
        # The state is the rule's own: a run may go on with other bounds, or without.
        self.adopt()
        object.__setattr__(self, "reads_once", self.rule.reads_once and self.clip_norm is None)
        object.__setattr__(self, "name", self.rule.name)
        object.__setattr__(self, "server_lr", self.rule.server_lr)

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """As the rule, with the cap; nobody but the client could clip its update."""
        if self.clip_norm is not None:
            raise fail(
                "clip_norm", self.clip_norm, "the server sees no update that it could clip: the clients hold them"
            )
        capped = probabilities if self.max_weight is None else np.maximum(probabilities, 1.0 / self.max_weight)
        return super().announce(state, index, clients, capped)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Bound what each participant can do, and let the rule combine."""
        if self.clip_norm is not None:
            factors = _clip_factors(round.updates, self.clip_norm)
            state.report["clipped"] = float(np.sum(factors < 1.0))
            round = replace(round, updates=clip(round.updates, factors))
        if self.max_weight is not None and round.given_probabilities is not None:
            capped = np.maximum(round.given_probabilities, 1.0 / self.max_weight)
            state.report["capped"] = float(np.sum(capped > round.given_probabilities))
            round = replace(round, given_probabilities=capped)
        return self.rule.update(state, round)

    def take_late(self, state: State, late: CheckedRound) -> None:
        """Bound what is remembered as in a round."""
        if self.clip_norm is not None:
            late = replace(late, updates=clip(late.updates, _clip_factors(late.updates, self.clip_norm)))
        super().take_late(state, late)


def guard(rule: Rule, clip_norm: float | None, max_weight: float | None) -> Rule:
    """Put bounds around a rule where there are any."""
    if clip_norm is None and max_weight is None:
        return rule
    return Guarded(rule, clip_norm=clip_norm, max_weight=max_weight)
