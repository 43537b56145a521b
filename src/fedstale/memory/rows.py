"""Where rows lie: blocks in RAM, or a memory-mapped file that survives the process.

A row store is a growing array of equal slots. Which client owns which slot is the business of `Memory`.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import InvalidInput
from ..durable import (
    LOCK_OWNER_BYTES,
    FileTrouble,
    acquire_lock,
    folder_reference,
    identity,
    is_referenced_folder,
    open_owner_only,
    what_became_of,
    write_lock_owner,
)
from .precision import Precision

_MAGIC = b"fedstale rows 1\n"
_START = 4096  # bytes before the first row
_HEADER = _START - LOCK_OWNER_BYTES
_RAM_BLOCK = 64 << 20
_FILE_BLOCK, _LARGEST_FILE_BLOCK = 4 << 20, 64 << 20
_LARGE_ROW = 64 << 20
"""Bytes of a row whose pages are given back after use."""
_PIECE = 64 << 20
"""Bytes that are written at once."""
_OWNER = "checkpoint"
"""In the header: the `place` of the checkpoint that names the rows, {} in a new file."""
_WHOLE = "whole"
"""In the header: whether that checkpoint was ever complete."""

CHECKPOINT_FILE = "state.safetensors"
"""The file of a checkpoint that names the rows."""

Mode = Literal["create", "write", "read", "copy"]


class RowStore(Protocol):
    """Slots that hold one row each; asking for a slot makes it."""

    def row(self, slot: int) -> NDArray[Any]:
        """Return the slot's storage, shape (d,), writable."""

    def rows(self, slots: Sequence[int]) -> list[NDArray[Any]]:
        """Return the storage of several slots."""

    def write(self, slot: int, row: NDArray[Any]) -> None:
        """Store a row that is not needed in memory for now, shape (d,), as it is stored."""

    def leave(self, slots: Sequence[int], columns: slice) -> None:
        """Take note that these columns of some rows are not needed in memory for now."""

    def check(self) -> None:
        """Refuse to go on when the slots are no longer there; asked before a round touches them."""

    def flush(self) -> None:
        """Make everything written so far survive a crash of the machine."""

    def close(self) -> None:
        """Let go of files and locks."""


