"""Quadratic clients F_i(w) = ½ (w − c_i)ᵀ A_i (w − c_i): Figure 1 of the paper, and random ones of any size.

A task without data: gradients are exact (or exact plus Gaussian noise of known size), the global optimum is
known in closed form, so that excess losses can be reported to rounding. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_count, client_ids, fail, number, positive_int, vector
from ..randomness import generator

_MOST_NUMBERS = 1 << 27
"""In the matrices of all clients: a gigabyte."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """N clients with quadratic losses in d dimensions; F = Σ α_i F_i.

    Parameters
    ----------
    matrices
        The A_i, symmetric positive semi-definite, shape (N, d, d); their weighted sum must be positive definite.
    optima
        The local optima c_i, shape (N, d).
    weights
        The α_i, shape (N,), non-negative with sum 1; default 1/N.
    start
        The first model w_1, shape (d,); default zero.
    """

    matrices: Float
    optima: Float
    weights: Float | None = None
    start: Float | None = None

    def __post_init__(self) -> None:
        optima = np.array(self.optima, dtype=np.float64)
        matrices = np.array(self.matrices, dtype=np.float64)
        if optima.ndim != 2 or 0 in optima.shape or not np.isfinite(optima).all():
            raise fail("optima", f"array of shape {optima.shape}", "must be finite, of shape (N, d)")
        n, d = optima.shape
        if matrices.shape != (n, d, d) or not np.isfinite(matrices).all():
            raise fail("matrices", f"array of shape {matrices.shape}", f"must be finite, of shape ({n}, {d}, {d})")
        for i, matrix in enumerate(matrices):
            if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] < -1e-9:
                raise fail(f"matrices[{i}]", matrix.tolist(), "must be symmetric positive semi-definite")
        weights = np.full(n, 1.0 / n) if self.weights is None else vector("weights", self.weights, n)
        if (weights < 0).any() or abs(weights.sum() - 1.0) > 1e-9:
            raise fail("weights", weights.tolist(), "must be non-negative and sum to 1")
        start = np.zeros(d) if self.start is None else vector("start", self.start, d)
        for name, value in (
            ("matrices", matrices),
            ("optima", optima),
            ("weights", weights),
            ("start", start),
        ):
            object.__setattr__(self, name, value)
        if np.linalg.eigvalsh(self.curvature)[0] <= 0:
            raise fail("matrices", "a singular weighted sum", "Σ α_i A_i must be positive definite: one optimum")

    @classmethod
    def figure1(cls) -> Quadratic:
        """Two clients in the plane, for Figure 1 (whose matrices the paper does not give).

        A_1 = [[1, .2], [.2, .3]], c_1 = (6, −2); A_2 = [[.3, −.2], [−.2, 1]], c_2 = (−2, 6); w_1 = (−10, −10).
        The global optimum is (38/13, 70/13) ≈ (2.92, 5.38), the mean of the local optima (2, 2).
        """
        matrices = np.array([[[1.0, 0.2], [0.2, 0.3]], [[0.3, -0.2], [-0.2, 1.0]]])
        return cls(matrices, np.array([[6.0, -2.0], [-2.0, 6.0]]), start=np.array([-10.0, -10.0]))

    @classmethod
    def random(
        cls, num_clients: int, dimension: int, seed: int = 0, *, condition: float = 10.0, spread: float = 1.0
    ) -> Quadratic:
        """Draw N random clients in d dimensions.

        Parameters
        ----------
        num_clients
            N.
        dimension
            d.
        seed
            The same seed gives the same problem.
        condition
            Eigenvalues of each A_i are log-uniform in [1/condition, 1]; its eigenvectors are uniform.
        spread
            Standard deviation of the coordinates of the c_i: how different the clients are (0: not at all in
            their optima).
        """
        client_count("num_clients", num_clients)
        positive_int("dimension", dimension)
        if num_clients * dimension**2 > _MOST_NUMBERS:
            raise fail(
                "num_clients",
                num_clients,
                f"too many for dimension {dimension}: their matrices would take more than 1 GB",
            )
        number("condition", condition, 1.0)
        number("spread", spread, 0.0)
        rng = generator(seed, "quadratic")
        bases, _ = np.linalg.qr(rng.standard_normal((num_clients, dimension, dimension)))
        eigenvalues = condition ** -rng.random((num_clients, dimension))
        matrices = np.einsum("nik,nk,njk->nij", bases, eigenvalues, bases)
        matrices = (matrices + matrices.transpose(0, 2, 1)) / 2
        return cls(matrices, spread * rng.standard_normal((num_clients, dimension)))

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return len(self.optima)

    @property
    def num_params(self) -> int:
        """The dimension d."""
        return int(self.optima.shape[1])

    @property
    def alpha(self) -> Float:
        """The weights α_i, shape (N,)."""
        return np.asarray(self.weights)

    @property
    def curvature(self) -> Float:
        """The Hessian of F, Σ α_i A_i, shape (d, d)."""
        return np.asarray(np.einsum("n,nij->ij", self.alpha, self.matrices))

    @property
    def optimum(self) -> Float:
        """The minimiser of F, shape (d,): where Σ α_i A_i (w − c_i) = 0."""
        pull = np.einsum("n,nij,nj->i", self.alpha, self.matrices, self.optima)
        return np.asarray(np.linalg.solve(self.curvature, pull))

    def client_loss(self, client: int, w: ArrayLike) -> Float:
        """F_i at w of shape (…, d)."""
        away = np.asarray(w, dtype=np.float64) - self.optima[client]
        return np.asarray(0.5 * np.einsum("...i,ij,...j->...", away, self.matrices[client], away))

    def gradient(self, client: int, w: ArrayLike) -> Float:
        """∇F_i(w) = A_i (w − c_i) at w of shape (…, d)."""
        return np.asarray((np.asarray(w, dtype=np.float64) - self.optima[client]) @ self.matrices[client])

    def loss(self, w: ArrayLike) -> Float:
        """F at w of shape (…, d)."""
        terms = (a * self.client_loss(i, w) for i, a in enumerate(self.alpha))
        return np.asarray(sum(terms, start=np.float64(0)))

    def excess(self, w: ArrayLike) -> Float:
        """F(w) − F(w*) at w of shape (…, d), as ½ (w − w*)ᵀ Σ α_i A_i (w − w*): exact close to the optimum, too."""
        away = np.asarray(w, dtype=np.float64) - self.optimum
        return np.asarray(0.5 * np.einsum("...i,ij,...j->...", away, self.curvature, away))

    def local_updates(
        self,
        w: ArrayLike,
        clients: ArrayLike,
        K: int = 5,
        lr: float = 0.01,
        noise: float = 0.0,
        rng: np.random.Generator | None = None,
        *,
        linear: ArrayLike | None = None,
        prox: float = 0.0,
    ) -> Float:
        """Run K local gradient steps from w on each client and return Δ_i = w − w_i^K, shape (|S|, d).

        Parameters
        ----------
        w
            The global model, shape (d,).
        clients
            The participants S, shape (|S|,).
        K
            Local steps.
        lr
            The client rate η_c.
        noise
            Standard deviation of the Gaussian noise on every coordinate of every gradient (0: exact gradients).
        rng
            Where that noise comes from; needed when `noise` is not zero.
        linear
            Added to each client's gradient at each step, shape (|S|, d).
        prox
            μ: μ (local model − w) is added, too.
        """
        ids: NDArray[np.int64] = client_ids("clients", clients, self.num_clients)
        start = vector("w", w, self.num_params)
        positive_int("K", K)
        number("noise", noise, 0.0)
        if noise > 0 and rng is None:
            raise fail("rng", None, "noisy gradients need a generator (fedstale.randomness.generator)")
        matrices, optima = self.matrices[ids], self.optima[ids]
        local = np.tile(start, (len(ids), 1))
        for _ in range(K):
            slope = np.einsum("sij,sj->si", matrices, local - optima) + prox * (local - start)
            if linear is not None:
                slope += linear
            if rng is not None and noise > 0:
                slope += noise * rng.standard_normal(slope.shape)
            local -= lr * slope
        return np.asarray(start - local)
