"""Results as a sweep would leave them, with accuracies that a function makes up: for tests of tables and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedstale.analysis import MeasuredRun
from fedstale.paper.grids import BETAS, P_MIN, SWAPS
from fedstale.simulation import make_settings

Accuracy = Callable[[float, float, float | str, int, float], float]
"""Of p_min, swap, β, seed and rate."""


def measured(
    accuracy: Accuracy,
    *,
    p_min: Iterable[float] = P_MIN,
    swaps: Iterable[float] = SWAPS,
    betas: Iterable[float | str] = (*BETAS, "auto"),
    seeds: int = 3,
    rates: Iterable[float] = (0.1,),
    probabilities: str = "known",
) -> list[MeasuredRun]:
    rows = []
    for p in p_min:
        for swap in swaps:
            for beta in betas:
                for seed in range(seeds):
                    for lr in rates:
                        one = make_settings(
                            p_min=p, swap=swap, beta=beta, seed=seed, lr=lr, probabilities=probabilities
                        )
                        value = accuracy(p, swap, beta, seed, lr)
                        metrics = {"accuracy": value, "swap_train": swap, "swap_test": swap - 0.01 * seed}
                        rows.append(MeasuredRun(one, value, metrics, 3 if value != value else None))
    return rows


def as_the_paper_says(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
    """A world in which β* falls with participation heterogeneity and rises with data heterogeneity."""
    import math

    wish = 0.55 + 1.2 * (swap - 0.25) - 0.55 * math.log10((1 + p) / 2 / p)
    best = 1.0 if p == 0.5 and swap >= 0.2 else 0.0 if p <= 0.02 and swap <= 0.2 else min(0.8, max(0.2, wish))
    chosen = best if isinstance(beta, str) else beta
    return 0.95 - 0.1 * (chosen - best) ** 2 - 0.1 * swap + 0.0001 * ((seed * 7 + int(10 * chosen) * 3) % 5)
