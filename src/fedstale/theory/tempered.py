"""Bias and noise of the tempered family (`fedstale.rules.tempered`), exactly, for clients that come independently.

With x_i = β m_i, what is predicted of client i, and weights α_i/p_i^θ for those who come (all have come before, or the
rule's `stand_in` is off):

    E[Δ] − Σ α_i Δ_i = −Σ_i α_i (1 − p_i^(1−θ)) (Δ_i − x_i)
    E‖Δ − E[Δ]‖²    =  Σ_i α_i² (1 − p_i) p_i^(1−2θ) ‖Δ_i − x_i‖²

θ = 1 has no bias and the noise of Section 4; θ = 0 has the bias and the noise of MIFA. At β = 1 the bias is that of the
memory: it vanishes where m_i = Δ_i, so that a fixed point of the expected round is a stationary point of Σ α_i F_i
whatever θ is. FedAvg's bias Σ (p_i/Σ p_j − α_i) Δ_i does not vanish there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, fraction, probabilities


def tempered_bias(updates: ArrayLike, predicted: ArrayLike, p: ArrayLike, alpha: ArrayLike, theta: float) -> Float:
    """E[Δ] − Σ α_i Δ_i, shape (d,).

    Parameters
    ----------
    updates, predicted
        Δ_i and β m_i of all clients, shape (N, d).
    p, alpha
        Their probabilities and weights, shape (N,).
    theta
        θ.
    """
    error, chance, weight = _checked(updates, predicted, p, alpha, theta)
    return -(weight * (1.0 - chance ** (1.0 - theta))) @ error


def tempered_noise(updates: ArrayLike, predicted: ArrayLike, p: ArrayLike, alpha: ArrayLike, theta: float) -> float:
    """E‖Δ − E[Δ]‖²; the parameters are those of `tempered_bias`."""
    error, chance, weight = _checked(updates, predicted, p, alpha, theta)
    squares = np.einsum("ij,ij->i", error, error)
    return float((weight**2 * (1.0 - chance) * chance ** (1.0 - 2.0 * theta)) @ squares)


def _checked(
    updates: ArrayLike, predicted: ArrayLike, p: ArrayLike, alpha: ArrayLike, theta: float
) -> tuple[Float, Float, Float]:
    fraction("theta", theta)
    fresh, guess = np.asarray(updates, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    chance, weight = probabilities("p", p, len(fresh)), np.asarray(alpha, dtype=np.float64)
    if fresh.ndim != 2 or guess.shape != fresh.shape or weight.shape != chance.shape:
        shapes = f"shapes {fresh.shape}, {guess.shape}, {weight.shape}"
        raise fail("updates", shapes, "updates and predicted must be (N, d), p and alpha (N,)")
    return fresh - guess, chance, weight
