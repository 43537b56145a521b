"""FedStale in one file, to be read beside the paper: Rodio and Neglia, FedStale, ECAI 2024. NumPy only.

The setting is that of Section 5: 24 clients, of which half always take part and half with p_min = 0.05 (p_avg/p_min
is about 10, as in Figure 3); the rare half disagrees with the others about two labels in 60 % of the cases; K = 5
local steps, batches of 128 of 500 samples, T = 10/p_min = 200 rounds. The data is made up (five Gaussian clouds) and
the model is a softmax regression, so that the optimum w* of Eq. 1 can be computed, and with it what Section 3 is about:

    bias      how far the model is from w* on average (over the second half of the rounds, and over seeds)
    variance  how far it is from its own average
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rule = Callable[[Array, Array, Array, Array], Array]

N, SAMPLES, FEATURES, CLASSES = 24, 500, 10, 5
P_MIN, SWAP = 0.05, 0.6
K, BATCH, ETA_C, ETA_S = 5, 128, 0.1, 1.0
T, SEEDS = round(10 / P_MIN), 3
DECAY = 0.01  # makes F strongly convex: one optimum

ALPHA = np.full(N, 1 / N)  # Eq. 1 with per-client fairness
P = np.where(np.arange(N) < N // 2, 1.0, P_MIN)  # Section 5.1: two groups


# ComputeUpdate of Algorithm 1: from the updates of those who came to one global update Δ. In all of them:
#   fresh  Δ_i of the participants, shape (|S|, d)        who    their indices, S
#   stale  h_i of all clients, shape (N, d)               p      participation probabilities, shape (N,)


def fedavg(fresh: Array, who: Array, p: Array, stale: Array) -> Array:
    """Eq. 2. Minimises about Σ p_i F_i / Σ p_j instead of F (Eqs. 3 and 4)."""
    return fresh.mean(axis=0) if len(who) else np.zeros(stale.shape[1])


def unbiased_fedavg(fresh: Array, who: Array, p: Array, stale: Array) -> Array:
    """Eq. 5. Unbiased, but a client that rarely comes has the large weight 1/p_i when it does."""
    return (ALPHA / p)[who] @ fresh


def fedstale(beta: float) -> Rule:
    """Eqs. 8 and 9. β = 0 is unbiased FedAvg, β = 1 is unbiased FedVARP (Eq. 7)."""

    def combine(fresh: Array, who: Array, p: Array, stale: Array) -> Array:
        return beta * ALPHA @ stale + (ALPHA / p)[who] @ (fresh - beta * stale[who])

    return combine


METHODS: dict[str, Rule] = {
    "FedAvg": fedavg,
    "U-FedAvg": unbiased_fedavg,
    "FedStale(0.5)": fedstale(0.5),
    "FedStale(0.8)": fedstale(0.8),
    "U-FedVARP": fedstale(1.0),
}


def make_data() -> tuple[Array, Array]:
    """Samples (N, SAMPLES, FEATURES) and labels (N, SAMPLES); the rare clients swap labels 3 and 4 in some of them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES))
    y = rng.integers(CLASSES, size=(N, SAMPLES))
    x = centres[y] + rng.normal(size=(N, SAMPLES, FEATURES))
    swapped = (rng.random((N, SAMPLES)) < SWAP) & (y >= 3) & (P < 1)[:, None]
    return x, np.where(swapped, 7 - y, y)


def gradient(w: Array, x: Array, y: Array) -> Array:
    """∇F_i of softmax regression for many clients at once: w (n, d), x (n, m, FEATURES), y (n, m)."""
    scores = x @ w.reshape(-1, FEATURES, CLASSES)
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    error = scores / scores.sum(axis=2, keepdims=True) - np.eye(CLASSES)[y]
    slope: Array = x.transpose(0, 2, 1) @ error / x.shape[1]
    return slope.reshape(w.shape) + DECAY * w


def optimum(x: Array, y: Array) -> Array:
    """w*, where Σ α_i ∇F_i = 0: plain gradient descent on everything."""
    w = np.zeros(FEATURES * CLASSES)
    for _ in range(300):
        w -= ALPHA @ gradient(np.tile(w, (N, 1)), x, y)
    return w


def local_updates(w: Array, who: Array, x: Array, y: Array, seed: int, t: int) -> Array:
    """K steps of local SGD from w at every participant: Δ_i = w − w_i^K (Algorithm 1)."""
    local: Array = np.tile(w, (len(who), 1))
    for k in range(K):  # the batch is a function of seed, round and step: all methods see the same
        batch = np.random.default_rng([seed, t, k]).integers(SAMPLES, size=(N, BATCH))[who]
        rows = who[:, None], batch
        local -= ETA_C * gradient(local, x[rows], y[rows])
    return np.asarray(w - local)


def federate(combine: Rule, x: Array, y: Array, seed: int) -> Array:
    """Algorithm 1 (with Algorithm 2 for the memory); returns the models of all rounds, shape (T, d)."""
    w = np.zeros(FEATURES * CLASSES)
    stale = np.zeros((N, len(w)))  # h_i = 0 until client i was seen
    models = []
    for t in range(T):
        who = np.flatnonzero(np.random.default_rng([seed, t]).random(N) < P)
        fresh = local_updates(w, who, x, y, seed, t)
        w = w - ETA_S * combine(fresh, who, P, stale)  # nobody came: the stale term still counts
        stale[who] = fresh  # h_i ← Δ_i, after the update was computed
        models.append(w)
    return np.array(models)


def accuracy(models: Array, x: Array, y: Array) -> float:
    """Share of right answers of each model, averaged over models."""
    answers = (x.reshape(-1, FEATURES) @ models.reshape(-1, FEATURES, CLASSES)).argmax(axis=2)
    return float((answers == y.ravel()).mean())


def main() -> None:
    x, y = make_data()
    best = optimum(x, y)
    print(f"N = {N}, p_min = {P_MIN}, label swap {SWAP}, T = {T}, K = {K}, η_c = {ETA_C}, {SEEDS} seeds")
    print(f"{'method':<14}{'bias':>8}{'variance':>10}{'frequent':>11}{'rare':>9}")
    for name, combine in METHODS.items():
        late = np.array([federate(combine, x, y, seed)[T // 2 :] for seed in range(SEEDS)])
        mean = late.mean(axis=(0, 1))
        bias, variance = np.linalg.norm(mean - best), ((late - mean) ** 2).sum(axis=2).mean()
        groups = [accuracy(late[:, ::10], x[half], y[half]) for half in (P == 1, P < 1)]
        print(f"{name:<14}{bias:>8.3f}{variance:>10.4f}{groups[0]:>11.1%}{groups[1]:>9.1%}")


if __name__ == "__main__":
    main()
