"""A federation of quadratics whose L, σ² and σ_g² are known, and FedStale on it in plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratics:
    """F_i(w) = ½ Σ_j curvature_j (w_j − centre_ij)², stochastic gradients with Gaussian noise of variance σ²."""

    centres: Array
    curvature: Array
    sigma2: float

    @property
    def L(self) -> float:
        return float(self.curvature.max())

    @property
    def deviations(self) -> Array:
        """‖∇F_i − ∇F‖², the same at every w."""
        return np.asarray(np.sum((self.curvature * (self.centres - self.centres.mean(0))) ** 2, axis=1))

    def gap(self, w: Array) -> float:
        """F(w) − F*."""
        return float(0.5 * np.sum(self.curvature * (w - self.centres.mean(0)) ** 2))

    def squared_gradient(self, w: Array) -> Array:
        """‖∇F(w)‖² for w of shape (…, d)."""
        return np.asarray(np.sum((self.curvature * (w - self.centres.mean(0))) ** 2, axis=-1))

    def updates(self, w: Array, lr: float, steps: int, rng: np.random.Generator) -> Array:
        """Δ_i of every client at every w: (repetitions, d) -> (repetitions, N, d)."""
        start = np.repeat(w[:, None, :], len(self.centres), axis=1)
        local, scale = start, np.sqrt(self.sigma2 / w.shape[1])
        for _ in range(steps):
            noise = scale * rng.standard_normal(local.shape)
            local = local - lr * (self.curvature * (local - self.centres) + noise)
        return start - local


def fedstale_run(
    task: Quadratics,
    w1: Array,
    p: Array,
    *,
    beta: float,
    rounds: int,
    steps: int,
    lr_client: float,
    lr_server: float,
    repetitions: int,
    seed: int,
) -> Array:
    """E‖∇F(w_t)‖², t = 1 … rounds, by Monte Carlo: Algorithm 2 with h_i = 0 at the start."""
    rng = np.random.default_rng(seed)
    w = np.repeat(w1[None], repetitions, axis=0)
    stale = np.zeros((repetitions, *task.centres.shape))
    norms = []
    for _ in range(rounds):
        norms.append(task.squared_gradient(w).mean())
        fresh = task.updates(w, lr_client, steps, rng)
        came = rng.random((repetitions, len(p))) < p
        weight = (came / p)[:, :, None]
        w = w - lr_server * (beta * stale + weight * (fresh - beta * stale)).mean(1)
        stale = np.where(came[:, :, None], fresh, stale)
    return np.array(norms)
