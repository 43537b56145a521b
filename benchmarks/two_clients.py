"""The two-client quadratic of Figure 1 for many runs at once, written straight from Eq. 9: a second opinion."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedstale.tasks.quadratic import Quadratic

Array = NDArray[np.float64]
K = 5


@dataclass
class TwoClients:
    """Runs in lock-step with the draws `came` (rounds, runs, 2) of who takes part."""

    lr: float
    beta: float | str
    """A number, "auto", or "before": the sums that lacked 1/p, the weight of the round and the first update's vote."""
    came: NDArray[np.bool_]
    p: Array
    models: list[Array] = field(default_factory=list)
    betas: list[Array] = field(default_factory=list)
    noise: Array = field(init=False)
    """Σ α²ω‖Δ − βh‖² over the second half of the rounds, for each run."""
    least: Array = field(init=False)
    """The same at the common β that makes it smallest in each round."""

    def run(self, keep: bool = False) -> Array:
        """Excess loss, shape (rounds, runs)."""
        problem, (rounds, runs, _) = Quadratic.figure1(), self.came.shape
        power = [np.eye(2) - np.linalg.matrix_power(np.eye(2) - self.lr * np.asarray(a), K) for a in problem.matrices]
        matrices, omega = np.array(power), (1 - self.p) / self.p / 4
        w, h = np.tile(np.asarray(problem.start), (runs, 1)), np.zeros((runs, 2, 2))
        sums = np.zeros((2, runs))
        self.noise, self.least = np.zeros((2, runs))
        excess = np.empty((rounds, runs))
        for t, came in enumerate(self.came):
            fresh = np.einsum("cij,rcj->rci", matrices, w[:, None] - problem.optima)
            inner, norm = np.sum(fresh * h, axis=2), np.sum(h**2, axis=2)
            beta = _ratio(*sums) if isinstance(self.beta, str) else np.full(runs, self.beta)
            if 2 * t >= rounds:
                self.noise += _noise(omega, fresh, h, beta)
                self.least += _noise(omega, fresh, h, _ratio(inner @ omega, norm @ omega))
            stale = beta[:, None, None] * h
            delta = stale.sum(axis=1) / 2 + np.sum((came / self.p)[:, :, None] * (fresh - stale), axis=1) / 2
            weight = came * omega
            if self.beta == "auto":
                weight = weight * (t + 1) / self.p
                norm = np.where(norm > 0, norm, np.sum(fresh**2, axis=2))  # the first update votes for 0
            sums += np.sum(weight * inner, axis=1), np.sum(weight * norm, axis=1)
            h = np.where(came[:, :, None], fresh, h)
            w = w - delta
            excess[t] = problem.excess(w)
            if keep:
                self.models.append(w)
                self.betas.append(beta)
        return excess


def _ratio(inner: Array, norm: Array) -> Array:
    return np.asarray(np.clip(np.divide(inner, norm, out=np.zeros_like(norm), where=norm > 0), 0.0, 1.0))


def _noise(omega: Array, fresh: Array, h: Array, beta: Array) -> Array:
    return np.asarray(np.sum((fresh - beta[:, None, None] * h) ** 2, axis=2) @ omega)
