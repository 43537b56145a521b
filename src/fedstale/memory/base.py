"""What every memory of stale updates is: an h_i for each client seen so far, and their weighted sum Σ a_i h_i.

A memory may keep h_i as it was sent, rounded, or approximated (`clustered`, `lowrank`): rules compute with what is
stored, in both terms of Eq. 8, and the update is unbiased whatever that is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_count, client_ids, fail, positive_int, vector
from ..federation import Ints, as_rows
from . import kernel
from .precision import Precision

MIXED = "what it keeps of a client cannot be taken out"
"""Why a memory without rows does not forget."""


class PreparedExchange(ABC):
    """Fresh rows that are ready to replace stale ones: the sums of the round, and `commit` to make the rows current."""

    sums: kernel.Sums

    @abstractmethod
    def weigh(self, masses: Float) -> None:
        """Let the new rows count with these masses, for a rule that knows them only after the sums."""

    @abstractmethod
    def commit(self) -> None:
        """h_i ← Δ_i for i ∈ S: from here on the new rows are the memory."""


class StaleMemory(ABC):
    """Stale updates of up to `num_clients` clients.

    Attributes
    ----------
    num_params, precision
        d, and how numbers of an update are stored.
    file
        Where rows lie on disk, if they do.
    slots
        Where each client's h_i is found, −1 for a client never seen, shape (N,).
    masses
        The a_i, shape (N,).
    total
        Σ a_i h_i of what is stored, shape (d,).
    """

    inline: ClassVar[bool] = False
    """Whether a checkpoint file holds all of it, without a row file beside."""

    has_rows: ClassVar[bool] = True
    """Whether the server can read what it remembers of a client."""

    def __init__(self, num_clients: int, num_params: int, precision: Precision, file: Path | None = None) -> None:
        client_count("num_clients", num_clients)
        positive_int("num_params", num_params)
        self.num_params = num_params
        self.precision = precision
        self.file = file
        self.slots: Ints = np.full(num_clients, -1, dtype=np.int64)
        self.masses: Float = np.zeros(num_clients)
        self.total: Float = np.zeros(num_params)

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return len(self.slots)

    @property
    def seen(self) -> Ints:
        """The clients that have been seen."""
        return np.flatnonzero(self.slots >= 0).astype(np.int64)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all stale updates as they are kept; the running sum comes on top."""

    @abstractmethod
    def rows(self, clients: ArrayLike) -> Float:
        """Return the clients' h_i as float64, shape (n, d); zeros for a client never seen."""

    def entries(self, clients: Ints, columns: Ints) -> Float:
        """Return some entries of the clients' h_i as float64, shape (n, columns); zeros for a client never seen."""
        return self.rows(clients)[:, columns]

    def residuals(self, clients: Ints, updates: Sequence[NDArray[Any]], columns: Ints, beta: float) -> Float:
        """Return some entries of Δ_i − β h_i as float64, shape (n, columns); ask before the round's exchange."""
        result = np.empty((len(clients), len(columns)))
        if result.size:
            for row, update in zip(result, updates, strict=True):
                row[:] = update.take(columns)
            result -= beta * self.entries(clients, columns)
        return result

    @abstractmethod
    def prepare_exchange(self, clients: Ints, fresh: Sequence[NDArray[Any]], mix: kernel.Mix) -> PreparedExchange:
        """Mix the round's rows and prepare the replacement h_i ← Δ_i; `PreparedExchange.commit` makes it happen.

        Parameters
        ----------
        clients, fresh
            The participants and their updates Δ_i.
        mix
            The weights of the mix c Σ_i a_i h_i + Σ_S (u_i Δ_i − v_i h_i).
        """

    def replace(self, clients: ArrayLike, updates: Any, masses: ArrayLike = 1.0) -> None:
        """h_i ← Δ_i for the given clients, counted with masses a_i in the running sum."""
        ids = client_ids("clients", clients, self.num_clients)
        rows = as_rows(updates, len(ids), self.num_params)
        weights = vector("masses", masses, len(ids))
        ones = np.ones(len(ids))
        exchange = self.prepare_exchange(ids, rows, kernel.Mix(ones, ones, 0.0, weights))
        if not np.isfinite(exchange.sums.mix).all():
            raise fail("updates", "non-finite numbers", "every update must be finite")
        exchange.commit()

    @abstractmethod
    def grow(self, num_clients: int) -> None:
        """Make room for clients that joined."""

    def forget(self, clients: ArrayLike) -> None:
        """Let clients leave: they have no h_i any more, as if never seen."""
        raise fail("memory", type(self).__name__, f"{MIXED}: use one with rows")

    @property
    def forgets(self) -> bool:
        """Whether a client can be taken out of it."""
        return type(self).forget is not StaleMemory.forget

    def erase_spare(self) -> None:
        """Overwrite what is left of rows that are nobody's any more."""

    def _grow_table(self, num_clients: int) -> int:
        more = num_clients - self.num_clients
        if more < 0:
            raise fail("num_clients", num_clients, f"a memory of {self.num_clients} clients does not shrink")
        self.slots = np.concatenate([self.slots, np.full(more, -1, dtype=np.int64)])
        self.masses = np.concatenate([self.masses, np.zeros(more)])
        return more

    @abstractmethod
    def exact_total(self) -> Float:
        """Σ a_i h_i recomputed from the rows; O(N·d)."""

    def flush(self) -> None:
        """Wait until what lies on disk is safe from a crash of the machine."""

    def close(self) -> None:
        """Let go of files and locks."""

    @abstractmethod
    def table(self, mirror: Path) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint must hold, after making safe what lies in row files (see `inline`)."""

    def saved(self) -> None:
        """Note that a checkpoint with the last `table` is complete."""

    @abstractmethod
    def restore(self, table: dict[str, NDArray[Any]]) -> None:
        """Take up a saved table."""
