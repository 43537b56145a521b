"""The memory of stale updates: h_i for every client seen so far, and their weighted sum Σ a_i h_i.

The sum is a running vector (spec §3): a round costs O(|S|·d), whatever N is. A replaced row is written to a
free slot and becomes current by a change of the slot table, so a round is applied whole or not at all, and the
rows of the last checkpoint stay untouched on disk until the next one is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, InvalidInput, client_ids
from ..difference import Difference
from ..durable import FileTrouble, checksum
from ..federation import Ints
from . import kernel
from .base import PreparedExchange, StaleMemory
from .precision import Precision
from .rows import FileRows, Mode, RamRows, RowStore

_DRIFT = 1e-9
"""Largest relative distance between a saved running sum and the exact one before a file counts as damaged."""


class Memory(StaleMemory):
    """Stale updates of up to `num_clients` clients, one row of `num_params` numbers for each client seen.

    Parameters
    ----------
    num_clients, num_params
        N and d.
    precision
        How a row is stored, see `fedstale.memory.precision`.
    file
        Where the rows lie on disk; None keeps them in RAM.
    run
        The identity written into the file, so that it is not mistaken for another run's.
    mode
        Whether the file is new ("create"), taken up again ("write"), or only looked at ("read", "copy").
    """

    def __init__(
        self,
        num_clients: int,
        num_params: int,
        precision: Precision,
        file: Path | None = None,
        run: str = "",
        mode: Mode = "create",
    ) -> None:
        super().__init__(num_clients, num_params, precision, file)
        self.run = run
        self._rows: RowStore
        if file is None:
            self._rows = RamRows(num_params, precision)
        else:
            self._rows = FileRows(file, num_params, precision, run, mode)
        self._free: list[int] = []
        self._end = 0
        self._mixed: Float | None = None  # the mix of a round, kept: new memory costs more than the sums
        self._torn = False  # whether rows are being replaced where they are
        self._version = 0
        self._unsaved: set[int] = set()  # clients whose row changed since the last checkpoint
        self._kept: set[int] = set()  # slots of the last checkpoint: not to be overwritten before the next
        self._superseded: list[int] = []  # those of them that the next checkpoint will no longer need
        self._checksums = np.zeros(num_clients, dtype=np.uint32)
        self._mirror: Memory | None = None  # where rows kept in RAM are saved
        self._checkpoint = Path()  # the folder that is being saved to

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in use."""
        return int((self.slots >= 0).sum()) * self.num_params * self.precision.dtype.itemsize

    def rows(self, clients: ArrayLike) -> Float:
        """Return copies of the clients' rows as float64, shape (n, d); zeros for a client never seen."""
        ids = client_ids("clients", clients, self.num_clients)
        self._check()
        result = np.zeros((len(ids), self.num_params))
        for k, client in enumerate(ids):
            if self.slots[client] >= 0:
                self.precision.load(result[k], self._rows.row(int(self.slots[client])))
        return result

    def entries(self, clients: Ints, columns: Ints) -> Float:
        """Return some entries of the clients' rows, without reading the others."""
        self._check()
        result = np.zeros((len(clients), len(columns)))
        for k, slot in enumerate(self.slots[clients]):
            if slot >= 0:
                self.precision.load(result[k], self._rows.row(int(slot)).take(columns))
        return result

    def prepare_exchange(
        self, clients: Ints, fresh: Sequence[NDArray[Any] | Difference], mix: kernel.Mix
    ) -> PreparedExchange:
        """Mix the round's rows in one pass and write the new ones to spare slots.

        Updates that are all differences have been seen to be finite, and nothing stands against making them current:
        the running sum is moved where it is, and so are rows in RAM. The mix is valid until the next exchange then.
        """
        self._check()
        seen = len(fresh) > 0 and all(isinstance(row, Difference) for row in fresh)
        slots: list[int] = self.slots[clients].tolist()
        in_place = seen and self.file is None
        target = self._own_slots(slots) if in_place else self._spare(len(fresh))
        touched = [slot for slot in (*slots, *target) if slot >= 0]
        rows, known = self._rows.rows(target), iter(self._rows.rows([slot for slot in slots if slot >= 0]))
        if in_place and self._mixed is None:  # rows on disk are for those who have no room to keep it
            self._mixed = np.empty(self.num_params)
        self._torn = seen
        sums = kernel.exchange(
            fresh,
            rows if in_place else [None if slot < 0 else next(known) for slot in slots],
            rows,
            self.precision,
            mix,
            old_masses=self.masses[clients],
            total=self.total,
            out=self.total if seen else np.empty(self.num_params),  # for the round only: it is as large as two rows
            mixed=self._mixed if in_place else None,
            leave=lambda columns: self._rows.leave(touched, columns),
        )
        return _RowExchange(sums, self, self._version, clients, target, mix.masses)

    def _check(self) -> None:
        """Refuse to go on with rows that are no longer there, or of which some were replaced and others not."""
        self._rows.check()
        if self._torn:
            raise InvalidInput("the memory was left in the middle of a round: resume from the last checkpoint")

    def _spare(self, count: int) -> list[int]:
        reused = self._free[max(0, len(self._free) - count) :]
        return reused + list(range(self._end, self._end + count - len(reused)))

    def _own_slots(self, slots: Sequence[int]) -> list[int]:
        """The slots that rows are replaced in: their own, or a spare one, of zeros, for a client never seen."""
        new = iter(self._spare(sum(slot < 0 for slot in slots)))
        own = [next(new) if slot < 0 else slot for slot in slots]
        for slot, before in zip(own, slots, strict=True):
            if before < 0:
                self._rows.row(slot)[:] = 0
        return own

    def _move(self, clients: Ints, target: list[int], masses: Float) -> None:
        """Give the clients the slots that `_spare` named, and take back those they had."""
        moved = [(old, slot) for old, slot in zip(self.slots[clients].tolist(), target, strict=True) if old != slot]
        reused = sum(slot < self._end for _, slot in moved)
        del self._free[len(self._free) - reused :]
        self._end += len(moved) - reused
        for old, _ in moved:
            if old in self._kept:
                self._superseded.append(old)
            elif old >= 0:
                self._free.append(old)
        self.slots[clients] = target
        self._unsaved.update(clients.tolist())
        self.masses[clients] = masses
        self._version += 1

    def exact_total(self) -> Float:
        """Σ a_i h_i recomputed from the rows, exact to one rounding; O(N·d)."""
        result = np.empty(self.num_params)
        for columns, exact in self._exact_sums():
            result[columns] = exact
        return result

    def _exact_sums(self) -> Iterator[tuple[slice, Float]]:
        self._check()
        seen = self.seen
        rows = [self._rows.row(int(slot)) for slot in self.slots[seen]]
        return kernel.exact_sums(rows, self.masses[seen], self.precision, self.num_params)

    def grow(self, num_clients: int) -> None:
        """Make room for clients that joined."""
        more = self._grow_table(num_clients)
        self._checksums = np.concatenate([self._checksums, np.zeros(more, dtype=np.uint32)])

    def forget(self, clients: ArrayLike) -> None:
        """Let clients leave: Σ a_i h_i goes on without them, and their slots are free (see `erase_spare`)."""
        ids = client_ids("clients", clients, self.num_clients)
        gone = ids[self.slots[ids] >= 0]
        left, largest = self.total.copy(), 0.0
        for client in gone:
            share = self.masses[client] * self.rows([client])[0]
            left -= share
            largest = max(largest, float(np.abs(share).max(initial=0.0)))
            slot = int(self.slots[client])
            (self._superseded if slot in self._kept else self._free).append(slot)
            self._unsaved.discard(int(client))
        self.slots[gone], self.masses[gone] = -1, 0.0
        # What is small beside what was taken away is mostly rounding: it is summed anew.
        self.total = left if largest < 1e4 * float(np.abs(left).max(initial=0.0)) else self.exact_total()
        self._version += 1
        if self._mirror is not None:
            self._mirror.forget(ids[ids < self._mirror.num_clients])

    def erase_spare(self) -> None:
        """Overwrite what is left of rows that are nobody's any more; call it after a save, which frees them."""
        beyond = self._end  # a process that took the file up again does not know what lies behind its last row
        while isinstance(self._rows, FileRows) and self._rows.holds(beyond):
            beyond += 1
        for slot in (*self._free, *range(self._end, beyond)):
            row = self._rows.row(slot)
            if row.view(np.uint8).any():  # writing to a hole in the file would fill it
                row[:] = 0
        self.flush()
        if self._mirror is not None:
            self._mirror.erase_spare()

    def flush(self) -> None:
        """Wait until the rows on disk are safe from a crash of the machine."""
        self._rows.flush()

    def close(self) -> None:
        """Let go of files and locks."""
        self._rows.close()
        if self._mirror is not None:
            self._mirror.close()

    def intact(self) -> bool:
        """Whether the rows on disk are still those of this memory."""
        try:
            self._rows.check()
        except FileTrouble:
            return False
        return True

    # Saving: the table and the running sum go into the caller's checkpoint file, the rows into a row file.

    def table(self, mirror: Path) -> dict[str, NDArray[Any]]:
        """Make the rows safe on disk and return what a checkpoint must hold to find them again.

        Rows kept in RAM are written to the row file `mirror`, only those that changed since the last time.
        """
        self._check()
        if self.file is None:
            return self._table_of_mirror(mirror)
        for client in self._unsaved:
            slot = int(self.slots[client])
            self._checksums[client] = checksum(self._rows.row(slot))
            self._rows.leave([slot], slice(0, self.num_params))
        return self._table_on_disk(mirror.parent)

    def _table_on_disk(self, checkpoint: Path) -> dict[str, NDArray[Any]]:
        if isinstance(self._rows, FileRows):
            self._checkpoint = checkpoint
            self._rows.naming(self._checkpoint)
        self.flush()
        seen = self.seen
        return {
            "clients": seen,
            "slots": self.slots[seen],
            "masses": self.masses[seen],
            "checksums": self._checksums[seen],
            "total": self.total,
        }

    def _table_of_mirror(self, path: Path) -> dict[str, NDArray[Any]]:
        if self._mirror is None or self._mirror.file != path or not self._mirror.intact():
            if self._mirror is not None:
                self._mirror.close()
                if self._mirror.file == path:  # all of it is here: it is made anew
                    path.unlink(missing_ok=True)
            self._mirror = Memory(self.num_clients, self.num_params, self.precision, path, self.run)
            self._unsaved = {int(client) for client in self.seen}
        if self._mirror.num_clients < self.num_clients:
            self._mirror.grow(self.num_clients)
        mirror, changed = self._mirror, np.array(sorted(self._unsaved), dtype=np.int64)
        mirror._rows.check()
        target = mirror._spare(len(changed))
        for client, slot in zip(changed, target, strict=True):
            row = self._rows.row(int(self.slots[client]))
            mirror._rows.write(slot, row)
            mirror._checksums[client] = checksum(row)
        mirror._move(changed, target, self.masses[changed])
        mirror.total = self.total
        return mirror._table_on_disk(path.parent)

    def saved(self) -> None:
        """Note that a checkpoint with the last `table` is complete: rows it does not name may be overwritten."""
        if self._mirror is not None:
            self._mirror.saved()
        elif isinstance(self._rows, FileRows):
            self._rows.named(self._checkpoint)
            self._free.extend(self._superseded)
            self._kept.difference_update(self._superseded)
            self._kept.update(int(self.slots[client]) for client in self._unsaved)
            self._superseded.clear()
        self._unsaved.clear()

    def restore(self, table: dict[str, NDArray[Any]]) -> None:
        """Take up a saved table over the rows in the file; every row and the running sum are verified."""
        clients = table["clients"]
        self.slots[clients], self.masses[clients] = table["slots"], table["masses"]
        self._checksums[clients] = table["checksums"]
        for client, row in self._stored(clients):
            if checksum(row) != int(self._checksums[client]):
                raise InvalidInput(f"the row of client {client} in memory file {self.file} is damaged")
            self._rows.leave([int(self.slots[client])], slice(0, self.num_params))
        self._kept = {int(slot) for slot in table["slots"]}
        self._end = max(self._kept, default=-1) + 1
        self._free = sorted(set(range(self._end)) - self._kept)
        self.total = np.array(table["total"], dtype=np.float64)
        self.verify_total()

    def read_from(self, saved: Memory) -> None:
        """Copy every row of a memory on disk into this empty one."""
        clients = saved.seen
        target = self._spare(len(clients))
        for client, slot in zip(clients, target, strict=True):
            np.copyto(self._rows.row(slot), saved._rows.row(int(saved.slots[client])))
        self._move(clients, target, saved.masses[clients])
        self.total = saved.total

    def verify_total(self) -> None:
        """Recompute the running sum exactly; refuse a saved one that differs by more than rounding.

        The saved one is kept where it agrees: its bits make a resumed run equal an uninterrupted one.
        """
        scale = off = 0.0
        for columns, exact in self._exact_sums():
            scale = max(scale, float(np.abs(exact).max()))
            off = np.maximum(off, np.abs(self.total[columns] - exact).max())  # NaN stays
        self._rows.leave([int(slot) for slot in self.slots[self.seen]], slice(0, self.num_params))
        if not off <= _DRIFT * scale:
            raise InvalidInput(f"the running sum of memory file {self.file} does not match its rows")

    def _stored(self, clients: Ints) -> Iterator[tuple[int, NDArray[Any]]]:
        for client in clients:
            slot = int(self.slots[client])
            if isinstance(self._rows, FileRows) and not self._rows.holds(slot):
                raise InvalidInput(f"memory file {self.file} is cut short: the row of client {client} is missing")
            yield int(client), self._rows.row(slot)


@dataclass(eq=False)
class _RowExchange(PreparedExchange):
    """A replacement whose new rows lie in spare slots already; `commit` changes the slot table."""

    sums: kernel.Sums
    _memory: Memory
    _version: int
    _clients: Ints
    _target: list[int]
    _masses: Float

    def weigh(self, masses: Float) -> None:
        """Let the new rows count with these masses, for a rule that knows them only after the sums."""
        row = np.empty(self._memory.num_params)
        for slot, change in zip(self._target, masses - self._masses, strict=True):
            self._memory.precision.load(row, self._memory._rows.row(slot))
            self.sums.total += change * row
        self._masses = masses

    def commit(self) -> None:
        """h_i ← Δ_i for i ∈ S: from here on the new rows are the memory."""
        if self._memory._version != self._version:
            raise InvalidInput("the memory changed after this exchange was prepared")
        self._memory._torn = False
        self._memory._move(self._clients, self._target, self._masses)
        self._memory.total = self.sums.total
