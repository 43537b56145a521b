"""How much participation noise a choice of β leaves, against the least that any common β could.

    python benchmarks/noise.py [--quick] [--out FOLDER]
    python benchmarks/noise.py --cell mnist-mlp:0.02:1:0.1 --seeds 3

All 24 clients train, whether they take part in a round or not; so the noise of the server's update given the past,
V(β) = Σ α_i² (1 − p_i)/p_i ‖Δ_i − β_i h_i‖², is known exactly, and so is the β that makes it smallest. Shown is the sum
of V over the second half of the rounds, over the sum of its least values on the same trajectory: 1 is perfect, and only
a β of each client's own can go below. Mean ± standard error over seeds. The grid is of digits-mlp; its rates are those
most often best in the heat map of docs/results (docs/results/benchmarks/noise.csv).

`--cell TASK:P_MIN:SWAP:RATE` looks closer, at every fifth round of the second half: V itself, which depends on where a
β has led, the mean ‖Δ_i‖² of the rare clients, test loss and accuracy (noise-cells.csv, to which cells are added).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import machine
from fedstale import beta as betas
from fedstale.simulation import settings
from fedstale.simulation.build import build

BETAS: tuple[float | str, ...] = (0.0, 0.2, 0.5, 0.8, 1.0, "auto", "auto-per-client")
RATES = {0.5: 0.1, 0.1: 0.1, 0.02: 0.1**1.5, 0.01: 0.1**1.5}
"""p_min and learning rate."""
SWAPS = (0.0, 0.6, 1.0)
SEEDS = range(3)


@dataclass(frozen=True)
class Seen:
    """Means over the second half of a run."""

    noise: float
    """V(β) as it was."""
    least: float
    """V at the common β that makes it smallest."""
    rare: float
    """‖Δ_i‖² of the rare clients."""
    loss: float
    accuracy: float


def follow(task: str, p_min: float, swap: float, beta: float | str, seed: int, lr: float, every: int = 1) -> Seen:
    """Run a setting, and in the second half let everybody train in every so many rounds; scores only if `every` > 1."""
    chosen = settings(task=task, p_min=p_min, swap=swap, beta=beta, seed=seed, lr=lr, evaluate_every=10**6)
    run, chooser = build(chosen), betas.make(beta)
    everybody = np.arange(run.federation.num_clients)
    rare = everybody >= len(everybody) // 2  # the paper's two groups
    weight = np.where(rare, (1 - p_min) / p_min, 0.0) / len(everybody) ** 2
    seen = []
    while not run.done:
        if 2 * run.state.round >= run.rounds and run.state.round % every == 0:
            fresh = np.array(run.trainer.updates(run.model, everybody, run.state.round), dtype=float)
            stale = run.state.memory.rows(everybody)
            own = chooser.of_clients(run.state, everybody)
            inner, squares = np.sum(fresh * stale, axis=1), np.sum(stale**2, axis=1)
            best = np.clip(weight @ inner / (weight @ squares), 0, 1) if weight @ squares > 0 else 0.0
            noise, least = (weight @ np.sum((fresh - b * stale) ** 2, axis=1) for b in (own[:, None], best))
            scores = run.trainer.evaluate(run.model).metrics if every > 1 else {}
            lengths = np.sum(fresh[rare] ** 2, axis=1)
            seen.append((noise, least, lengths.mean(), scores.get("test_loss", 0), scores.get("accuracy", 0)))
        run.step()
    run.state.close()
    return Seen(*(float(value) for value in np.mean(seen, axis=0)))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def cell(text: str, seeds: int, out: Path) -> None:
    """Look closer at one setting; the file keeps those of earlier calls."""
    task, *numbers = text.split(":")
    p_min, swap, lr = map(float, numbers)
    path = out / "noise-cells.csv"
    rows = machine.read(path)
    rows = [row for row in rows if (row["task"], row["p_min"], row["swap"]) != (task, str(p_min), str(swap))]
    for beta in BETAS:
        seen = [follow(task, p_min, swap, beta, seed, lr, every=5) for seed in range(seeds)]
        row = {"task": task, "p_min": str(p_min), "swap": str(swap), "lr": f"{lr:.4g}", "beta": str(beta)}
        row["noise over the least"] = f"{sum(one.noise for one in seen) / sum(one.least for one in seen):.4f}"
        for name in ("noise", "rare", "loss", "accuracy"):
            mean, error = spread([getattr(one, name) for one in seen])
            row |= {name: f"{mean:.5g}", f"{name} error": f"{error:.2g}"}
        rows.append(row | {"seeds": str(seeds)})
        print(" ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    machine.write(path, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one p_min, two seeds, for trials")
    parser.add_argument("--cell", help="TASK:P_MIN:SWAP:RATE, to look closer at one setting")
    parser.add_argument("--seeds", type=int, default=3, help="of --cell")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs/results/benchmarks")
    arguments = parser.parse_args(argv)
    if arguments.cell:
        cell(arguments.cell, arguments.seeds, arguments.out)
        return
    rates = {0.5: RATES[0.5]} if arguments.quick else RATES
    seeds = SEEDS[:2] if arguments.quick else SEEDS
    rows = []
    print("p_min  swap  " + "".join(f"{str(beta).replace('auto-per-client', 'per client'):>15}" for beta in BETAS))
    for p_min, lr in rates.items():
        for swap in SWAPS:
            print(f"{p_min:<6} {swap:<5}", end="", flush=True)
            for beta in BETAS:
                seen = [follow("digits-mlp", p_min, swap, beta, seed, lr) for seed in seeds]
                mean, error = spread([one.noise / one.least for one in seen])
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
