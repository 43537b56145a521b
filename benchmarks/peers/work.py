"""The three works, and what contenders share: shards, model, batches, evaluation, the clock. Torch and NumPy only.

(a) cnn       the paper's MNIST CNN, 24 clients, all of them in every round, K = 5 local steps, batch 128
(b) logistic  logistic regression on MNIST, 1,000 clients of 60 samples, 10 a round, one local epoch, batch 10, 100
              rounds: the setting of FLUTE's published comparison
(c) digits    MLP 64-32-10 on the 8×8 digits, 24 clients, all of them in every round, K = 5, batch 32, 500 rounds
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

BEGAN = "PEERS_BEGAN"
"""The environment variable in which the race says when it started a contender."""


@dataclass(frozen=True)
class Work:
    """One work.

    Parameters
    ----------
    task, share
        The name of the task in fedstale and the part of its data that is used; None: the task's own.
    clients, cohort
        N, and how many take part in a round.
    rounds
        T.
    steps, batch, lr
        K, B and η_c of local SGD.
    epoch
        Whether the K batches are one pass over the client's shuffled samples; otherwise they are drawn with
        replacement.
    evaluate_every
        Rounds between evaluations on all test data.
    tolerance
        How far a contender's accuracy at the end may be from the plain loop's.
    """

    task: str
    share: float | None
    clients: int
    cohort: int
    rounds: int
    steps: int
    batch: int
    lr: float
    epoch: bool
    evaluate_every: int
    tolerance: float

    @property
    def samples(self) -> int:
        """Samples that are processed in one round."""
        return self.cohort * self.steps * self.batch

    def rows(self, count: int) -> Tensor:
        """Which of a client's samples it trains on in one round, shape (K, B)."""
        if self.epoch:
            return torch.randperm(count)[: self.steps * self.batch].view(self.steps, self.batch)
        return torch.randint(count, (self.steps, self.batch))


WORKS = {
    "cnn": Work("mnist-cnn", None, 24, 24, 6, 5, 128, 0.1, False, 3, 0.05),
    "logistic": Work("mnist-logistic", 1.0, 1000, 10, 100, 6, 10, 0.03, True, 10, 0.03),
    "digits": Work("digits-mlp", None, 24, 24, 500, 5, 32, 0.1, False, 10, 0.02),
}


def build(task: str) -> nn.Sequential:
    """Make the work's model as anybody would write it: the layers of fedstale's `tasks/models.py`."""
    if task == "mnist-cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
    if task == "mnist-logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if task == "digits-mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    raise ValueError(f"task = {task!r}: no work has it")


class Shards:
    """The data that `export.py` wrote: every client's samples, the test samples, the first model."""

    def __init__(self, folder: Path) -> None:
        def tensor(name: str) -> Tensor:
            # Mapped, not read: a process that trains a few clients touches only their pages.
            return torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))

        self.x, self.y = tensor("train_x"), tensor("train_y")
        self.test_x, self.test_y = tensor("test_x"), tensor("test_y")
        self.offsets = np.load(folder / "offsets.npy")
        self.test_offsets = np.load(folder / "test_offsets.npy")
        self.initial = tensor("initial")

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """One client's samples: views."""
        own = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.x[own], self.y[own]

    def model(self, work: Work) -> nn.Sequential:
        """The first model, the same for everybody."""
        model = build(work.task)
        nn.utils.vector_to_parameters(self.initial.clone(), model.parameters())
        return model

    def accuracy(self, model: nn.Module) -> float:
        """The share of all test samples that the model gets right."""
        with torch.no_grad():
            parts = [model(x).argmax(1) for x in torch.split(self.test_x, 2000)]
        return float((torch.cat(parts) == self.test_y).float().mean())


def local_sgd(model: nn.Module, x: Tensor, y: Tensor, work: Work) -> int:
    """K steps of SGD on one client, as a careful user writes them: indexing, no DataLoader; samples processed."""
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    for batch in work.rows(len(y)):
        optimiser.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return work.steps * work.batch


class Clock:
    """What a contender measures and reports.

    Parameters
    ----------
    packages
        The distributions whose versions matter.
    """

    def __init__(self, *packages: str) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--work", choices=WORKS, required=True)
        parser.add_argument("--data", type=Path, required=True, help="the folder that export.py wrote")
        parser.add_argument("--rounds", type=int, required=True)
        parser.add_argument("--out", type=Path, required=True, help="where the report goes, as JSON")
        parser.add_argument("--option", default="", help="a variant of the contender")
        arguments = parser.parse_args()
        self.work, self.rounds, self.option = WORKS[arguments.work], int(arguments.rounds), str(arguments.option)
        self.folder, self._out = arguments.data / arguments.work, arguments.out
        self.versions = {name: version(name) for name in ("torch", "numpy", *packages)}
        self.versions["python"] = platform.python_version()
        self._began = float(os.environ.get(BEGAN) or time.time())
        self._last: float | None = None
        self.startup = float("nan")
        self.seconds: list[float] = []
        self.accuracy = float("nan")
        self.samples = 0
        self.more: dict[str, float] = {}

    @property
    def due(self) -> bool:
        """Whether the round that is about to end is one that is evaluated."""
        done = len(self.seconds) + 1 + (self._last is not None)
        return done % self.work.evaluate_every == 0 or done == self.rounds

    def round(self) -> None:
        """Note that a round, with its evaluation where one is due, has ended; the first one belongs to the start."""
        now = time.perf_counter()
        if self._last is None:
            self.startup = time.time() - self._began
        else:
            self.seconds.append(now - self._last)
        self._last = now

    def each(self) -> Iterator[int]:
        """The rounds, for contenders that write their own loop."""
        for t in range(self.rounds):
            yield t
            self.round()

    def report(self) -> None:
        """Write what was measured."""
        found = {
            "startup": self.startup,
            "seconds": self.seconds,
            "accuracy": self.accuracy,
            "samples": self.samples,
            "versions": self.versions,
            "threads": torch.get_num_threads(),
            **self.more,
        }
        self._out.write_text(json.dumps(found))
