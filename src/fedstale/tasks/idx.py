"""Read IDX files, the format of MNIST, Fashion-MNIST and of EMNIST/FEMNIST files a user brings along.

An IDX file is 0 0 type rank, then one big-endian 32-bit length per dimension, then the numbers in C order.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import fail

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(source: str | Path | bytes) -> NDArray[Any]:
    """Read an IDX file, plain or gzipped, into an array of native byte order.

    Parameters
    ----------
    source
        A path, or the content of such a file.
    """
    name = "bytes" if isinstance(source, bytes) else str(source)
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or content[3] == 0:
        raise fail("source", name, "must be an IDX file (it begins with 0 0, a known type and a rank)")
    kind, rank = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise fail("source", name, f"the header of an IDX file of rank {rank} has {start} bytes: it is cut off")
    shape = struct.unpack(f">{rank}I", content[4:start])
    expected = start + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise fail("source", name, f"shape {shape} needs {expected} bytes, the file has {len(content)}")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))
