"""Where rows lie: blocks in RAM, or a memory-mapped file that survives the process.

A row store is a growing array of equal slots. Which client owns which slot is the business of `Memory`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import InvalidInput
from .precision import Precision

_MAGIC = b"fedstale rows 1\n"
_HEADER = 4096
_RAM_BLOCK = 64 << 20
_FILE_BLOCK = 4 << 20


Mode = Literal["create", "write", "read"]


class RowStore(Protocol):
    """Slots that hold one row each; asking for a slot makes it."""

    def row(self, slot: int) -> NDArray[Any]:
        """Return the slot's storage, shape (d,), writable."""

    def flush(self) -> None:
        """Make everything written so far survive a crash of the machine."""

    def close(self) -> None:
        """Let go of files and locks."""


class RamRows:
    """Rows in RAM, in blocks: growing never copies, and an untouched slot costs no memory."""

    def __init__(self, num_params: int, precision: Precision) -> None:
        self._shape = (max(1, _RAM_BLOCK // (num_params * precision.itemsize)), num_params)
        self._dtype = precision.dtype
        self._blocks: list[NDArray[Any]] = []

    def row(self, slot: int) -> NDArray[Any]:
        """Return the slot's storage."""
        block, place = divmod(slot, self._shape[0])
        while len(self._blocks) <= block:
            self._blocks.append(np.empty(self._shape, dtype=self._dtype))
        result: NDArray[Any] = self._blocks[block][place]
        return result

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
        "create" a file that must not exist, "write" to one, or "read" one without taking the lock.
    """

    def __init__(self, path: Path, num_params: int, precision: Precision, run: str, mode: Mode) -> None:
        self.path = path
        self._row_bytes = num_params * precision.itemsize
        self._first = max(1, _FILE_BLOCK // self._row_bytes)
        self._num_params = num_params
        self._dtype = precision.dtype
        self._blocks: dict[int, np.memmap[Any, Any]] = {}
        self._reserved = 0
        about = {"num_params": num_params, "precision": precision.name, "run": run}
        self._map: Literal["r", "r+"] = "r" if mode == "read" else "r+"
        if mode == "create":
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = open(path, {"create": "x+b", "write": "r+b", "read": "rb"}[mode])  # noqa: SIM115 - held as long as the rows are
        except FileExistsError:
            raise InvalidInput(
                f"memory file {path} exists already: load the run it belongs to, or choose another folder"
            ) from None
        except FileNotFoundError:
            raise InvalidInput(f"memory file {path} is missing") from None
        try:
            if mode != "read":
                self._lock()
            if mode == "create":
                header = _MAGIC + json.dumps(about).encode()
                self._file.write(header.ljust(_HEADER, b"\0"))
                self._file.flush()
            else:
                self._check_header(about)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(f"memory file {self.path} is in use by another run or process") from None

    def _check_header(self, about: dict[str, Any]) -> None:
        header = self._file.read(_HEADER)
        if not header.startswith(_MAGIC):
            raise InvalidInput(f"{self.path} is not a memory file of fedstale")
        try:
            found = json.loads(header[len(_MAGIC) :].rstrip(b"\0"))
        except ValueError:
            raise InvalidInput(f"the header of memory file {self.path} is damaged") from None
        for key, wanted in about.items():
            if found.get(key) != wanted:
                raise InvalidInput(f"memory file {self.path} has {key} = {found.get(key)!r}, expected {wanted!r}")

    def row(self, slot: int) -> NDArray[Any]:
        """Return the slot's storage; the file grows (sparsely) when the slot is new."""
        # Blocks double in size: a small memory has a small file, a large one has few mappings.
        block = (slot // self._first + 1).bit_length() - 1
        start, count = self._first * (2**block - 1), self._first * 2**block
        if block not in self._blocks:
            offset = _HEADER + start * self._row_bytes
            end = offset + count * self._row_bytes
            if os.fstat(self._file.fileno()).st_size < end:
                if self._map == "r":
                    raise InvalidInput(f"memory file {self.path} is cut short")
                os.ftruncate(self._file.fileno(), end)
            shape = (count, self._num_params)
            self._blocks[block] = np.memmap(self._file, self._dtype, self._map, offset, shape)
        if slot >= self._reserved and self._map == "r+":
            self._reserve(slot + 1)
        result: NDArray[Any] = self._blocks[block][slot - start]
        return result

    def _reserve(self, slots: int) -> None:
        # A write into a mapped hole of a full disk kills the process; asking for the space first is an error.
        if sys.platform == "linux":
            start = _HEADER + self._reserved * self._row_bytes
            os.posix_fallocate(self._file.fileno(), start, (slots - self._reserved) * self._row_bytes)
        self._reserved = slots

    def holds(self, slot: int) -> bool:
        """Whether the file is long enough to hold the slot: a truncated file does not."""
        return os.fstat(self._file.fileno()).st_size >= _HEADER + (slot + 1) * self._row_bytes

    def flush(self) -> None:
        """Write dirty pages and wait for the disk."""
        for block in self._blocks.values():
            block.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unmap and unlock."""
        self._blocks.clear()
        self._file.close()
