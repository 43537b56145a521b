"""How fast a sweep is: runs in lock-step against the same runs one after another with the plain loop, on one core.

    python benchmarks/sweep.py [--rounds 100] [--repeats 3] [--json FILE]
    python benchmarks/sweep.py --fig2 [--workers 2]

The first form runs 30 runs of the heat map (five β, six label swaps, one rate, one seed) on digits-mlp at p_min = 0.1:
as `PlainLoop` (local training and a mean: no memory, no evaluation, nothing stored) and as one lock-step batch (with
its server and evaluations), in turn, again and again, on one thread; medians are compared. It also compares accuracies
of three of the runs with the round loop's. The second form runs the 720 runs of Figure 2 (eight p_min, six swaps, five
β, three seeds, one rate) into a store of their own and tells time and peak memory.

Targets: >= 15 times per run and core; 720 runs in <= 15 minutes on two cores, below 4 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedstale import sweeps, tasks
from fedstale.paper.grids import BETAS, SWAPS, Extent
from fedstale.participation import Bernoulli
from fedstale.simulation import Settings, build, make_settings
from fedstale.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.plain_loop import PlainLoop
from benchmarks.tree import Peak

P_MIN, LR = 0.1, 0.1


def batch(rounds: int) -> list[Settings]:
    return [
        make_settings(beta=beta, swap=swap, p_min=P_MIN, lr=LR, rounds=rounds, evaluate_every=max(1, rounds // 50))
        for beta in BETAS
        for swap in SWAPS
    ]


def plain_run(loop: PlainLoop, rounds: int) -> None:
    """One run's local training, in the plain loop; the server step is a mean."""
    weights = [p.detach().clone() for p in loop.model.parameters()]
    process = Bernoulli.two_groups(24, P_MIN)
    for t in range(rounds):
        step = loop.updates(weights, process.available(0, t).tolist()).mean(0)
        start = 0
        for weight in weights:
            weight -= step[start : start + weight.numel()].view_as(weight)
            start += weight.numel()


def speed(rounds: int, repeats: int) -> dict[str, float]:
    runs = batch(rounds)
    configs = [one.record() for one in runs]
    task = tasks.make("digits-mlp", progress=False)
    loop = PlainLoop(task, lr=LR, steps=task.local_steps, batch_size=task.batch_size)
    seconds: dict[str, list[float]] = {"plain": [], "lockstep": []}
    for turn in range(repeats + 1):
        began = time.perf_counter()
        plain_run(loop, rounds)
        middle = time.perf_counter()
        sweeps.run_batch(configs, True)
        ended = time.perf_counter()
        if turn:
            seconds["plain"].append(middle - began)
            seconds["lockstep"].append((ended - middle) / len(runs))
    each = {name: statistics.median(values) for name, values in seconds.items()}
    return {**each, "ratio": each["plain"] / each["lockstep"]}


def same_accuracies(rounds: int) -> float:
    """The largest difference of an accuracy between lock-step and the round loop."""
    runs = batch(rounds)
    outcomes = sweeps.run_batch([one.record() for one in runs], True)
    worst = 0.0
    for k in (0, len(runs) // 2, len(runs) - 1):
        simulation = build(runs[k].replace(engine="loop", threads=1), progress=False)
        simulation.run()
        alone = {record.round: record.metrics.get("accuracy") for record in simulation.records}
        for t, metrics in outcomes[k].rows:
            worst = max(worst, abs(metrics["accuracy"] - float(alone[t] or 0.0)))
    return worst


def fig2(workers: int) -> dict[str, float]:
    runs = Extent.full("digits-mlp").replace(betas=BETAS, rates=[LR]).fig2()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder)) as store:

        def report(progress: sweeps.SweepProgress) -> None:
            share = progress.worked / max(progress.work, 1)
            print(f"\r{progress.done} of {progress.total} runs, {share:.0%} of the rounds", end="", flush=True)

        with Peak() as peak:
            progress = sweeps.sweep(runs, store, name="fig2", executor=sweeps.processes(workers), report=report)
        print()
    return {
        "runs": progress.done - len(progress.failures),
        "minutes": (time.perf_counter() - began) / 60,
        "peak GB": peak.bytes / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of every run")
    parser.add_argument("--repeats", type=int, default=3, help="timed turns")
    parser.add_argument("--fig2", action="store_true", help="the 720 runs of Figure 2")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of --fig2")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, numpy {np.__version__}, one thread")
    if arguments.fig2:
        numbers = fig2(arguments.workers)
    else:
        numbers = speed(arguments.rounds, arguments.repeats)
        numbers["largest difference of an accuracy"] = same_accuracies(arguments.rounds)
    for name, value in numbers.items():
        print(f"{name:40s} {value:.4g}")
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
