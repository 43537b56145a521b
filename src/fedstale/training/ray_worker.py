"""What runs in a Ray actor: one resident model that trains the clients it is asked to, on data that it fetches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..federation import Ints
from ..tasks.client_data import ClientData, Values
from ..tasks.task import Task
from .allocator import keep_freed_memory
from .engine import Engine, TrainingJob
from .local import LocalTraining
from .setup import Samples
from .shared_samples import Arrays


class ClientSource(Protocol):
    """Where a worker finds the samples of any client."""

    def client(self, index: int) -> tuple[Arrays, Arrays]:
        """Return a client's inputs and targets by name."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a worker makes its engine.

    Parameters
    ----------
    task
        The task with a few samples only: the model, the loss, and what samples look like.
    training, engine, precision, device, seed, losses
        As for `fedstale.training.make`.
    keep_memory
        Whether the process keeps freed memory, see `keep_freed_memory`.
    """

    task: Task
    training: LocalTraining
    engine: str
    precision: str
    device: str
    seed: int
    losses: bool
    keep_memory: bool


@dataclass(frozen=True, eq=False)
class Trained:
    """What a worker returns of some clients; arrays have one row per client.

    Parameters
    ----------
    updates
        Δ_i, shape (k, d).
    losses
        Mean training losses, where they are wanted.
    buffers
        What the model keeps beside its parameters, as each client leaves it.
    seconds
        How long it took.
    """

    updates: NDArray[np.float32]
    losses: NDArray[np.float32] | None
    buffers: dict[str, NDArray[Any]]
    seconds: float


class Worker:
    """The actor.

    Parameters
    ----------
    recipe
        How to make the engine.
    source
        Where the training data are.
    """

    def __init__(self, recipe: Recipe, source: ClientSource) -> None:
        from .registry import make

        if recipe.keep_memory and recipe.device == "cpu":
            keep_freed_memory()
        self._source = source
        self._engine: Engine = make(
            recipe.task,
            recipe.training,
            engine=recipe.engine,
            precision=recipe.precision,
            device=recipe.device,
            threads=1,
            seed=recipe.seed,
            losses=recipe.losses,
        )

    def ready(self) -> None:
        """Say that it is there: it has been made."""

    def train(self, shared: dict[str, Any], clients: Ints, own: dict[str, Any]) -> Trained:
        """Train some clients.

        Parameters
        ----------
        shared
            What all clients of the round have in common, fields of `TrainingJob`.
        clients
            Whom.
        own
            The other fields, one row per client; `rows` count from a client's first sample.
        """
        began, engine, setup = time.perf_counter(), self._engine, self._engine.setup
        rows: Ints = own["rows"]
        data = self._gathered(clients, rows)
        setup.train = Samples(data, setup.train.channels_last, setup.device, clients)
        own = {**own, "rows": np.arange(rows.size).reshape(rows.shape)}
        out = torch.empty(len(rows), engine.num_params, device=setup.device)
        losses = torch.zeros(len(rows), device=setup.device) if setup.record_losses else None
        buffers = {name: self._tensor(value) for name, value in own.pop("buffers").items()}
        known = {name: value for name, value in (shared | own).items() if name in _TENSORS and value is not None}
        tensors = {name: self._tensor(value) for name, value in known.items()}
        engine._run(TrainingJob(**{**shared, **own, **tensors}, buffers=buffers, out=out, losses=losses))
        return Trained(
            out.cpu().numpy(),
            None if losses is None else losses.cpu().numpy(),
            {name: buffer.cpu().numpy() for name, buffer in buffers.items()},
            time.perf_counter() - began,
        )

    def _gathered(self, clients: Ints, rows: Ints) -> ClientData:
        """Return copies of the samples that the clients' batches use, and of nothing else, in the batches' order."""
        found = [self._source.client(int(client)) for client in clients]
        both: list[Values] = []
        for what in (0, 1):
            each = {
                name: np.concatenate(
                    [own[what][name].take(taken.ravel(), 0) for own, taken in zip(found, rows, strict=True)]
                )
                for name in found[0][what]
            }
            joined = {name: torch.from_numpy(array) for name, array in each.items()}
            both.append(joined.get("", joined))
        return ClientData(both[0], both[1], np.arange(len(rows) + 1) * rows[0].size)

    def _tensor(self, value: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.array(value)).to(self._engine.setup.device)


_TENSORS = ("starts", "rows", "shift")
"""Fields of `TrainingJob` that are tensors."""
