"""How much participation noise a choice of β leaves, against the least that any common β could.

    python benchmarks/noise.py [--quick] [--out FILE]

In every round of a run of digits-mlp all 24 clients train, whether they take part or not; so the noise of the server's
update given the past, V(β) = Σ α_i² (1 − p_i)/p_i ‖Δ_i − β_i h_i‖², is known exactly, and so is the β that makes it
smallest. Printed is the sum of V over the second half of the rounds, over the sum of its least values on the same
trajectory: 1 is perfect, and only a β of each client's own can go below. Seeds 0 to 2, mean ± standard error. Rates are
those most often best in the heat map of docs/results. Nothing is timed. Results: docs/results/benchmarks/noise.csv.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from fedstale import beta as betas
from fedstale.simulation import settings
from fedstale.simulation.build import build

BETAS: tuple[float | str, ...] = (0.0, 0.2, 0.5, 0.8, 1.0, "auto", "auto-per-client")
RATES = {0.5: 0.1, 0.1: 0.1, 0.02: 0.1**1.5, 0.01: 0.1**1.5}
"""p_min and learning rate."""
SWAPS = (0.0, 0.6, 1.0)
SEEDS = range(3)


def excess(p_min: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
    """Noise of a run over the least that a common β would have had on its trajectory."""
    chosen = settings(task="digits-mlp", p_min=p_min, swap=swap, beta=beta, seed=seed, lr=lr, evaluate_every=10**6)
    run, chooser = build(chosen), betas.make(beta)
    everybody = np.arange(run.federation.num_clients)
    p = np.where(everybody < len(everybody) // 2, 1.0, p_min)  # the paper's two groups
    weight = (1 - p) / p  # α_i is the same for all of them
    left, least = 0.0, 0.0
    while not run.done:
        fresh = np.array(run.trainer.updates(run.model, everybody, run.state.round), dtype=float)
        stale = run.state.memory.rows(everybody)
        own = chooser.of_clients(run.state, everybody)
        inner, squares = np.sum(fresh * stale, axis=1), np.sum(stale**2, axis=1)
        best = np.clip(weight @ inner / (weight @ squares), 0, 1) if weight @ squares > 0 else 0.0
        if 2 * run.state.round >= run.rounds:
            left += float(weight @ np.sum((fresh - own[:, None] * stale) ** 2, axis=1))
            least += float(weight @ np.sum((fresh - best * stale) ** 2, axis=1))
        run.step()
    run.state.close()
    return left / least


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one p_min, two seeds, for trials")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs/results/benchmarks")
    arguments = parser.parse_args(argv)
    rates = {0.5: RATES[0.5]} if arguments.quick else RATES
    seeds = SEEDS[:2] if arguments.quick else SEEDS
    rows = []
    print("p_min  swap  " + "".join(f"{str(beta).replace('auto-per-client', 'per client'):>15}" for beta in BETAS))
    for p_min, lr in rates.items():
        for swap in SWAPS:
            print(f"{p_min:<6} {swap:<5}", end="", flush=True)
            for beta in BETAS:
                seen = [excess(p_min, swap, beta, seed, lr) for seed in seeds]
                mean, error = fmean(seen), stdev(seen) / len(seen) ** 0.5
                rows.append([p_min, swap, f"{lr:.4g}", beta, f"{mean:.4f}", f"{error:.4f}", len(seen)])
                print(f"  {mean:6.3f} ±{error:6.3f}", end="", flush=True)
            print(flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "noise.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["p_min", "swap", "lr", "beta", "noise over the least", "standard error", "seeds"])
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
