"""Tasks of every shape, on made-up data: classes, numbers, sequences, several inputs, running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedstale.tasks import Task
from fedstale.tasks.scores import accuracy, mean_absolute_error, sequence_cross_entropy

SIZES = (17, 9, 12, 5)


def _clients(make: Any, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    return [make(np.random.default_rng([7, i]), n) for i, n in enumerate(sizes)]


def _both(make: Any) -> tuple[list[Any], list[Any]]:
    return _clients(make), _clients(make, tuple(n // 2 for n in SIZES))


def regression(**options: Any) -> Task:
    """Numbers, with a metric."""

    def make(rng: np.random.Generator, n: int) -> Any:
        x = rng.normal(size=(n, 3))
        return x, x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=n)

    model = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))  # noqa: E731
    options = {"metrics": {"mae": mean_absolute_error}, "batch_size": 4, "name": "regression", **options}
    return Task.from_datasets(model, functional.mse_loss, *_both(make), **options)


class Characters(nn.Module):
    def __init__(self, letters: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, 5)
        self.recurrent = nn.GRU(5, 7, batch_first=True)
        self.out = nn.Linear(7, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.recurrent(self.embedding(x))
        scores: torch.Tensor = self.out(h)
        return scores


def language(**options: Any) -> Task:
    """The next character of every place: token ids in, sequences of classes out."""

    def make(rng: np.random.Generator, n: int) -> Any:
        text = (rng.integers(6) + np.arange(n + 8)) % 6
        windows = np.lib.stride_tricks.sliding_window_view(text, 8)[:n].copy()
        return windows, (windows + 1) % 6

    options = {"metrics": {"accuracy": accuracy}, "batch_size": 4, "name": "language", **options}
    return Task.from_datasets(Characters, sequence_cross_entropy, *_both(make), **options)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(10, 4)
        self.out = nn.Linear(6, 3)

    def forward(self, *, ids: torch.Tensor, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.out(torch.cat([self.words(ids), numbers], dim=1))}


def of_dicts(**options: Any) -> Task:
    """Items that are dicts, a model with keywords, an output that is a dict."""

    class Items(torch.utils.data.Dataset[Any]):
        def __init__(self, rng: np.random.Generator, n: int) -> None:
            self.items = [
                {
                    "ids": rng.integers(10, size=5),
                    "numbers": rng.normal(size=2).astype(np.float32),
                    "label": int(rng.integers(3)),
                }
                for _ in range(n)
            ]

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, i: int) -> Any:
            return self.items[i]

    def loss(outputs: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs["scores"], y)

    metrics = {"accuracy": lambda outputs, y: accuracy(outputs["scores"], y)}
    options = {"metrics": metrics, "batch_size": 4, "name": "dicts", **options}
    return Task.from_datasets(TwoTowers, loss, *_both(Items), **options)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


def statistics(**options: Any) -> Task:
    """A model with batch normalisation; every client has another mean."""

    def make(rng: np.random.Generator, n: int) -> Any:
        return rng.normal(rng.normal() * 3, 1, size=(n, 1, 6, 6)), rng.integers(3, size=n)

    options = {"batch_size": 4, "name": "statistics", **options}
    return Task.from_datasets(normalised, functional.cross_entropy, *_both(make), **options)


SHAPES = {
    "regression": regression,
    "language": language,
    "dicts": of_dicts,
    "statistics": statistics,
}
