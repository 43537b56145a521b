"""The yardstick of `round.py`: one round of local SGD as a careful PyTorch user writes it.

One model for all clients, minibatches by indexing (no DataLoader), an optimiser, gradients set to None, torch's
default number of threads. Nothing of fedstale but the task's data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedstale.tasks import Task


class PlainLoop:
    """Trains the clients of a task one after the other.

    Parameters
    ----------
    task
        Data, model and loss.
    lr, steps, batch_size
        Of local SGD; batches are drawn with replacement.
    """

    def __init__(self, task: Task, *, lr: float, steps: int, batch_size: int) -> None:
        self.task, self.lr, self.steps, self.batch_size = task, lr, steps, batch_size
        self.model: nn.Module = task.build(0)

    def updates(self, weights: Sequence[Tensor], clients: Sequence[int]) -> Tensor:
        """Return the clients' updates, shape (|S|, d)."""
        return torch.stack([self.client(weights, client) for client in clients])

    def client(self, weights: Sequence[Tensor], client: int) -> Tensor:
        """Train one client from the given weights and return its update."""
        with torch.no_grad():
            for p, start in zip(self.model.parameters(), weights, strict=True):
                p.copy_(start)
        optimiser = torch.optim.SGD(self.model.parameters(), lr=self.lr)
        x, y = self.task.train.client(client)
        for _ in range(self.steps):
            batch = torch.randint(len(y), (self.batch_size,))
            optimiser.zero_grad()
            loss = self.task.loss(self.model(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        with torch.no_grad():
            pairs = zip(weights, self.model.parameters(), strict=True)
            return torch.cat([(start - p).flatten() for start, p in pairs])
