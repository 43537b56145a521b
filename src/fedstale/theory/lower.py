"""Lower bound (Theorem `corollary:lower_bound`) and the number of reachable coordinates k^(t) behind it.

The formula is the printed one, and it holds, but not by the printed steps:

- min ‖∇F‖² over span{e_1 … e_k} is exactly 3L²/(8(k+1)(k+2)(2k+3)). The proof replaces it by
  6L(F(w₁)−F*)/((k+1)(2k+3)²), which is *larger* for k+1 < t (by up to (2k+4)/(2k+3)), because F(w₁)−F*
  belongs to dimension 2t+1, not 2k+3;
- Lemma `lem:kt_upper_bound` is about a client that comes exactly every τ-th round, with a whole τ ≥ 2: its
  base case fails for τ < 2. The step from there to E[k^(t)] for random participation is not proved.

Both are mended by E[k^(t)] ≤ 1 + 2pt: client i₁ reveals at most one coordinate in each of its rounds 1 … t,
and i₀ at most one more than i₁ in all. Jensen with the exact minimum then gives 3L²/(8(2x+2)(2x+3)(4x+5)),
x = pt, which is above the printed bound as (2x+2)(2x+3)(4x+5) ≤ (x+2)(4x+9)² and F(w₁)−F* ≤ L/8.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import fail, number, positive_int, probability
from ..randomness import generator

Ints = NDArray[np.int64]


def lower_bound(L: float, gap: float, p_min: float, t: int) -> float:
    """Return 3L(F(w₁)−F*)/((p_min t+2)(4 p_min t+9)²); `gap` = F(w₁)−F* on the instance of horizon `t`."""
    number("L", L, 0.0, open_low=True)
    number("gap", gap, 0.0)
    x = probability("p_min", p_min) * positive_int("t", t)
    return 3.0 * L * gap / ((x + 2.0) * (4.0 * x + 9.0) ** 2)


def reach(active_first: ArrayLike, active_second: ArrayLike) -> Ints:
    """Follow k^(t), the largest coordinate that can be non-zero after each round (Eq. `k_it_increment`).

    Parameters
    ----------
    active_first, active_second
        Whether clients i₀ and i₁ take part, shape (…, rounds), from round t = 0. Before it, k = 0. A client's
        gradient reveals the next coordinate only from its own parity: i₀ from even k, i₁ from odd k.
    """
    first, second = np.asarray(active_first), np.asarray(active_second)
    for name, array in (("active_first", first), ("active_second", second)):
        if array.dtype != np.bool_ or array.ndim == 0 or array.shape != first.shape:
            found = f"{array.dtype} array of shape {array.shape}"
            raise fail(name, found, "both must be bool arrays of the same shape (…, rounds)")
    k = np.zeros((*first.shape[:-1], first.shape[-1] + 1), dtype=np.int64)
    for t in range(first.shape[-1]):
        before = k[..., t]
        k[..., t + 1] = before + np.where(before % 2 == 0, first[..., t], second[..., t])
    return k[..., 1:]


def simulate_reach(p: float, rounds: int, repetitions: int, seed: int = 0) -> Ints:
    """Draw k^(t) with i₀ always there and i₁ there with probability `p`; shape (repetitions, rounds)."""
    probability("p", p)
    shape = (positive_int("repetitions", repetitions), positive_int("rounds", rounds))
    draws = [generator(seed, "hard instance", i).random(shape[1]) for i in range(shape[0])]
    return reach(np.ones(shape, dtype=np.bool_), np.stack(draws) < p)


def reach_bound(p: float, t: int) -> int:
    """Bound k^(t) by 1 + ⌊(t+τ−2)/τ⌋ + ⌊(t+τ−1)/τ⌋ (Lemma `lem:kt_upper_bound`): i₁ comes each τ = 1/p.

    τ must be a whole number of at least 2: the lemma's base case and its use of t mod τ need it.
    """
    tau = round(1.0 / probability("p", p))
    if tau < 2 or not math.isclose(tau * p, 1.0, rel_tol=1e-9):
        raise fail("p", p, "must be 1/2, 1/3, 1/4, …: the lemma counts in whole periods of at least 2 rounds")
    positive_int("t", t, 0)
    return 1 + (t + tau - 2) // tau + (t + tau - 1) // tau


def expected_reach_bound(p: float, t: int) -> float:
    """Bound E[k^(t)] by 1 + 2pt when i₁ takes part with probability `p`; sharper than the paper's 3 + 2pt."""
    return 1.0 + 2.0 * probability("p", p) * positive_int("t", t, 0)
