"""Small tasks, and local training written the plain way: what every engine is compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn import functional

from fedstale.randomness import generator
from fedstale.tasks import Task
from fedstale.training import Batches, Engine, LocalTraining, flatten, unflatten

Floats = NDArray[np.float32]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


class Residual(nn.Module):
    """Neither sequential nor dense: only the general paths can do it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(36, 36)
        self.norm = nn.LayerNorm(36)
        self.outer = nn.Linear(36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.flatten(1)
        out: torch.Tensor = self.outer(self.norm(h + functional.gelu(self.inner(h))))
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "residual": Residual}


def task(
    model: Callable[[], nn.Module] = mlp,
    *,
    sizes: tuple[int, ...] = (40, 23, 31, 7),
    channels: int = 1,
    shape: tuple[int, ...] = (6, 6),
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy,
) -> Task:
    """Noise, some of it exactly zero so that pooling sees ties; every client with its own labels."""
    rng = generator(7, "test problem")

    def split(counts: list[int]) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        pairs = []
        for count in counts:
            x = rng.normal(size=(count, channels, *shape)).astype(np.float32)
            pairs.append((np.where(x < -0.5, np.float32(0), x), rng.integers(4, size=count)))
        return pairs

    tests = [size // 3 for size in sizes]
    return Task.from_datasets(model, loss, split(list(sizes)), split(tests), num_classes=4)


def plain_updates(
    task: Task,
    training: LocalTraining,
    starts: ArrayLike,
    batches: Batches,
    rate: float,
    *,
    linear: NDArray[np.float32] | None = None,
    prox: float = 0.0,
) -> Floats:
    """Local training with torch.optim.SGD, one client after the other."""
    updates = []
    for i, rows in enumerate(batches.rows):
        module = task.build(0)
        start = np.asarray(starts, dtype=np.float32)
        start = start if start.ndim == 1 else start[i]
        unflatten(module, start)
        before = [p.detach().clone() for p in module.parameters()]
        extra = before if linear is None else _like(before, linear[i])
        optimiser = torch.optim.SGD(
            module.parameters(), rate, momentum=training.momentum, weight_decay=training.weight_decay
        )
        for k in range(int(batches.steps[i])):
            batch = torch.from_numpy(rows[k] if batches.sizes is None else rows[k, : batches.sizes[i, k]])
            optimiser.zero_grad()
            task.loss(module(task.train.x[batch]), task.train.y[batch]).backward()  # type: ignore[no-untyped-call]
            for p, old, term in zip(module.parameters(), before, extra, strict=True):
                assert p.grad is not None
                p.grad += prox * (p.detach() - old)
                if linear is not None:
                    p.grad += term
            optimiser.step()
        updates.append(start - flatten(module))
    return np.stack(updates)


def _like(tensors: list[torch.Tensor], vector: NDArray[np.float32]) -> list[torch.Tensor]:
    parts = np.split(vector, np.cumsum([t.numel() for t in tensors])[:-1])
    return [torch.from_numpy(part).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def run(engine: Engine, rounds: int, clients: ArrayLike) -> Floats:
    """Full-participation FedAvg: the model after some rounds."""
    model = engine.initial
    for round in range(rounds):
        model = model - engine.updates(model, clients, round).mean(axis=0)
    return model


def relative(a: ArrayLike, b: ArrayLike) -> float:
    """Distance relative to the second argument's length."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
