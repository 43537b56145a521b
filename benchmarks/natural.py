"""The ceiling of the natural federations: one server with everybody's data, beside a federation in which all take part.

    python benchmarks/natural.py wisdm heart-disease shakespeare
    python benchmarks/natural.py shakespeare --seeds 3        # one seed of it; lines of other seeds stay

For each task the same model is trained twice: on the pooled training data over shuffled epochs (the best of a few
rates by test accuracy, which favours the ceiling), and by FedAvg with all clients in every round at the task's own
rate, which was chosen on other seeds (`--choose`). Both are judged on all clients' test samples, as the mean over the
evaluations in the last tenth. One CSV file per task goes to docs/results/natural.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedstale as fs
from fedstale.spreadsheet import write_table
from fedstale.tasks import ClientData, Task, make
from fedstale.tasks.defaults import full_name

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "natural"
HEADINGS = ["task", "data", "epochs or rounds", "lr", "seed", "accuracy"]
CHOOSING, JUDGING = (100, 101), (2, 3, 4)
"""Seeds on which a task's rate is chosen, and those of the tables."""
Key = tuple[str, str, int, float, int]


@dataclass(frozen=True)
class Extent:
    """How long a task is trained: epochs and rates of the pooled data, rounds of the federation."""

    epochs: int
    rates: tuple[float, ...]
    rounds: int
    rounds_to_choose: int
    """with each rate that is tried"""


EXTENTS = {
    "wisdm": Extent(60, (0.3, 0.1, 0.03), 600, 600),
    "heart-disease": Extent(100, (0.3, 0.1, 0.03), 200, 200),
    "shakespeare": Extent(16, (0.01, 0.003, 0.001), 150, 16),
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


class Rows:
    """The lines of a task's file; what is measured replaces a line of the same training, and is written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[Key, float] = {}

    def read(self) -> None:
        """Take up what there is."""
        self.found = {}
        if self.path.is_file():
            with open(self.path, encoding="utf-8", newline="") as file:
                for task, data, extent, lr, seed, value in list(csv.reader(file))[1:]:
                    self.found[task, data, int(extent), float(lr), int(seed)] = float(value)

    def add(self, key: Key, value: float) -> None:
        """Write a line; those that others wrote meanwhile stay."""
        self.read()
        self.found[key] = value
        write_table(self.path, HEADINGS, [[*one, self.found[one]] for one in sorted(self.found)])
        print(*key, f"{value:.4f}", flush=True)

    def mean(self, data: str, rate: float, extent: int) -> float:
        """The mean over seeds."""
        values = [v for (_, what, long, lr, _), v in self.found.items() if (what, lr, long) == (data, rate, extent)]
        return float(np.mean(values)) if values else float("nan")


def choose(name: str, seeds: list[int]) -> None:
    """Try the rates of the task on seeds of their own; the best is to be the task's default."""
    task, extent, rows = make(name), EXTENTS[name], Rows(RESULTS / f"{name}-rates.csv")
    for rate in task.lr_grid:
        for seed in seeds:
            key = full_name(name), "federation", extent.rounds_to_choose, rate, seed
            rows.add(key, accuracy(task, seed, extent.rounds_to_choose, lr=rate))
    by_rate = {rate: rows.mean("federation", rate, extent.rounds_to_choose) for rate in task.lr_grid}
    best = max(by_rate, key=lambda rate: by_rate[rate])
    edge = ", AT AN EDGE" if best in (task.lr_grid[0], task.lr_grid[-1]) else ""
    print(f"{name}: best rate {best:g}{edge}; the task has {task.default_lr:g}")


def measure(name: str, seeds: list[int]) -> None:
    """Train on the pooled data and as a federation."""
    task, extent, rows = make(name), EXTENTS[name], Rows(RESULTS / f"{name}.csv")
    central = pooled(task)
    for seed in seeds:
        for rate in extent.rates:
            key = full_name(name), "pooled", extent.epochs, rate, seed
            rows.add(key, accuracy(central, seed, extent.epochs, epochs=1, lr=rate))
        key = full_name(name), "federation", extent.rounds, task.default_lr, seed
        rows.add(key, accuracy(task, seed, extent.rounds))
    ceiling = max(rows.mean("pooled", rate, extent.epochs) for rate in extent.rates)
    reached = rows.mean("federation", task.default_lr, extent.rounds)
    verdict = "within" if ceiling - reached <= 0.03 else "NOT within"
    print(f"{name}: ceiling {ceiling:.1%}, everybody in every round {reached:.1%}: {verdict} 3 points")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(EXTENTS), help="wisdm, heart-disease, shakespeare")
    parser.add_argument("--choose", action="store_true", help="try rates instead, on the seeds 100 and 101")
    parser.add_argument("--seeds", help="some of the seeds, separated by commas")
    asked = parser.parse_args()
    chosen = CHOOSING if asked.choose else JUDGING
    for one in asked.tasks:
        (choose if asked.choose else measure)(
            one, [int(s) for s in asked.seeds.split(",")] if asked.seeds else [*chosen]
        )
