"""The instance of the lower bound: Nesterov's function split between two clients (Eq. `objectives_split`).

F_{i₀} links coordinates (2,3), (4,5), … and holds the linear term; F_{i₁} links (1,2), (3,4), …. From w = 0
a client can reveal one new coordinate, and then nothing more until the other one was there. All other
clients have F_i = 0.

F is L-smooth, but F_{i₀} and F_{i₁} are NL/2-smooth: Assumption 1 of the main text, which asks L-smoothness
of every F_i, holds for N = 2 only; the supplement's theorem asks it of F alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, client_count, fail, number, positive_int, vector
from .lower import Ints

_Combine = Callable[[int, Ints, Float], Float]


@dataclass(frozen=True, eq=False)
class HardRun:
    """‖∇F(w)‖² and the largest non-zero coordinate of w at the start and after each round: (rounds+1,)."""

    squared_gradients: Float
    reach: Ints


@dataclass(frozen=True)
class HardInstance:
    """Nesterov's function in d = 2t+1 dimensions, split between client 0 (i₀) and client 1 (i₁).

    Parameters
    ----------
    t
        The horizon: the bound speaks of the first t iterates.
    num_clients
        N ≥ 2; clients 2 … N−1 have the objective 0.
    L
        Smoothness of the global objective F.
    """

    t: int
    num_clients: int = 2
    L: float = 1.0

    def __post_init__(self) -> None:
        positive_int("t", self.t)
        client_count("num_clients", self.num_clients, 2)
        number("L", self.L, 0.0, open_low=True)

    @property
    def dim(self) -> int:
        """Dimension d = 2t+1, the smallest that Nesterov's function needs."""
        return 2 * self.t + 1

    @property
    def minimiser(self) -> Float:
        """w* with (w*)_i = 1 − i/(2t+2)."""
        return 1.0 - np.arange(1, self.dim + 1) / (self.dim + 1.0)

    @property
    def optimal_value(self) -> float:
        """F* = −(L/8)(1 − 1/(2t+2))."""
        return -self.L / 8.0 * (1.0 - 1.0 / (self.dim + 1.0))

    @property
    def initial_gap(self) -> float:
        """F(0) − F*."""
        return -self.optimal_value

    def value(self, w: Float, client: int | None = None) -> float:
        """F_client(w), or F(w) without a client."""
        if client is None:
            return (self.value(w, 0) + self.value(w, 1)) / self.num_clients
        w = vector("w", w, self.dim)
        scale = self.num_clients * self.L / 8.0
        if self._checked(client) == 0:
            return scale * float(w[0] ** 2 + np.sum((w[1::2] - w[2::2]) ** 2) - 2.0 * w[0])
        if client == 1:
            return scale * float(np.sum((w[:-1:2] - w[1::2]) ** 2) + w[-1] ** 2)
        return 0.0

    def gradient(self, w: Float, client: int | None = None) -> Float:
        """∇F_client(w), or ∇F(w) without a client."""
        if client is None:
            return (self.gradient(w, 0) + self.gradient(w, 1)) / self.num_clients
        w = vector("w", w, self.dim)
        result = np.zeros(self.dim)
        if self._checked(client) == 0:
            result[0] = w[0] - 1.0
            result[1::2] = w[1::2] - w[2::2]
            result[2::2] = -result[1::2]
        elif client == 1:
            result[:-1:2] = w[:-1:2] - w[1::2]
            result[1::2] = -result[:-1:2]
            result[-1] = w[-1]
        return self.num_clients * self.L / 4.0 * result

    def least_squared_gradient(self, k: int) -> float:
        """Smallest ‖∇F‖² over span{e_1 … e_k}: 3L²/(8(k+1)(k+2)(2k+3)), and 0 once all d are reachable."""
        if positive_int("k", k, 0) >= self.dim:
            return 0.0
        return 3.0 * self.L**2 / (8.0 * (k + 1) * (k + 2) * (2 * k + 3))

    def best_point(self, k: int) -> Float:
        """Return the point of span{e_1 … e_k}, k < d, with the smallest ‖∇F‖²: w^{t,*} with t = k+1."""
        if positive_int("k", k, 0) >= self.dim:
            raise fail("k", k, f"must be below the dimension {self.dim}")
        s, i = k + 1, np.arange(1, k + 1)
        point = np.zeros(self.dim)
        numerator = 2 * s**3 - 3 * (i - 1) * s**2 - (3 * i - 1) * s + i**3 - i
        point[:k] = numerator / (s * (s + 1) * (2 * s + 1))
        return point

    def update(self, w: Float, client: int, lr_client: float, steps: int) -> Float:
        """Δ_client = w − w^K after `steps` local gradient steps."""
        local = w
        for _ in range(positive_int("steps", steps)):
            local = local - lr_client * self.gradient(local, client)
        return w - local

    def run(
        self, combine: _Combine, active: NDArray[np.bool_], lr_client: float, steps: int, lr_server: float
    ) -> HardRun:
        """Run Algorithm 1 from w = 0.

        Parameters
        ----------
        combine
            ComputeUpdate: `combine(round, clients, updates)` gives the global Δ from the (|S|, d) updates.
        active
            Who takes part, shape (rounds, N).
        lr_client, steps, lr_server
            η_c, K and η_s.
        """
        if active.dtype != np.bool_ or active.ndim != 2 or active.shape[1] != self.num_clients:
            found = f"{active.dtype} array of shape {active.shape}"
            raise fail("active", found, f"must be a bool array of shape (rounds, {self.num_clients})")
        w = np.zeros(self.dim)
        gradients, reached = [self._squared_gradient(w)], [0]
        for index, here in enumerate(active):
            clients = np.flatnonzero(here).astype(np.int64)
            updates = [self.update(w, int(i), lr_client, steps) for i in clients]
            fresh = np.array(updates).reshape(len(clients), self.dim)
            w = w - lr_server * combine(index, clients, fresh)
            gradients.append(self._squared_gradient(w))
            reached.append(int(np.max(np.flatnonzero(w) + 1, initial=0)))
        return HardRun(np.array(gradients), np.array(reached, dtype=np.int64))

    def _squared_gradient(self, w: Float) -> float:
        gradient = self.gradient(w)
        return float(gradient @ gradient)

    def _checked(self, client: int) -> int:
        if positive_int("client", client, 0) >= self.num_clients:
            raise fail("client", client, f"must lie in 0 … {self.num_clients - 1}")
        return int(client)
