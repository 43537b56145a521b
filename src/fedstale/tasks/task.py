"""What training and evaluation are given: all clients' samples in one tensor per split, a model, a loss.

The objective is F = Σ α_i F_i (Eq. 1 of the paper), F_i the mean loss over client i's rows. Client i's samples are
rows offsets[i] to offsets[i+1] − 1: no per-client copies, so that a batch of clients is one indexing operation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.utils.data import Dataset

from ..checks import fail, number, positive_int
from ..randomness import generator
from .label_swap import group_array

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_ClientSamples = Dataset[Any] | tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class ClientData:
    """One split (train or test) of every client.

    Parameters
    ----------
    x
        Inputs of all samples of all clients, float32 on the CPU, shape (n, …).
    y
        Their classes, int64, shape (n,).
    offsets
        Client i's samples are rows offsets[i]:offsets[i+1]; int64, shape (N+1,).
    """

    x: torch.Tensor
    y: torch.Tensor
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, dtype=np.int64)
        if self.y.shape != (len(self.x),) or self.y.dtype != torch.int64:
            raise fail(
                "y", f"{self.y.dtype} of shape {tuple(self.y.shape)}", f"must be int64 of shape ({len(self.x)},)"
            )
        fits = offsets.ndim == 1 and len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == len(self.x)
        if not fits or (np.diff(offsets) < 0).any():
            raise fail("offsets", self.offsets, f"must rise from 0 to the number of samples, {len(self.x)}")
        object.__setattr__(self, "offsets", offsets)

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client n_i, shape (N,)."""
        return np.diff(self.offsets)

    def client(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return client i's inputs and classes: views, not copies."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.x[start:stop], self.y[start:stop]


@dataclass(frozen=True, eq=False)
class Task:
    """A federated learning problem.

    Parameters
    ----------
    name
        What it is called in stores and figures.
    train, test
        Both splits of every client; no client is without training samples.
    model
        A function that makes the untrained model. `build(seed)` calls it with torch seeded.
    loss
        Of (logits, y), the mean over the batch.
    num_classes
        How many logits there are.
    groups
        0 for the first group of clients, 1 for the second (rare, swapped) one, shape (N,).
    default_lr, lr_grid
        The client rate η_c to begin with, and the rates to tune it on.
    batch_size, local_steps
        B and K of local training.
    options
        What `make` was called with, for the record.
    swapped
        The shares of the second group's samples of the two labels that were swapped: "swap_train" and "swap_test",
        which a run records beside the accuracy; empty where there was nothing to swap.
    """

    name: str
    train: ClientData
    test: ClientData
    model: Callable[[], nn.Module]
    loss: Loss
    num_classes: int
    groups: NDArray[np.int64]
    default_lr: float = 0.1
    lr_grid: tuple[float, ...] = (1.0, 10**-0.5, 0.1, 10**-1.5, 0.01)
    batch_size: int = 128
    local_steps: int = 5
    options: dict[str, Any] = field(default_factory=dict)
    swapped: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = self.train.num_clients
        if self.test.num_clients != n:
            raise fail("test", f"{self.test.num_clients} clients", f"must have the {n} clients of the training split")
        empty = np.flatnonzero(self.train.sizes == 0)
        if empty.size:
            raise fail(f"train[{empty[0]}]", "no samples", "every client needs at least one training sample")
        object.__setattr__(self, "groups", group_array(self.groups, n))
        positive_int("num_classes", self.num_classes)
        for split in (self.train, self.test):
            if len(split.y) and not 0 <= int(split.y.min()) <= int(split.y.max()) < self.num_classes:
                allowed = f"classes must lie in 0 … {self.num_classes - 1}"
                raise fail("y", f"classes {int(split.y.min())} … {int(split.y.max())}", allowed)
        number("default_lr", self.default_lr, 0.0, open_low=True)
        positive_int("batch_size", self.batch_size)
        positive_int("local_steps", self.local_steps)

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return self.train.num_clients

    def fingerprint(self) -> str:
        """SHA-256 of the data and who has them: another task under the same name has another one."""
        found = hashlib.sha256()
        for split in (self.train, self.test):
            for part in (split.x.numpy(), split.y.numpy(), split.offsets):
                found.update(f"{part.dtype} {part.shape}".encode())
                found.update(part.tobytes())
        found.update(self.groups.tobytes())
        return found.hexdigest()

    def build(self, seed: int = 0) -> nn.Module:
        """Make the untrained model; the same seed gives the same parameters, and torch's own state is left alone."""
        return build_model(self.model, seed)

    @classmethod
    def from_datasets(
        cls,
        model: Callable[[], nn.Module],
        loss: Loss,
        train: Sequence[_ClientSamples],
        test: Sequence[_ClientSamples],
        *,
        name: str = "own",
        num_classes: int | None = None,
        groups: ArrayLike | None = None,
        **options: Any,
    ) -> Task:
        """Make a task from your own data.

        Parameters
        ----------
        model
            A function that makes the untrained model.
        loss
            Of (logits, y), the mean over the batch.
        train, test
            One entry per client: a map-style `torch.utils.data.Dataset` of (x, y) items, or a pair of tensors or
            arrays (x, y). Items are stacked once. A client's test entry may be empty.
        name
            What it is called in stores and figures.
        num_classes
            Default: the largest class in the data, plus one.
        groups
            As in `Task`; default: the second half of the clients is group 1.
        **options
            default_lr, lr_grid, batch_size, local_steps, options of `Task`.
        """
        if len(train) == 0 or len(train) != len(test):
            raise fail("train, test", (len(train), len(test)), "must have one entry per client, as many in both")
        both = stack("train", train), stack("test", test)
        if num_classes is None:
            num_classes = 1 + max(int(split.y.max()) for split in both if len(split.y))
        return cls(name, *both, model, loss, num_classes, group_array(groups, len(train)), **options)


def build_model(model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call a function that makes a model with torch seeded, and leave torch's own state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**63)))
        return model()


def stack(argument: str, clients: Sequence[_ClientSamples]) -> ClientData:
    """Put the clients' samples one after the other into one pair of tensors."""
    pairs = [_tensors(f"{argument}[{i}]", samples) for i, samples in enumerate(clients)]
    filled = [(i, x) for i, (x, _) in enumerate(pairs) if len(x)]
    if not filled:
        raise fail(argument, "no samples", "at least one client must have samples")
    for i, x in filled:
        if x.shape[1:] != filled[0][1].shape[1:]:
            allowed = f"must be of the shape {tuple(filled[0][1].shape[1:])} of the other clients'"
            raise fail(f"{argument}[{i}]", f"inputs of shape {tuple(x.shape[1:])}", allowed)
    x = torch.cat([x for _, x in filled])
    y = torch.cat([y for _, y in pairs])
    return ClientData(x, y, np.concatenate([[0], np.cumsum([len(y) for _, y in pairs])]))


def _tensors(where: str, samples: _ClientSamples) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(samples, Dataset):
        items = [samples[i] for i in range(len(samples))]  # type: ignore[arg-type]  # map-style data sets have a length
        if not items:
            return torch.empty(0), torch.empty(0, dtype=torch.int64)
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
        y = torch.stack([torch.as_tensor(item[1]) for item in items])
    elif isinstance(samples, tuple) and len(samples) == 2:
        x, y = (torch.as_tensor(part) for part in samples)
    else:
        raise fail(where, type(samples).__name__, "must be a Dataset of (x, y) items, or a pair (x, y)")
    if y.ndim != 1 or len(x) != len(y):
        raise fail(where, f"x {tuple(x.shape)}, y {tuple(y.shape)}", "must have one class for each input")
    if y.numel() and (y.is_floating_point() or y.is_complex()):
        raise fail(where, f"labels of {y.dtype}", "must be integers: the classes")
    return x.to(torch.float32).cpu(), y.to(torch.int64).cpu()
