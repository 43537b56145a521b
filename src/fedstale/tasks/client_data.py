"""The samples of all clients: any tensors, one row per sample, a client's rows next to each other.

Client i's samples are rows offsets[i] to offsets[i+1] − 1: no per-client copies, so that a batch of clients is one
indexing operation. A tensor may lie in a memory-mapped file (`torch.from_numpy(numpy.memmap(…))`): training reads the
rows of a batch and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checks import fail

Values = Tensor | dict[str, Tensor]
"""Inputs or targets: a tensor, or tensors by name. A model is called with named inputs as keywords."""
_HASHED = 1 << 12
"""Rows that are hashed at once."""


def each(values: Values, function: Callable[[Tensor], Tensor]) -> Values:
    """Apply a function to the tensor, or to every one of them."""
    return {name: function(t) for name, t in values.items()} if isinstance(values, dict) else function(values)


def tensors(values: Values) -> dict[str, Tensor]:
    """Return the tensors by name; one that has none is called ""."""
    return values if isinstance(values, dict) else {"": values}


def single(values: Values) -> Tensor | None:
    """Return the tensor; None where there are several by name."""
    return None if isinstance(values, dict) else values


@dataclass(frozen=True, eq=False)
class ClientData:
    """One split (train or test) of every client.

    Parameters
    ----------
    x
        Inputs of all samples of all clients, on the CPU: a tensor of shape (n, …), or a dict of such.
    y
        Their targets, likewise: classes as int64 of shape (n,), numbers, sequences, …
    offsets
        Client i's samples are rows offsets[i]:offsets[i+1]; int64, shape (N+1,).
    """

    x: Any  # `Values`: who knows that there is one tensor uses it as such
    y: Any
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, dtype=np.int64)
        count = len(next(iter(tensors(self.x).values())))
        for argument, values in (("x", self.x), ("y", self.y)):
            for name, tensor in tensors(values).items():
                if tensor.ndim == 0 or len(tensor) != count:
                    where = f"{argument}[{name!r}]" if name else argument
                    raise fail(where, f"shape {tuple(tensor.shape)}", f"must have one row for each of {count} samples")
        fits = offsets.ndim == 1 and len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == count
        if not fits or (np.diff(offsets) < 0).any():
            raise fail("offsets", self.offsets, f"must rise from 0 to the number of samples, {count}")
        object.__setattr__(self, "offsets", offsets)

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return len(self.offsets) - 1

    @property
    def num_samples(self) -> int:
        """The number of samples of all clients, n."""
        return int(self.offsets[-1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client n_i, shape (N,)."""
        return np.diff(self.offsets)

    def client(self, index: int) -> tuple[Any, Any]:
        """Return client i's inputs and targets: views, not copies."""
        own = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return each(self.x, lambda t: t[own]), each(self.y, lambda t: t[own])

    def fingerprint(self) -> bytes:
        """SHA-256 of the samples and of who has them, read piece by piece."""
        found = hashlib.sha256()
        for values in (self.x, self.y):
            for name, tensor in sorted(tensors(values).items()):
                array = tensor.numpy()
                found.update(f"{name} {array.dtype} {array.shape}".encode())
                for start in range(0, len(array), _HASHED):
                    found.update(np.ascontiguousarray(array[start : start + _HASHED]).data)
        found.update(self.offsets.tobytes())
        return found.digest()


def gather(clients: list[tuple[Values, Values]], argument: str) -> ClientData:
    """Put the clients' samples one after the other; a client without samples may have tensors of any shape."""
    counts = [len(next(iter(tensors(x).values()))) for x, _ in clients]
    filled = [i for i, count in enumerate(counts) if count]
    if not filled:
        raise fail(argument, "no samples", "at least one client must have samples")
    both: list[Values] = []
    for what in (0, 1):
        first = tensors(clients[filled[0]][what])
        for i in filled:
            for name, tensor in _like(first, tensors(clients[i][what]), f"{argument}[{i}]").items():
                if tensor.shape[1:] != first[name].shape[1:]:
                    kind = "targets" if what else "inputs"
                    allowed = f"must be of the shape {tuple(first[name].shape[1:])} of the other clients'"
                    raise fail(f"{argument}[{i}]", f"{kind} of shape {tuple(tensor.shape[1:])}", allowed)
        joined = {name: torch.cat([tensors(clients[i][what])[name] for i in filled]) for name in first}
        both.append(joined.get("", joined))
    return ClientData(both[0], both[1], np.concatenate([[0], np.cumsum(counts)]))


def _like(first: dict[str, Tensor], other: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    if first.keys() != other.keys():
        names = ", ".join(sorted(first)) or "one tensor"
        raise fail(where, ", ".join(sorted(other)) or "one tensor", f"must have what the other clients have: {names}")
    return other
