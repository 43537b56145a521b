"""The exact chance that a client is available *and* asked, for independent clients (spec §5).

Wanted is E[X_i g(A)] = p_i E[g(1 + A_i)], where A = ΣX_j counts the available clients, A_i counts them
without i, and g(a) is the chance that one of a available clients is asked. A has the Poisson-binomial law.
Its probabilities come from its characteristic function by a discrete Fourier transform over the window that
holds all but 1e-19 of the mass; the law of A_i follows by taking one Bernoulli factor out again, in the
direction in which errors shrink. The cost is (distinct p) × (width of the window), so a million clients with
a few distinct p take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, probabilities
from ..federation import Ints

_EXACT_WORK = 20_000_000
_BINS = 4096


def expected_inclusion(p: Float, asked: Callable[[Ints], Float]) -> Float:
    """Return p_i E[asked(1 + Σ_{j≠i} X_j)] for independent X_j ~ Bernoulli(p_j), shape (N,).

    Exact to rounding while (distinct p) × (window) stays below `_EXACT_WORK`, which covers every N up to about 10,000
    and any N with few distinct p. Beyond that, p_j is replaced in the law of the sum by the mean of its bin, one of
    `_BINS` of equal width: the mean of A stays exact, its variance moves by less than N/(4·BINS²); between the bins
    the result is interpolated.

    Parameters
    ----------
    p
        Probabilities in [0, 1], shape (N,).
    asked
        g(a) for an array of counts a ≥ 1.
    """
    values, counts = np.unique(p, return_counts=True)
    low, high = _window(values, counts)
    if values.size * (high - low + 1) > _EXACT_WORK:
        bins = np.minimum((p - values[0]) * (_BINS / (values[-1] - values[0])), _BINS - 1).astype(np.int64)
        _, inverse, counts = np.unique(bins, return_inverse=True, return_counts=True)
        values = np.bincount(inverse, weights=p) / counts
    pmf = _poisson_binomial(values, counts, low, high)
    gain = asked(np.arange(low + 1, high + 2))
    # A chance is at most 1; rounding makes it 1 + 1e-14 where everybody is asked, and no p_i may be above 1.
    return np.asarray(p * np.minimum(np.interp(p, values, _without_one(pmf, gain, values)), 1.0))


def averaging_weights(p: ArrayLike) -> Float:
    """Return E[1{i ∈ S}/|S|], shape (N,): how much each client counts when whoever came is averaged (FedAvg, Eq. 2).

    FedAvg's mean update is Σ w_i Δ_i with these weights, for independent clients and equal α_i: it minimises Σ w_i F_i.
    The paper's p_i/Σ p_j (Eq. 4) is an approximation for many participants, and what E[1{i ∈ S}]/E|S| would give: for
    p = (1, 0.5) it is (0.667, 0.333), and exactly w = (0.75, 0.25). The w_i sum to P(S is not empty).

    Parameters
    ----------
    p
        Probabilities in (0, 1], shape (N,).
    """
    return expected_inclusion(probabilities("p", p), lambda size: 1.0 / size)


def _poisson_binomial(values: Float, counts: Ints, low: int, high: int) -> Float:
    """Return P(A = low), …, P(A = high) for counts[k] independent Bernoulli(values[k]) summed over k."""
    width = high - low + 1
    angle = 2.0 * np.pi * np.arange(width // 2 + 1) / width
    log_size = np.zeros(angle.size)
    phase = -low * angle
    block = max(1, 1_000_000 // angle.size)
    for start in range(0, values.size, block):
        q = values[start : start + block, None]
        c = counts[start : start + block].astype(np.float64)
        with np.errstate(divide="ignore"):  # p = 1/2 at angle π is a true zero: log 0 = −inf, exp gives 0 again
            log_size += c @ (0.5 * np.log1p(np.maximum(-4.0 * q * (1.0 - q) * np.sin(angle / 2.0) ** 2, -1.0)))
        phase += c @ np.arctan2(q * np.sin(angle), 1.0 - q + q * np.cos(angle))
    transform = np.exp(log_size) * np.exp(-1j * phase)
    return np.maximum(np.fft.irfft(transform, width), 0.0)


def _window(values: Float, counts: Ints) -> tuple[int, int]:
    """Return the counts that matter: Bernstein's inequality leaves less than 1e-19 outside."""
    mean = float(counts @ values)
    reach = 12.0 * float(counts @ (values * (1.0 - values))) ** 0.5 + 30.0
    return max(0, int(mean - reach)), min(int(counts.sum()), int(np.ceil(mean + reach)))


def _without_one(pmf: Float, gain: Float, values: Float) -> Float:
    """Return Σ_k gain[k] P(A_i = low + k) for each distinct p.

    P(A = k) = (1−p) P(A_i = k) + p P(A_i = k−1) is solved for A_i upwards when p ≤ 1/2 and downwards
    otherwise: the error of one step is multiplied by at most 1 in the next.
    """
    result = np.zeros(values.size)
    small = values <= 0.5
    p = values[small]
    law = np.zeros(p.size)
    for mass, g in zip(pmf, gain, strict=True):
        law = (mass - p * law) / (1.0 - p)
        result[small] += g * law
    p = values[~small]
    law = np.zeros(p.size)
    for mass, g in zip(pmf[:0:-1], gain[-2::-1], strict=True):
        law = (mass - (1.0 - p) * law) / p
        result[~small] += g * law
    return result
