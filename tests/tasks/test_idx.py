"""`read_idx` on small files written here byte by byte."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstale.checks import InvalidInput
from fedstale.tasks.data import read_idx

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx_bytes(array: NDArray[Any]) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("kind", sorted(CODES))
def test_every_type_and_both_ways_of_storing(kind: str, tmp_path: Path) -> None:
    array = np.arange(24, dtype=kind).reshape(2, 3, 4) - (3 if kind != "u1" else 0)
    for content in (idx_bytes(array), gzip.compress(idx_bytes(array))):
        path = tmp_path / "file"
        path.write_bytes(content)
        for read in (read_idx(path), read_idx(str(path)), read_idx(content)):
            np.testing.assert_array_equal(read, array)
            assert read.dtype == array.dtype
            assert read.dtype.isnative


def test_the_layout_is_that_of_the_format() -> None:
    # 0 0, type 8 (unsigned byte), rank 2, lengths 2 and 3, then the numbers row by row.
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22])
    assert read_idx(content).tolist() == [[10, 11, 12], [20, 21, 22]]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "must be an IDX file"),
        (b"\x89PNG....", "must be an IDX file"),
        (bytes([0, 0, 7, 1, 0, 0, 0, 0]), "must be an IDX file"),
        (bytes([0, 0, 8, 3, 0, 0]), "truncated"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2]), r"shape \(5,\) needs 13 bytes, the file has 10"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 1, 1, 2]), "needs 9 bytes, the file has 10"),
    ],
)
def test_what_is_no_idx_file_is_refused(content: bytes, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        read_idx(content)
