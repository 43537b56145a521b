"""The lemmas behind the theorem, each with its terms: drift (5), update variance (6), memory (7), progress (10).

Numbers as in the supplement. As there, an update is a pseudo-gradient: g_i = Δ_i/(η_c K), ḡ_i the mean of the exact
gradients along client i's local path, h_i what is remembered in the same scale, w_{t+1} = w_t − η Δ^(t) with
η = η_s η_c K, and the memory error is

    H^(t) = Σ α_i ‖∇F_i(w_{t−1}) − h_i^(t)‖²    (Eq. `hist_deviation`).

Expectations are over one round, given the past. The α_i may be any weights (see `heterogeneity.py`); of a `Problem` the
lemmas use L, σ², σ_g², p, α, K, the rates and β. What holds for K > 1 only with a proviso stands in `upper.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, number, vector
from .upper import Problem


class _Terms:
    """A bound that is the sum of its fields."""

    @property
    def total(self) -> float:
        """The bound."""
        return float(sum(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Drift(_Terms):
    """Lemma 5 (`lem:local_iterations`): how far K local steps lead ḡ_i away from ∇F_i(w_t)."""

    noise: float
    heterogeneity: float
    gradient: float


@dataclass(frozen=True)
class UpdateVariance(_Terms):
    """Lemma 6 (`lem:variance`): the variance of FedStale's update, by cause."""

    fresh_drift: float
    fresh_heterogeneity: float
    fresh_gradient: float
    stale_drift: float
    stale_step: float
    stale_memory: float
    noise: float


@dataclass(frozen=True)
class MemoryBound(_Terms):
    """Lemma 7 (`lem:memory`): what H^(t+1) is made of."""

    noise: float
    drift: float
    step: float
    memory: float


@dataclass(frozen=True)
class Lyapunov(_Terms):
    """ψ^(t+1) = F(w_{t+1}) + (η²L/2) ‖Δ^(t)‖² + 12 η²L β² v/p_min H^(t+1) (Eq. `lem_progress_lyap`)."""

    objective: float
    step: float
    memory: float


@dataclass(frozen=True)
class Progress(_Terms):
    """Lemma 10 (`lem:round_progress`): a bound on E[ψ^(t+1)]."""

    start: float
    descent: float
    noise: float
    noise_drift: float
    heterogeneity_fresh: float
    heterogeneity_drift: float


def drift_bound(problem: Problem, squared_gradient: float) -> Drift:
    """Bound E‖ḡ_i − ∇F_i(w_t)‖² of any client (Lemma 5, Eq. `lem:local_iterations`).

    Parameters
    ----------
    problem
        η_c ≤ 1/(2LK) is asked for.
    squared_gradient
        ‖∇F(w_t)‖².
    """
    twice = 2.0 * _small_drift(problem)
    spread, gradient = problem.sigma_g2, number("squared_gradient", squared_gradient, 0.0)
    return Drift(twice * problem.sigma2 / problem.K, 4.0 * twice * spread, 4.0 * twice * gradient)


def local_drift_bound(problem: Problem, squared_local_gradient: float) -> Drift:
    """Bound E‖ḡ_i − ∇F_i(w_t)‖² by client i's own ‖∇F_i(w_t)‖² (Lemma 5, Eq. `lem_drift_part1`)."""
    twice = 2.0 * _small_drift(problem)
    gradient = number("squared_local_gradient", squared_local_gradient, 0.0)
    return Drift(twice * problem.sigma2 / problem.K, 0.0, 2.0 * twice * gradient)


def update_variance_bound(
    problem: Problem, drift: ArrayLike, squared_gradient: float, squared_last_update: float, memory_error: float
) -> UpdateVariance:
    """Bound E‖Δ^(t) − ḡ^(t)‖² (Lemma 6).

    Parameters
    ----------
    problem
        The federation.
    drift
        E‖ḡ_i − ∇F_i(w_t)‖² of every client, shape (N,), or one bound for all: `drift_bound`.
    squared_gradient
        ‖∇F(w_t)‖².
    squared_last_update
        ‖Δ^(t−1)‖².
    memory_error
        H^(t).
    """
    s, beta = problem.participation, problem.beta
    alpha, p = _clients(problem)
    drifted = float(alpha**2 * (1.0 - p) / p @ vector("drift", drift, p.size))
    fresh, stale = 6.0 * (1.0 - beta) ** 2, 6.0 * beta**2
    moved = (problem.lr * problem.L) ** 2 * number("squared_last_update", squared_last_update, 0.0)
    return UpdateVariance(
        fresh_drift=fresh * drifted,
        fresh_heterogeneity=fresh * s.absence * problem.sigma_g2,
        fresh_gradient=fresh * s.absence * number("squared_gradient", squared_gradient, 0.0),
        stale_drift=stale * drifted,
        stale_step=stale * s.absence * moved,
        stale_memory=stale * s.inverse_p_var * number("memory_error", memory_error, 0.0),
        noise=s.sampling * problem.sigma2 / problem.K,
    )


