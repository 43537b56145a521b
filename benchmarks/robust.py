"""What robust combination costs and what it is worth: the error of a round over all participation sets, and its time.

    python -m benchmarks.robust

Eight clients, p from 1 to 0.2, d = 20. Their updates differ by vectors of length 1 around a common one of length 1;
what the memory holds is wrong by vectors of a given length. The error is ‖E[Δ] − Σ α_i Δ_i‖ over ‖Σ α_i Δ_i‖ of the
honest updates, once as it is and once with one client that sends a hundred times its update. Time: one round of 24
updates of 100,000 parameters, the median of interleaved repetitions, over that of the rule alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tests.enumeration import expectation

import fedstale as fs
from fedstale.rules import Robust, Rule

Array = NDArray[np.float64]
N, D = 8, 20
P = np.linspace(1.0, 0.2, N)
INNER = fs.UnbiasedFedVARP()
RULES: dict[str, Rule] = {
    "none": INNER,
    "norms:3": Robust(INNER, method="norms", ratio=3.0),
    "trimmed:0.1": Robust(INNER, method="trimmed", trim=0.1),
    "trimmed:0.2": Robust(INNER, method="trimmed", trim=0.2),
    "trimmed:0.3": Robust(INNER, method="trimmed", trim=0.3),
    "median": Robust(INNER, method="median"),
}


def _directions(chance: np.random.Generator, count: int) -> Array:
    vectors = chance.normal(size=(count, D))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def error(rule: Rule, noise: float, factor: float, seeds: Sequence[int]) -> float:
    """The error of E[Δ], mean over problems; the last client but one sends `factor` times its update."""
    found = []
    for seed in seeds:
        chance = np.random.default_rng(seed)
        updates = _directions(chance, 1) + _directions(chance, N)
        memory = updates + noise * _directions(chance, N)
        honest = updates.mean(axis=0)
        sent = updates.copy()
        sent[-2] *= factor

        def prepare(memory: Array = memory) -> fs.State:
            state = INNER.init(fs.Federation(N, D), memory="ram:float64")
            INNER.combine(state, fs.Round(0, np.arange(N), memory, probabilities=P))
            return state

        found.append(np.linalg.norm(expectation(rule, prepare, sent, P) - honest) / np.linalg.norm(honest))
    return float(np.mean(found))


def times(repetitions: int = 7) -> dict[str, float]:
    """The time of a round over that of the rule alone, interleaved."""
    n, d = 24, 100_000
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(n, d)).astype(np.float32)
    states = {name: rule.init(fs.Federation(n, d)) for name, rule in RULES.items()}
    taken: dict[str, list[float]] = {name: [] for name in RULES}
    for t in range(repetitions + 1):
        for name, rule in RULES.items():
            began = time.process_time()
            rule.combine(states[name], fs.Round(t, np.arange(n), rows, probabilities=np.full(n, 0.5)))
            taken[name] += [time.process_time() - began] if t else []
    alone = float(np.median(taken["none"]))
    return {name: float(np.median(values)) / alone for name, values in taken.items()}


def main() -> None:
    """Print the table."""
    seeds, ratio = range(10), times()
    print("| robust | error, memory wrong by 1 | by 0.1 | with ×100, by 1 | by 0.1 | time of a round |")
    print("|---|---|---|---|---|---|")
    for name, rule in RULES.items():
        cells = [f"{error(rule, noise, factor, seeds):.3f}" for factor in (1.0, 100.0) for noise in (1.0, 0.1)]
        print(f"| {name} | {' | '.join(cells)} | {ratio[name]:.1f} × |")


if __name__ == "__main__":
    main()
