"""The ceiling of the natural federations: one server with everybody's data, beside a federation in which all take part.

    python benchmarks/natural.py wisdm heart-disease shakespeare

For each task the same model is trained twice: on the pooled training data over shuffled epochs (the best of a few rates
by test accuracy, which favours the ceiling), and by FedAvg with all clients in every round at the task's own rate. Both
are judged on all clients' test samples, as the mean over the evaluations in the last tenth. One CSV file per task
goes to docs/results/natural.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedstale as fs
from fedstale.spreadsheet import write_table
from fedstale.tasks import ClientData, Task, make
from fedstale.tasks.defaults import full_name

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "natural"


@dataclass(frozen=True)
class Extent:
    """How long a task is trained: epochs and rates of the pooled data, rounds of the federation, seeds."""

    epochs: int
    rates: tuple[float, ...]
    rounds: int
    seeds: int


EXTENTS = {
    "wisdm": Extent(60, (0.3, 0.1, 0.03), 600, 3),
    "heart-disease": Extent(100, (0.3, 0.1, 0.03), 200, 3),
    "shakespeare": Extent(8, (0.003,), 30, 1),
}


def pooled(task: Task) -> Task:
    """Return the task with everybody's samples in one place."""

    def together(split: ClientData) -> ClientData:
        return ClientData(split.x, split.y, np.array([0, split.num_samples]))

    alone = np.zeros(1, dtype=np.int64)
    name = f"{task.name}, pooled"
    return replace(task, name=name, train=together(task.train), test=together(task.test), groups=alone, client_names=())


def accuracy(task: Task, seed: int, rounds: int, **options: Any) -> float:
    everyone = fs.Bernoulli(np.ones(task.num_clients))
    every = max(1, rounds // 30)
    run = fs.simulate(
        task,
        "fedavg",
        everyone,
        rounds=rounds,
        seed=seed,
        evaluate_every=every,
        objective=False,
        progress=False,
        **options,
    )
    return run.tail("accuracy")


def measure(name: str) -> None:
    task, extent = make(name), EXTENTS[name]
    central = pooled(task)
    rows = []
    for rate in extent.rates:
        for seed in range(extent.seeds):
            found = accuracy(central, seed, extent.epochs, epochs=1, lr=rate)
            rows.append([full_name(name), "pooled", extent.epochs, rate, seed, found])
            print(*rows[-1], flush=True)
    for seed in range(extent.seeds):
        found = accuracy(task, seed, extent.rounds)
        rows.append([full_name(name), "federation", extent.rounds, task.default_lr, seed, found])
        print(*rows[-1], flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    headings = ["task", "data", "epochs or rounds", "lr", "seed", "accuracy"]
    write_table(RESULTS / f"{name}.csv", headings, rows)
    by_rate = [np.mean([row[-1] for row in rows if row[1] == "pooled" and row[3] == rate]) for rate in extent.rates]
    ceiling = float(max(by_rate))
    reached = float(np.mean([row[-1] for row in rows if row[1] == "federation"]))
    verdict = "within" if ceiling - reached <= 0.03 else "NOT within"
    print(f"{name}: ceiling {ceiling:.1%}, everybody in every round {reached:.1%}: {verdict} 3 points")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(EXTENTS), help="wisdm, heart-disease, shakespeare")
    for chosen in parser.parse_args().tasks:
        measure(chosen)