def memory_error_bound(
    problem: Problem, drift: ArrayLike, squared_last_update: float, memory_error: float, C: float | None = None
) -> MemoryBound:
    """Bound E[H^(t+1)] (Lemma 7): what comes is fresh, of what stays away the old error remains.

    Parameters
    ----------
    problem, drift, squared_last_update, memory_error
        As in `update_variance_bound`.
    C
        Any positive number; default p_min/(2(1−p_min)), as in Lemma 10: then (1+C)(1−p_min) = 1 − p_min/2.
    """
    s = problem.participation
    alpha, p = _clients(problem)
    if C is None:  # with everybody there all the time any C will do
        C = s.p_min / (2.0 * (1.0 - s.p_min)) if s.p_min < 1.0 else 1.0
    number("C", C, 0.0, open_low=True)
    moved = (problem.lr * problem.L) ** 2 * number("squared_last_update", squared_last_update, 0.0)
    return MemoryBound(
        noise=s.p_avg * problem.sigma2 / problem.K,
        drift=float(alpha * p @ vector("drift", drift, p.size)),
        step=(1.0 + 1.0 / C) * (1.0 - s.p_avg) * moved,
        memory=(1.0 + C) * (1.0 - s.p_min) * number("memory_error", memory_error, 0.0),
    )


def lyapunov(problem: Problem, value: float, squared_update: float, memory_error: float) -> Lyapunov:
    """Return ψ^(t+1) (Lemma 10) from F(w_{t+1}), ‖Δ^(t)‖² and H^(t+1)."""
    s, step = problem.participation, problem.lr**2 * problem.L
    return Lyapunov(
        objective=number("value", value),
        step=step / 2.0 * number("squared_update", squared_update, 0.0),
        memory=12.0 * step * problem.beta**2 * s.inverse_p_var / s.p_min * number("memory_error", memory_error, 0.0),
    )


def progress_bound(problem: Problem, psi: float, squared_gradient: float) -> Progress:
    """Bound E[ψ^(t+1)] by ψ^(t) and ‖∇F(w_t)‖² (Lemma 10); it holds where `check_step_sizes(problem)` passes."""
    s, eta, drift = problem.participation, problem.lr, problem.drift
    step, noise = eta**2 * problem.L, problem.sigma2 / problem.K
    stale = 12.0 * problem.beta**2 * step * s.inverse_p_var * s.ratio
    drifted = eta / 2.0 + 6.0 * step * s.absence + stale
    return Progress(
        start=number("psi", psi),
        descent=-eta / 4.0 * number("squared_gradient", squared_gradient, 0.0),
        noise=(step * s.sampling + stale) * noise,
        noise_drift=drifted * 2.0 * drift * noise,
        heterogeneity_fresh=6.0 * step * (1.0 - problem.beta) ** 2 * s.absence * problem.sigma_g2,
        heterogeneity_drift=drifted * 8.0 * drift * problem.sigma_g2,
    )


def _clients(problem: Problem) -> tuple[Float, Float]:
    """α and p, shape (N,)."""
    p = np.asarray(problem.p, dtype=np.float64)
    alpha = np.full(p.size, 1.0 / p.size) if problem.alpha is None else np.asarray(problem.alpha, dtype=np.float64)
    return alpha, p


def _small_drift(problem: Problem) -> float:
    """η_c² L² K(K−1), after checking the step size that Lemma 5 asks for."""
    limit = 1.0 / (2.0 * problem.L * problem.K)
    if problem.lr_client > limit * (1.0 + 1e-12):
        raise fail("lr_client", problem.lr_client, f"must be at most 1/(2LK) = {limit:.6g}")
    return problem.drift
