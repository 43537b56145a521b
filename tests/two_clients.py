"""The two-client quadratic of Figure 1 for many runs at once, written straight from Eq. 9: a second opinion."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedstale.tasks.quadratic import Quadratic

Array = NDArray[np.float64]
P = np.array([1.0, 0.01])
K = 5


@dataclass
class TwoClients:
    """Runs in lock-step with the given draws `came` (rounds, runs) of the rare client."""

    lr: float
    beta: float | None
    came: NDArray[np.bool_]
    models: list[Array] = field(default_factory=list)
    betas: list[Array] = field(default_factory=list)

    def run(self, keep: bool = False) -> Array:
        """Excess loss (rounds, runs); β = None is Σ t⟨Δ,h⟩/Σ t‖h‖² over the rare client's past visits."""
        problem, runs = Quadratic.figure1(), self.came.shape[1]
        power = [np.eye(2) - np.linalg.matrix_power(np.eye(2) - self.lr * np.asarray(a), K) for a in problem.matrices]
        w, h = np.tile(np.asarray(problem.start), (runs, 1)), np.zeros((runs, 2))
        inner, norm = np.zeros((2, runs))
        excess = np.empty(self.came.shape)
        for t, came in enumerate(self.came):
            steady, rare = ((w - c) @ m.T for c, m in zip(problem.optima, power, strict=True))
            known = np.divide(inner, norm, out=np.zeros(runs), where=norm > 0)
            beta = np.clip(known, 0, 1) if self.beta is None else np.full(runs, self.beta)
            delta = steady / 2 + (beta[:, None] * h + (came / P[1])[:, None] * (rare - beta[:, None] * h)) / 2
            late = came * (t + 1)
            inner += late * np.einsum("ri,ri->r", rare, h)
            # The first visit counts as one that does not repeat itself.
            kept = np.where(h.any(axis=1, keepdims=True), h, rare)
            norm += late * np.einsum("ri,ri->r", kept, kept)
            h = np.where(came[:, None], rare, h)
            w = w - delta
            excess[t] = problem.excess(w)
            if keep:
                self.models.append(w)
                self.betas.append(beta)
        return excess
