"""The best β: the bound is A(1−β)² + Bβ² + C, smallest at β* = A/(A+B) (Eq. `beta_opt`, constants named).

Read off Theorem `thm:fedhist`, with v = 1/p_var, r = p_avg/p_min, D = η_c²L²K(K−1) and H₁ the memory gap:

    A = 24 ηLv · σ_g²/N
    B = 48 ηLv · [ r(1+2D) σ²/K + 8rD σ_g² + (1−p_min)/p_min · H₁/T ]

so that ηLv cancels in A/(A+B), and in Eq. `beta_opt` a₁ = 2(1+2D) and a₂ = 16 (there H₁ is left out). With weights α_i
(`heterogeneity.py`) v/N becomes Σ α_i² ω_i, so that 1/N becomes Σ α_i² ω_i / Σ α_i ω_i, ω_i = (1−p_i)/p_i: the weight
of those who are absent.

The bound is for the worst case: its memory term carries no 1/N (Eq. `lem_fedhist_variance_bound` bounds a sum
of products by the product of the sums), so β* ≤ 1/(1+16rDN) is small for many clients when K > 1. With the largest
drift that the theorem allows and 24 clients in the paper's two groups that is 0.10 at p_min = 0.5, 0.016 at 0.05 and
0.0007 at 0.002: β* says how the best β moves with r, σ² and σ_g² (Guidelines A and B), not how large it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..checks import number, positive_int
from .heterogeneity import participation_summary
from .upper import Problem, upper_bound

LARGEST_DRIFT = 1.0 / 64.0
"""The largest η_c²L²K(K−1) under η_c ≤ 1/(8LK), whatever K."""


@dataclass(frozen=True)
class BetaCoefficients:
    """The bound as the polynomial A(1−β)² + Bβ² + C."""

    A: float
    B: float
    C: float

    def at(self, beta: float) -> float:
        """Evaluate the polynomial."""
        return self.A * (1.0 - beta) ** 2 + self.B * beta**2 + self.C

    @property
    def minimiser(self) -> float:
        """A/(A+B); 0 when A = B = 0, where every β has the same bound and 0 needs no memory."""
        return _share(self.A, self.B)


def beta_coefficients(problem: Problem) -> BetaCoefficients:
    """Read A, B and C off the theorem; the problem's own β is not used."""
    fresh, stale = upper_bound(problem.with_beta(0.0)), upper_bound(problem.with_beta(1.0))
    a = fresh.heterogeneity_fresh
    b = stale.memory + stale.noise_stale + stale.noise_stale_drift + stale.heterogeneity_stale_drift
    c = fresh.initialisation + fresh.noise_sampling + fresh.noise_drift + fresh.noise_drift_sampled
    c += fresh.heterogeneity_drift + fresh.heterogeneity_drift_sampled + fresh.heterogeneity_first_round
    return BetaCoefficients(a, b, c)


def optimal_beta(problem: Problem) -> float:
    """Return β* = A/(A+B) in [0, 1]; 0 when A = B = 0 (full participation, or no variance at all)."""
    return beta_coefficients(problem).minimiser


def optimal_beta_from_moments(
    sigma2_over_K: float,
    sigma_g2: float,
    p: ArrayLike,
    num_clients: int | None = None,
    *,
    alpha: ArrayLike | None = None,
    drift: float = LARGEST_DRIFT,
    memory_gap: float = 0.0,
    horizon: int | None = None,
) -> float:
    """Return β* from quantities that a server can estimate: no rate and no L beyond `drift`.

    Parameters
    ----------
    sigma2_over_K, sigma_g2
        σ²/K and σ_g². Only their ratio matters, so any common scale will do (gradients or updates).
    p
        Probabilities of the clients, shape (N,) or of those whose p is known.
    num_clients
        N; default: the length of `p`.
    alpha
        Weights of these clients in the objective, shape as `p`; default 1/N.
    drift
        η_c²L²K(K−1); default: the largest that the step-size condition allows for any K (for one K:
        `largest_drift`).
    memory_gap, horizon
        H₁ in the scale of the moments, and T. Without a horizon its term is dropped, as in Eq. `beta_opt`.
    """
    number("sigma2_over_K", sigma2_over_K, 0.0)
    number("sigma_g2", sigma_g2, 0.0)
    number("drift", drift, 0.0)
    number("memory_gap", memory_gap, 0.0)
    if alpha is None and num_clients is not None:
        alpha = np.full(np.shape(p), 1.0 / positive_int("num_clients", num_clients))
    s = participation_summary(p, alpha)
    if s.inverse_p_var == 0.0:
        return 0.0
    a = s.absence / s.inverse_p_var * sigma_g2
    b = 2.0 * s.ratio * ((1.0 + 2.0 * drift) * sigma2_over_K + 8.0 * drift * sigma_g2)
    if horizon is not None:
        b += 2.0 * (1.0 - s.p_min) / s.p_min * memory_gap / positive_int("horizon", horizon)
    return _share(a, b)


def largest_drift(K: int) -> float:
    """η_c²L²K(K−1) at η_c = 1/(8LK): (K−1)/(64K)."""
    return (positive_int("K", K) - 1) / (64.0 * K)


def _share(a: float, b: float) -> float:
    return a / (a + b) if a + b > 0.0 else 0.0