class RamRows:
    """Rows in RAM, in blocks: growing never copies, and an untouched slot costs no memory."""

    def __init__(self, num_params: int, precision: Precision) -> None:
        self._shape = (max(1, _RAM_BLOCK // (num_params * precision.dtype.itemsize)), num_params)
        self._dtype = precision.dtype
        self._blocks: list[NDArray[Any]] = []

    def row(self, slot: int) -> NDArray[Any]:
        """Return the slot's storage."""
        block, row = divmod(slot, self._shape[0])
        while len(self._blocks) <= block:
            self._blocks.append(np.empty(self._shape, dtype=self._dtype))
        result: NDArray[Any] = self._blocks[block][row]
        return result

    def rows(self, slots: Sequence[int]) -> list[NDArray[Any]]:
        """Return the storage of several slots: of a small model, all lie in the first block."""
        if self._blocks and max(slots, default=0) < self._shape[0]:
            first = self._blocks[0]
            return [first[slot] for slot in slots]
        return [self.row(slot) for slot in slots]

    def write(self, slot: int, row: NDArray[Any]) -> None:
        """Store a row."""
        np.copyto(self.row(slot), row)

    def leave(self, slots: Sequence[int], columns: slice) -> None:
        """RAM is where they live."""

    def check(self) -> None:
        """RAM is always there."""

    def flush(self) -> None:
        """RAM survives nothing."""

    def close(self) -> None:
        """Nothing is held."""


class FileRows:
    """Rows in one sparse file, memory-mapped; a header says whose they are, a lock keeps a second writer out.

    Parameters
    ----------
    path
        The file.
    num_params, precision
        d and the storage format; a file that has others is refused.
    run
        The identity of the run the rows belong to; a file of another run is refused.
    mode
        "create" a file that must not exist, "write" to one, "read" one without taking the lock, or "copy" it: read it
        while nobody else writes.
    """

    def __init__(self, path: Path, num_params: int, precision: Precision, run: str, mode: Mode) -> None:
        self.path = path = path.absolute()
        self._row_bytes = num_params * precision.dtype.itemsize
        self._first = max(1, _FILE_BLOCK // self._row_bytes)
        self._doublings = max(0, (_LARGEST_FILE_BLOCK // (self._first * self._row_bytes)).bit_length() - 1)
        self._num_params = num_params
        self._dtype = precision.dtype
        self._blocks: dict[int, np.memmap[Any, Any]] = {}
        self._arrays: dict[int, NDArray[Any]] = {}  # the same memory: slicing a memmap costs several times as much
        self._reserved = 0
        self._mapped = 0  # bytes of the file that mappings may touch
        self._owner: dict[str, Any] = {}
        self._whole = False
        self._about: dict[str, Any] = {"num_params": num_params, "precision": precision.name, "run": run}
        self._map: Literal["r", "r+"] = "r+" if mode in ("create", "write") else "r"
        flags = {"create": "r+b" if _abandoned(path) else "x+b", "write": "r+b", "read": "rb", "copy": "rb"}[mode]
        try:
            if mode == "create":
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open(path, flags, opener=open_owner_only)  # noqa: SIM115 - held as long as the rows are
        except FileExistsError:
            raise InvalidInput(
                f"memory file {path} exists already: load the run it belongs to, or choose another folder"
            ) from None
        except FileNotFoundError:
            raise InvalidInput(f"memory file {path} is missing") from None
        except OSError as error:
            raise InvalidInput(f"memory file {path} cannot be opened: {error.strerror}") from error
        try:
            self._identity = identity(self._file.fileno())
            if mode != "read" and sys.platform != "win32":
                acquire_lock(self._file.fileno(), f"memory file {path}", _HEADER)
            if mode == "create":
                self._file.truncate(0)
                self._write_header({}, whole=False)
            else:
                self._check_header(self._about)
            if self._map == "r+":
                write_lock_owner(self._file.fileno(), _HEADER)
        except BaseException:
            self._file.close()
            raise

    def naming(self, checkpoint: Path) -> None:
        """Note that the first checkpoint, in this folder, is about to name the rows."""
        if not self._whole:
            self._write_header(folder_reference(checkpoint, self.path), whole=False)

    def named(self, checkpoint: Path) -> None:
        """Note that the checkpoint in this folder names the rows: from now on they are its own."""
        owner = folder_reference(checkpoint, self.path)
        if not self._whole or owner != self._owner:
            self._write_header(owner, whole=True)

    def _write_header(self, owner: dict[str, Any], *, whole: bool) -> None:
        header = _MAGIC + json.dumps({**self._about, _OWNER: owner, _WHOLE: whole}).encode()
        if len(header) > _HEADER:  # a very long path: its identity must do
            self._write_header({"inode": owner["inode"]}, whole=True)
            return
        self._owner, self._whole = owner, whole
        self._file.seek(0)
        self._file.write(header.ljust(_HEADER, b"\0"))
        self._file.flush()

    def _check_header(self, about: dict[str, Any]) -> None:
        header = self._file.read(_HEADER)
        if not header.startswith(_MAGIC):
            raise InvalidInput(f"{self.path} is not a memory file of fedstale")
        found = _parsed(header)
        if not isinstance(found.get(_OWNER), dict):
            raise InvalidInput(f"the header of memory file {self.path} is damaged")
        self._owner, self._whole = found[_OWNER], bool(found.get(_WHOLE))
        for key, wanted in about.items():
            if found.get(key) != wanted:
                raise InvalidInput(f"memory file {self.path} has {key} = {found.get(key)!r}, expected {wanted!r}")

    def row(self, slot: int) -> NDArray[Any]:
        """Return the slot's storage; the file grows (sparsely) when the slot is new."""
        block, start, count = self._block(slot)
        if block not in self._blocks:
            self._map_block(block, start, count)
        if slot >= self._reserved and self._map == "r+":
            self._reserve(slot + 1)
        if slot - start >= len(self._arrays[block]):
            raise InvalidInput(f"memory file {self.path} is cut short")
        result: NDArray[Any] = self._arrays[block][slot - start]
        return result

    def rows(self, slots: Sequence[int]) -> list[NDArray[Any]]:
        """Return the storage of several slots."""
        return [self.row(slot) for slot in slots]

    def _block(self, slot: int) -> tuple[int, int, int]:
        """Return the block that holds a slot, its first slot and how many it has.

        Blocks double in size, so that a small memory has a small file and a large one has few mappings; up to a size,
        so that the file is hardly longer than its rows.
        """
        doubling = self._first * (2**self._doublings - 1)
        if slot < doubling:
            block = (slot // self._first + 1).bit_length() - 1
            return block, self._first * (2**block - 1), self._first * 2**block
        count = self._first * 2**self._doublings
        further = (slot - doubling) // count
        return self._doublings + further, doubling + further * count, count

    def _map_block(self, block: int, start: int, count: int) -> None:
        offset = _START + start * self._row_bytes
        size = os.fstat(self._file.fileno()).st_size
        if self._map == "r":  # an older file may end within a block
            count = min(count, (size - offset) // self._row_bytes)
            if count <= 0:
                raise InvalidInput(f"memory file {self.path} is cut short")
        end = offset + count * self._row_bytes
        if size < end:
            os.ftruncate(self._file.fileno(), end)
        self._mapped = max(self._mapped, end)
        self._blocks[block] = np.memmap(self._file, self._dtype, self._map, offset, (count, self._num_params))
        self._arrays[block] = self._blocks[block].view(np.ndarray)

    def write(self, slot: int, row: NDArray[Any]) -> None:
        """Store a row without mapping the slot, so that it takes no memory of this process."""
        if not hasattr(os, "pwrite"):
            np.copyto(self.row(slot), row)
            return
        if slot >= self._reserved:
            self._reserve(slot + 1)
        content = row.view(np.uint8)
        place = _START + slot * self._row_bytes
        done = 0
        while done < content.size:
            done += os.pwrite(self._file.fileno(), content[done : done + _PIECE].data, place + done)

    def leave(self, slots: Sequence[int], columns: slice) -> None:
        """Give the pages back: the system keeps them as long as it has room, and what was written is not lost."""
        if sys.platform != "linux" or self._row_bytes < _LARGE_ROW:
            return
        for slot in slots:
            block, start, _ = self._block(slot)
            first = (_START + start * self._row_bytes) % mmap.ALLOCATIONGRANULARITY + (slot - start) * self._row_bytes
            low = first + columns.start * self._dtype.itemsize
            low += -low % mmap.PAGESIZE
            length = first + columns.stop * self._dtype.itemsize - low
            mapping: Any = self._blocks[block].base  # the mapping itself
            if length >= mmap.PAGESIZE:
                mapping.madvise(mmap.MADV_DONTNEED, low, length - length % mmap.PAGESIZE)

    def _reserve(self, slots: int) -> None:
        # A write into a mapped hole of a full disk kills the process; asking for the space first is an error.
        if sys.platform == "linux":
            start = _START + self._reserved * self._row_bytes
            try:
                os.posix_fallocate(self._file.fileno(), start, (slots - self._reserved) * self._row_bytes)
            except OSError as error:
                what = f"memory file {self.path} cannot grow: {error.strerror}"
                raise InvalidInput(f"{what}; nothing was changed: free some space and resume") from error
        self._reserved = slots

    def check(self) -> None:
        """Refuse to go on with a file that is no longer ours, before anything touches its mapping.

        A mapping of a file that was cut ends the process (SIGBUS); one of a file without a name is read by nobody.
        """
        what = what_became_of(self.path, self._identity)
        length = max(self._mapped, _START + self._reserved * self._row_bytes if self._reserved else 0)
        if what is None and length > os.fstat(self._file.fileno()).st_size:
            what = "cut short"
        if what is not None:
            mend = "put it back, or restore it together with its checkpoint, and resume"
            raise FileTrouble(f"memory file {self.path} was {what} while it was in use: {mend}")

    def holds(self, slot: int) -> bool:
        """Whether the file is long enough to hold the slot: a truncated file does not."""
        return os.fstat(self._file.fileno()).st_size >= _START + (slot + 1) * self._row_bytes

    def flush(self) -> None:
        """Write dirty pages and wait for the disk."""
        for block in self._blocks.values():
            block.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unmap and unlock."""
        self._arrays.clear()
        self._blocks.clear()
        self._file.close()


def _parsed(header: bytes) -> dict[str, Any]:
    try:
        found = json.loads(header[len(_MAGIC) :].rstrip(b"\0"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _abandoned(path: Path) -> bool:
    """Whether no checkpoint ever named the rows of a file: its process ended before the first one was complete."""
    try:
        found = _look(path)
    except OSError:
        return False
    if found is None:
        return True
    way = (found.get(_OWNER) or {}).get("path")
    return found.get(_WHOLE) is False and (not way or not (path.parent / way / CHECKPOINT_FILE).exists())


def owner_of(path: Path, checkpoint: Path) -> Path | None:
    """The folder of the checkpoint that the rows of a file belong to, if it is another than this one.

    A checkpoint that was copied without its rows names those of the original; one copied by hard links shares them.
    """
    found = (_look(path) or {}).get(_OWNER)
    if not isinstance(found, dict) or (is_referenced_folder(found, checkpoint, path) and os.stat(path).st_nlink == 1):
        return None
    return Path(os.path.realpath(path.parent / str(found.get("path", ""))))


def _look(path: Path) -> dict[str, Any] | None:
    """Return the header of a file, None if it is empty; {} is no header of ours."""
    with open(path, "rb", opener=open_owner_only) as file:
        header = file.read(_HEADER)
    if not header:
        return None
    return _parsed(header) if header.startswith(_MAGIC) else {}
