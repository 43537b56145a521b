"""What the approximate memories share: they are small, lie in RAM, and are saved whole in the checkpoint file.

Σ a_i h_i is computed anew from what is stored after each round, O(k·d) for k stored vectors: nothing drifts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, InvalidInput, client_ids, fail, positive_int
from ..federation import Ints
from . import kernel
from .base import PreparedExchange, StaleMemory
from .precision import Precision

_MOST_VECTORS = 100_000
"""K of an approximation: far more than would be one."""


class Compact(StaleMemory):
    """A memory of `size` vectors of length d from which every client's h_i is made."""

    inline: ClassVar[bool] = True
    kind: ClassVar[str]
    """The first word of its description, such as "lowrank"."""

    def __init__(self, num_clients: int, num_params: int, precision: Precision, size: int) -> None:
        super().__init__(num_clients, num_params, precision)
        self.size = positive_int("size of the memory", size)
        if self.size > _MOST_VECTORS:
            raise fail(
                "size of the memory",
                size,
                f"must be at most {_MOST_VECTORS:,}: an approximate memory is meant to be small",
            )
        self.version = 0

    @abstractmethod
    def stale(self, clients: Ints, columns: slice) -> Float:
        """Return some columns of the clients' h_i, shape (n, columns)."""

    @abstractmethod
    def take(self, clients: Ints, fresh: Sequence[NDArray[Any]], masses: Float) -> None:
        """h_i ← an approximation of Δ_i; whatever fails, fails before anything is changed."""

    def rows(self, clients: ArrayLike) -> Float:
        """Return the clients' h_i as float64; zeros for a client never seen."""
        return self.stale(client_ids("clients", clients, self.num_clients), slice(0, self.num_params))

    def prepare_exchange(self, clients: Ints, fresh: Sequence[NDArray[Any]], mix: kernel.Mix) -> PreparedExchange:
        """Mix fresh updates and stored ones."""
        count = len(fresh)
        sums = kernel.Sums(mix.total * self.total, self.total, np.zeros(count), np.zeros(count))
        kept = np.empty((0 if mix.refresh is None else count, self.num_params))
        for columns in self._columns():
            u, h = block(fresh, columns), self.stale(clients, columns)
            if mix.refresh is not None:
                kept[:, columns] = kernel.refreshed(u, h, mix.refresh)
            sums.mix[columns] += mix.fresh @ u - mix.stale @ h
            if mix.statistics:
                sums.inner += np.einsum("ij,ij->i", u, h)
                sums.stale_sq += np.einsum("ij,ij->i", h, h)
        return _CompactExchange(self, clients, fresh if mix.refresh is None else list(kept), mix.masses, sums)

    def _columns(self) -> list[slice]:
        step = kernel.COLUMNS
        return [slice(low, min(low + step, self.num_params)) for low in range(0, self.num_params, step)]

    def _load(self, stored: NDArray[Any], columns: slice) -> Float:
        part = stored[:, columns]
        wide = np.empty(part.shape)
        self.precision.load(wide, part)
        return wide

    def _sum(self, weights: Float, stored: NDArray[Any]) -> Float:
        """Σ weights_j stored_j, shape (d,)."""
        total = np.zeros(self.num_params)
        for columns in self._columns():
            total[columns] = weights @ self._load(stored, columns)
        return total

    def exact_total(self) -> Float:
        """Σ a_i h_i recomputed client by client; O(N·d)."""
        total = np.zeros(self.num_params)
        for client in self.seen:
            total += self.masses[client] * self.rows([client])[0]
        return total

    def table(self, mirror: Path) -> dict[str, NDArray[Any]]:
        """Return everything."""
        return {name: array.copy() for name, array in self.arrays().items()}

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that is kept, by name."""


class _CompactExchange(PreparedExchange):
    def __init__(
        self, memory: Compact, clients: Ints, fresh: Sequence[NDArray[Any]], masses: Float, sums: kernel.Sums
    ) -> None:
        self.sums = sums
        self._memory, self._clients, self._fresh, self._masses = memory, clients, fresh, masses
        self._version = memory.version

    def weigh(self, masses: Float) -> None:
        self._masses = masses

    def commit(self) -> None:
        if self._memory.version != self._version:
            raise InvalidInput("the memory changed after this exchange was prepared")
        self._memory.take(self._clients, self._fresh, self._masses)
        self._memory.version += 1


def block(rows: Sequence[NDArray[Any]], columns: slice) -> Float:
    """Some columns of the round's rows as one float64 array, shape (|S|, columns)."""
    result = np.empty((len(rows), columns.stop - columns.start))
    for k, row in enumerate(rows):
        result[k] = row[columns]
    return result
