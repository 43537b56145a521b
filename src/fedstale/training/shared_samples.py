"""The clients' samples where Ray's workers find them: blocks of neighbours in the object store, fetched when needed.

On one machine a block lies once in shared memory, whoever reads it; another machine fetches the blocks of the clients
that it trains. Data in memory-mapped files, or made by a function, are not put there: names and function go to workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..federation import Ints
from ..ray_cluster import fetch
from ..tasks.client_data import ClientData, Values, tensors

_BLOCK_BYTES = 32 * 2**20
Arrays = dict[str, NDArray[Any]]
"""Inputs or targets by name; one that has none is called ""."""


class SharedSamples:
    """One split of all clients in the object store; it travels as references.

    Parameters
    ----------
    split
        The clients' samples.
    ray
        The module.
    workers
        How many workers there are: each is to find a block of its own.
    """

    def __init__(self, split: ClientData, ray: Any, workers: int) -> None:
        self.offsets: Ints = split.offsets
        size = sum(t.nbytes for values in (split.x, split.y) for t in tensors(values).values())
        count = int(min(split.num_clients, max(4 * workers, -(-size // _BLOCK_BYTES))))
        cuts = np.searchsorted(self.offsets, np.linspace(0, self.offsets[-1], count + 1)[1:-1])
        self._bounds = np.unique(np.concatenate([[0], cuts, [split.num_clients]]))
        self._blocks = []
        for first, last in zip(self._bounds[:-1], self._bounds[1:], strict=True):
            rows = slice(int(self.offsets[first]), int(self.offsets[last]))
            self._blocks.append(ray.put((_cut(split.x, rows), _cut(split.y, rows))))
        self._most = max(2, 2 * -(-len(self._blocks) // workers))
        self._fetched: dict[int, tuple[Arrays, Arrays]] = {}  # the last that were used: what is held stays in memory

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what was fetched."""
        return {**self.__dict__, "_fetched": {}}

    def client(self, index: int) -> tuple[Arrays, Arrays]:
        """Return a client's inputs and targets: views of what lies in shared memory, not to be written to."""
        block = int(np.searchsorted(self._bounds, index, side="right")) - 1
        held = self._fetched.pop(block, None)
        self._fetched[block] = held if held is not None else fetch(self._blocks[block])
        if len(self._fetched) > self._most:
            del self._fetched[next(iter(self._fetched))]
        first = int(self.offsets[self._bounds[block]])
        own = slice(int(self.offsets[index]) - first, int(self.offsets[index + 1]) - first)
        x, y = ({name: array[own] for name, array in part.items()} for part in self._fetched[block])
        return x, y


class SamplesOnWorker:
    """Samples that a worker reads or makes itself: data that travel as the names of their files, or as a function.

    Parameters
    ----------
    split
        The clients' samples, which can be pickled without what is in them.
    """

    def __init__(self, split: ClientData) -> None:
        self._split = split

    def client(self, index: int) -> tuple[Arrays, Arrays]:
        """Return a client's inputs and targets: views of the mapped files, or what the function made."""
        x, y = self._split.client(index)
        return _cut(x, slice(None)), _cut(y, slice(None))


def _cut(values: Values, rows: slice) -> Arrays:
    return {name: tensor[rows].numpy() for name, tensor in tensors(values).items()}
