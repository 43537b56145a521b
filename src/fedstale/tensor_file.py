"""Arrays and facts in one safetensors file that is replaced whole, every part of it under a checksum."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import InvalidInput
from .durable import checksum, replacing

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What comes of taking anything for the content of a checkpoint."""
_PIECE = 16 << 20
"""Bytes that are written at once."""
_KINDS = ("BOOL", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")
"""The format's names of what is saved."""


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays and facts to one safetensors file, replaced whole.

    The library's `save` builds the file in memory; here arrays go to the disk from where they lie, piece by piece.
    """
    arrays = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in tensors.items()}
    arrays = dict(sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])))  # all of them aligned
    sums = {name: checksum(array) for name, array in arrays.items()}
    facts = json.dumps(about, sort_keys=True)
    metadata = {
        "about": facts,
        "checksums": json.dumps(sums),
        "checksum": str(checksum(facts.encode())),
        "layout": _layout(arrays),
    }
    with replacing(path, private=True) as whole, open(whole, "wb") as file:
        file.write(_header(arrays, metadata))
        for array in arrays.values():
            content = array.reshape(-1).view(np.uint8)
            for start in range(0, content.size, _PIECE):
                file.write(content[start : start + _PIECE].data)


def _header(arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    """Return what stands before the arrays: its length, then names, types, shapes and places as JSON."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        kind = "BOOL" if array.dtype.kind == "b" else f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        if kind not in _KINDS:
            raise InvalidInput(f"array {name} of a checkpoint has dtype {array.dtype}, which cannot be saved")
        entries[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `write_tensors` wrote; a damaged file is an error, never a wrong number."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InvalidInput(f"there is no checkpoint at {path.parent}")
    if (size := path.stat().st_size) > _memory():  # the reader would abort, or the system end the process
        raise InvalidInput(f"checkpoint {path} is damaged: it has {size:,} bytes, more than this machine's memory")
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            # The file is mapped, and an array that is asked for is a copy already.
            tensors = {name: np.require(file.get_tensor(name), requirements="W") for name in file.keys()}  # noqa: SIM118
        about, sums = metadata["about"], json.loads(metadata["checksums"])
        sound = metadata["checksum"] == str(checksum(about.encode())) and sums.keys() == tensors.keys()
        sound = sound and metadata["layout"] == _layout(tensors)
        facts: dict[str, Any] = json.loads(about)
    except (SafetensorError, OSError, MemoryError, *NONSENSE) as error:
        raise InvalidInput(f"checkpoint {path} is damaged: {error}") from None
    if not sound or any(checksum(array) != sums[name] for name, array in tensors.items()):
        raise InvalidInput(f"checkpoint {path} is damaged: a checksum does not match")
    return tensors, facts


def _memory() -> int:
    """Bytes of memory of this machine, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _layout(arrays: dict[str, NDArray[Any]]) -> str:
    """Checksum of what the arrays' bytes do not tell: dtypes and shapes."""
    text = json.dumps([[name, array.dtype.str, array.shape] for name, array in sorted(arrays.items())])
    return str(checksum(text.encode()))
