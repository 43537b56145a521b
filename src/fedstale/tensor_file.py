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


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays and facts to one safetensors file, replaced whole."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    sums = {name: checksum(array) for name, array in arrays.items()}
    facts = json.dumps(about, sort_keys=True)
    metadata = {
        "about": facts,
        "checksums": json.dumps(sums),
        "checksum": str(checksum(facts.encode())),
        "layout": _layout(arrays),
    }
    with replacing(path, private=True) as whole:
        whole.write_bytes(save(arrays, metadata=metadata))


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
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
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
