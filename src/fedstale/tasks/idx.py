"""Read IDX files, the format of MNIST, Fashion-MNIST and of EMNIST/FEMNIST files a user brings along.

An IDX file is 0 0 type rank, then one big-endian 32-bit length per dimension, then the numbers in C order.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import fail

_LARGEST = 4 << 30
"""Bytes that an unpacked file may have: EMNIST, the largest of them, has 0.6 GB."""
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
        content = _gunzip(content, name)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or content[3] == 0:
        raise fail("source", name, "must be an IDX file (it begins with 0 0, a known type and a rank)")
    kind, rank = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise fail("source", name, f"the header of an IDX file of rank {rank} has {start} bytes: the file is truncated")
    shape = struct.unpack(f">{rank}I", content[4:start])
    expected = start + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise fail("source", name, f"shape {shape} needs {expected} bytes, the file has {len(content)}")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def _gunzip(data: bytes, name: str) -> bytes:
    """Unpack no more than the header announces and one byte: a bomb is an error, not a full memory."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            head = stream.read(4)
            if len(head) < 4 or head[2] not in _TYPES:
                return head
            lengths = stream.read(4 * head[3])
            shape = struct.unpack(f">{len(lengths) // 4}I", lengths[: len(lengths) // 4 * 4])
            head, size = head + lengths, math.prod(shape) * np.dtype(_TYPES[head[2]]).itemsize
            if size > _LARGEST:
                raise fail("source", name, f"shape {shape} is larger than any data set of this kind")
            return head + stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise fail("source", name, f"cannot be unpacked: {error}") from None
