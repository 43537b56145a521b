"""Participation noise of clients that come together: Σ_ij in the place of Σ_i.

With x_i = β m_i, what is predicted of client i, e_i = Δ_i − x_i, weights α_i/p_i^θ for those who come, and
π_ij = P(i and j both come), π_ii = p_i:

    E‖Δ − E[Δ]‖² = Σ_i Σ_j α_i α_j (p_i p_j)^(−θ) (π_ij − p_i p_j) ⟨e_i, e_j⟩.

Where clients are independent π_ij = p_i p_j, and Σ_i remains (spec §7 and §10, `tempered_noise`). Clients that come
together add noise where their errors point the same way, and take some away where they point apart: with one common
error e for all, the sum is ‖e‖² times the variance of the round's total weight Σ_S α_i/p_i (`weight_variance`).
Clients that never come (p_i = 0) are in no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, fraction, vector


class WeightVariance(NamedTuple):
    """Variance of a round's total weight Σ_S α_i/p_i, whose mean is Σ α_i over the clients that come."""

    together: float
    """As the clients come."""
    independent: float
    """As it would be if they came independently with the same p_i."""


def correlated_noise(
    updates: ArrayLike, predicted: ArrayLike, pairwise: ArrayLike, alpha: ArrayLike, theta: float = 1.0
) -> float:
    """E‖Δ − E[Δ]‖² for clients that may come together.

    Parameters
    ----------
    updates, predicted
        Δ_i and β m_i of all clients, shape (N, d).
    pairwise
        π_ij with p_i on the diagonal, shape (N, N): `Process.pairwise`, or `Trace.pairwise` of a log.
    alpha
        α_i, shape (N,).
    theta
        θ of the weights α_i/p_i^θ; 1 is FedStale.
    """
    covariance, weight = _covariance(pairwise, alpha, fraction("theta", theta))
    fresh, guess = np.asarray(updates, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if fresh.ndim != 2 or fresh.shape != guess.shape or len(fresh) != weight.size:
        raise fail(
            "updates", f"shapes {fresh.shape}, {guess.shape}", f"updates and predicted must be ({weight.size}, d)"
        )
    weighted = weight[:, None] * (fresh - guess)
    return float(np.sum(covariance * (weighted @ weighted.T)))


def weight_variance(pairwise: ArrayLike, alpha: ArrayLike) -> WeightVariance:
    """Variance of Σ_S α_i/p_i, as they come and as if they were independent; parameters of `correlated_noise`."""
    covariance, weight = _covariance(pairwise, alpha, 1.0)
    return WeightVariance(float(weight @ covariance @ weight), float(weight**2 @ np.diag(covariance)))


def _covariance(pairwise: ArrayLike, alpha: ArrayLike, theta: float) -> tuple[Float, Float]:
    """Return π_ij − p_i p_j and α_i/p_i^θ, 0 for a client that never comes."""
    both = np.asarray(pairwise, dtype=np.float64)
    if both.ndim != 2 or both.shape[0] != both.shape[1] or not np.isfinite(both).all():
        raise fail("pairwise", f"array of shape {both.shape}", "must be finite numbers of shape (N, N)")
    p = np.diag(both)
    tolerance = 1e-9
    if (both < -tolerance).any() or (both > np.minimum.outer(p, p) + tolerance).any() or (p > 1.0 + tolerance).any():
        raise fail("pairwise", pairwise, "must be probabilities, none above those of its two clients on the diagonal")
    weight = vector("alpha", alpha, p.size)
    comes = p > 0.0
    return both - np.outer(p, p), np.where(comes, weight / np.where(comes, p, 1.0) ** theta, 0.0)
