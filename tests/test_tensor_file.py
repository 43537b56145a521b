"""The file of a checkpoint: the safetensors format, written from where the arrays lie."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

from fedstale import tensor_file
from fedstale.checks import InvalidInput
from fedstale.tensor_file import read_tensors, write_tensors

KINDS = (
    "bool",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
ARRAYS = {
    **{kind: np.arange(7).astype(kind) for kind in KINDS},
    "nothing": np.empty((0, 3)),
    "number": np.array(2.5),
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(3, dtype=">f8"),
    "a/name — with ünusual letters": np.ones((2, 1, 2), np.float32),
}


@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_what_was_written_is_read_and_the_library_reads_the_same(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "_PIECE", piece)
    write_tensors(tmp_path / "file", ARRAYS, {"round": 3})
    found, about = read_tensors(tmp_path / "file")
    assert about == {"round": 3}
    library = load_file(tmp_path / "file")
    assert found.keys() == library.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        for other in (found[name], library[name]):
            assert (other.dtype, other.shape) == (array.dtype.newbyteorder("="), array.shape)
            np.testing.assert_array_equal(other, array)
        found[name][...] = 0  # it is one's own
    with safe_open(tmp_path / "file", framework="np") as file:
        assert set(file.metadata()) == {"about", "checksums", "checksum", "layout"}


def test_the_file_is_not_built_in_memory(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {"model": np.zeros(4_000_000), "row": np.zeros(3_000_000, np.float32)}
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "file", arrays, {})
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.reset_peak()
        read_tensors(tmp_path / "file")
        assert tracemalloc.get_traced_memory()[1] < 1.3 * sum(array.nbytes for array in arrays.values())
    finally:
        tracemalloc.stop()


def test_what_the_format_has_no_name_for_is_refused_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"a": np.ones(2)}, {})
    with pytest.raises(InvalidInput, match="array b of a checkpoint has dtype complex128"):
        write_tensors(tmp_path / "file", {"b": np.ones(2, complex)}, {})
    assert list(read_tensors(tmp_path / "file")[0]) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
