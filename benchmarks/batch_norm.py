"""BatchNorm with clients that are seldom there: whose running statistics the model gets, measured.

    python benchmarks/batch_norm.py

Ten clients with scikit-learn's 8 × 8 digits, through the tempered Flower strategy in one process. Two of them, the rare
group, are there in a tenth of the rounds, and their images are inverted. A small convolutional net with BatchNorm, its
running statistics averaged over those present (as FedAvg does) or over all clients, each with what it sent last (the
default here); and the same net with GroupNorm, which has none. Accuracy on held-out images as each group has them, mean
of the last ten rounds, ± standard error over seeds.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.faults.task import flower_task
from tests.flower.grid import MemoryGrid

from fedstale.analysis import Estimate
from fedstale.flower import TemperedFedStale
from fedstale.randomness import generator
from fedstale.tasks import data

CLIENTS, RARE, P_RARE, RATE, STEPS, BATCH = 10, 2, 0.1, 0.1, 5, 32


def network(norm: str) -> nn.Module:
    """Two convolutions, each normalised, and one dense layer."""
    torch.manual_seed(0)

    def layer(width: int) -> nn.Module:
        return nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(4, width)

    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), layer(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), layer(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 10)),
    )


def record(model: nn.Module) -> ArrayRecord:
    """A model as Flower sends it."""
    return ArrayRecord({name: Array(value.numpy().copy()) for name, value in model.state_dict().items()})


def load(model: nn.Module, arrays: ArrayRecord) -> None:
    """Take up a model that was sent."""
    model.load_state_dict({name: torch.from_numpy(np.array(array.numpy())) for name, array in arrays.items()})


class Client:
    """A client that trains on its part of the images."""

    def __init__(self, number: int, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> None:
        self.number, self.model, self.x, self.y, self.seed = number, model, x, y, seed

    def __call__(self, message: Message) -> Message:
        """Some steps of SGD."""
        load(self.model, message.content.array_records["arrays"])
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        chance = generator(self.seed, "batches", int(message.metadata.group_id), self.number)
        for _ in range(STEPS):
            which = torch.from_numpy(chance.choice(len(self.y), min(BATCH, len(self.y)), replace=False))
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.x[which]), self.y[which]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(self.y), "client-id": self.number})
        return Message(RecordDict({"arrays": record(self.model), "metrics": metrics}), reply_to=message)


class Present(TemperedFedStale):
    """Running statistics of those present only."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Forget what others sent before."""
        if self.aggregator is not None:
            self.aggregator.client_buffers.clear()
        return super().aggregate_train(server_round, replies)


def run(kind: type[TemperedFedStale], norm: str, seed: int, rounds: int) -> tuple[float, float]:
    """Train once; return the accuracy of the frequent and of the rare group."""
    arrays = data.load("digits")
    x, y = torch.from_numpy(arrays.x_train / 16.0).float(), torch.from_numpy(arrays.y_train)
    test, labels = torch.from_numpy(arrays.x_test / 16.0).float(), torch.from_numpy(arrays.y_test)
    model, chance = network(norm), generator(seed, "who")
    parts = np.array_split(chance.permutation(len(y)), CLIENTS)
    nodes: dict[int, Any] = {
        1000 + i: Client(i, model, 1.0 - x[part] if i < RARE else x[part], y[part], seed)
        for i, part in enumerate(parts)
    }
    grid = MemoryGrid(nodes)
    strategy = kind(fraction_evaluate=0.0, max_wait=0.0, min_available_nodes=0, min_train_nodes=0)
    sent, found = record(model), []
    for t in range(1, rounds + 1):
        rare = {1000 + i for i in range(RARE) if t == 1 or chance.random() < P_RARE}
        grid.online = rare | {1000 + i for i in range(RARE, CLIENTS)}
        sent = strategy.start(grid, sent, num_rounds=1).arrays
        load(model, sent)
        model.eval()
        with torch.no_grad():
            found.append([float((model(z).argmax(1) == labels).float().mean()) for z in (test, 1.0 - test)])
    frequent, seldom = np.mean(found[-10:], axis=0)
    return float(frequent), float(seldom)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| normalisation, statistics | frequent clients, % | rare clients, % |")
    print("|---|---|---|")
    ways: dict[str, tuple[type[TemperedFedStale], str]] = {
        "BatchNorm, of those present": (Present, "batch"),
        "BatchNorm, of all clients as last sent": (TemperedFedStale, "batch"),
        "GroupNorm": (TemperedFedStale, "group"),
    }
    with flower_task(logging.CRITICAL):
        for name, (kind, norm) in ways.items():
            found = [run(kind, norm, seed, options.rounds) for seed in range(options.seeds)]
            cells = [f"{Estimate.of(100 * value for value in column):.1f}" for column in zip(*found, strict=True)]
            print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
