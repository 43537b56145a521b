"""How a Flower model (named arrays of any shape and dtype) becomes the one vector w of Algorithm 1, and back.

Floating-point arrays go through the rule as one flat vector. What a rule must not touch is kept beside it and
averaged over the clients, each with what it sent last: integer and boolean buffers (a counter has no gradient), and
running statistics of normalisation layers (an update weighted by 1/p_i may overshoot: a variance below zero is NaN).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from ..checks import InvalidInput, fail
from ..difference import Difference

AVERAGED_BUFFERS = ("*running_mean", "*running_var")
"""Names of floating-point arrays that are averaged instead of going through the rule."""
_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
"""What a reply may hold where the model has such numbers."""
_LARGEST, _LARGEST_WHOLE = 1e30, 2.0**53
"""Largest numbers of a buffer: a mean of such is finite, and whole numbers are exact."""


class BadArrays(InvalidInput):
    """Arrays that do not fit the model."""


@dataclass(frozen=True)
class _Slot:
    """One array of the model; `start` is its place in the vector, or −1 for an array beside it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    @property
    def stop(self) -> int:
        """Where the array ends in the vector."""
        return self.start + prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The arrays of a model in the order in which the model names them."""

    slots: tuple[_Slot, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], averaged_buffers: Sequence[str] = AVERAGED_BUFFERS) -> Layout:
        """Read the layout off a model; `averaged_buffers` are patterns of names that do not go through the rule."""
        slots, offset = [], 0
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
                allowed = "arrays of a model hold float16, float32, float64, integers or booleans"
                raise fail(f"array {name}", str(array.dtype), allowed)
            through_rule = array.dtype.kind == "f" and not any(
                fnmatchcase(name, pattern) for pattern in averaged_buffers
            )
            slots.append(_Slot(name, array.shape, array.dtype, offset if through_rule else -1))
            offset += array.size if through_rule else 0
        if offset == 0:
            raise fail("initial_arrays", sorted(arrays), "the model has no floating-point parameters to train")
        return cls(tuple(slots))

    @property
    def parameters(self) -> list[_Slot]:
        """The arrays that go through the rule."""
        return [slot for slot in self.slots if slot.start >= 0]

    @property
    def buffers(self) -> list[_Slot]:
        """The arrays beside it."""
        return [slot for slot in self.slots if slot.start < 0]

    @property
    def num_params(self) -> int:
        """The length d of the vector."""
        return self.parameters[-1].stop

    @property
    def dtype(self) -> np.dtype[Any]:
        """The vector's dtype: float32, or float64 as soon as one parameter is; float16 is summed in float32."""
        return np.result_type(np.float32, *(slot.dtype for slot in self.parameters))

    def describe(self) -> list[list[Any]]:
        """Return the layout as plain lists, to be saved as JSON."""
        return [[slot.name, list(slot.shape), slot.dtype.str, slot.start] for slot in self.slots]

    @classmethod
    def from_description(cls, lists: Iterable[Sequence[Any]]) -> Layout:
        """Rebuild a layout from `describe`."""
        return cls(tuple(_Slot(name, tuple(shape), np.dtype(kind), start) for name, shape, kind, start in lists))

    def split(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Return the vector and the buffers of a model."""
        vector = np.empty(self.num_params, dtype=self.dtype)
        for slot in self.parameters:
            vector[slot.start : slot.stop] = arrays[slot.name].reshape(-1)
        return vector, {slot.name: arrays[slot.name].astype(slot.dtype) for slot in self.buffers}

    def join(self, vector: NDArray[Any], buffers: Mapping[str, NDArray[Any]]) -> ArrayRecord:
        """Return the model as Flower sends it, each array in its own dtype."""
        arrays = {}
        for slot in self.slots:
            flat = buffers[slot.name] if slot.start < 0 else vector[slot.start : slot.stop]
            arrays[slot.name] = encode(np.asarray(flat.reshape(slot.shape), dtype=slot.dtype))
        return ArrayRecord(arrays)

    def as_sent(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Return the vector as the clients receive it: rounded where an array is narrower than the vector."""
        if all(slot.dtype == vector.dtype for slot in self.parameters):
            return vector
        sent = vector.copy()
        for slot in self.parameters:
            sent[slot.start : slot.stop] = vector[slot.start : slot.stop].astype(slot.dtype)
        return sent

    def check(self, record: Mapping[str, Array], wanted: AbstractSet[str]) -> None:
        """Refuse arrays other than those that are wanted, by what the record says of them."""
        for what, names in (("missing", wanted - record.keys()), ("unknown", record.keys() - wanted)):
            if names:
                raise BadArrays(f"{what} arrays: {', '.join(sorted(names)[:3])}{' …' if len(names) > 3 else ''}")

    def trained(self, records: Iterable[Mapping[str, Array]]) -> AbstractSet[str]:
        """Return the names that replies hold: those of the whole model, or the part that most of them hold.

        Clients may train a part of the model (a head, adapters) and send only that: the rest has not moved.
        """
        names = {slot.name for slot in self.slots}
        parts = [frozenset(record) for record in records if record and record.keys() <= names]
        return max(dict.fromkeys(parts), key=lambda part: (parts.count(part), len(part)), default=frozenset(names))

    def difference(self, sent: NDArray[Any], record: Mapping[str, Array]) -> Difference:
        """Return Δ = w_t − w_i, shape (d,), of a reply, read where it lies; refuse arrays of another shape or kind."""
        return Difference(sent, [self._piece(slot, sent, record) for slot in self.parameters], self._edges)

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return np.array([slot.start for slot in self.parameters] + [self.num_params], dtype=np.int64)

    def _piece(self, slot: _Slot, sent: NDArray[Any], record: Mapping[str, Array]) -> NDArray[Any]:
        """Return what a reply has for a slot, in the vector's dtype; what it does not hold has not moved."""
        if slot.name not in record:
            return sent[slot.start : slot.stop]
        with np.errstate(over="ignore", invalid="ignore"):
            return np.require(_fitting(slot, record[slot.name], "f"), self.dtype, ["C", "A"])

    def buffers_of(self, record: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
        """Return a reply's buffers; refuse those of another shape, or not finite."""
        found = {}
        for slot in self.buffers:
            if slot.name not in record:
                continue
            array = _fitting(slot, record[slot.name], _KINDS[slot.dtype.kind]).reshape(slot.shape)
            limit = _LARGEST_WHOLE if slot.dtype.kind in "iub" else min(_LARGEST, float(np.finfo(slot.dtype).max))
            if not (np.abs(array.astype(np.float64)) <= limit).all():
                raise BadArrays(f"array {slot.name} holds NaN, infinity or a number too large to be averaged")
            if slot.name.endswith("running_var") and (array < 0).any():
                raise BadArrays(f"array {slot.name} holds a negative variance")
            found[slot.name] = array
        return found


def read_arrays(record: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    """Return all arrays of a record as NumPy arrays."""
    return {name: decode(array) for name, array in record.items()}


def decode(array: Array) -> NDArray[Any]:
    """Return a Flower array as a read-only NumPy array over the received bytes.

    `Array.numpy()` parses the header anew and copies the data; a round has the same few headers from every
    client, so they are parsed once and the data is viewed where it lies. It also opens whatever `np.load` knows,
    such as a zip file of arrays: here only the one format that Flower writes is read.
    """
    data = array.data
    if array.stype != "numpy.ndarray":
        raise BadArrays(f"arrays are serialised as {array.stype!r}, expected 'numpy.ndarray'")
    try:
        if data[:8] != b"\x93NUMPY\x01\x00":
            raise ValueError("it is not in NumPy's format 1.0")
        offset = 10 + int.from_bytes(data[8:10], "little")
        shape, fortran, dtype = _header(data[8:offset])
        flat = np.frombuffer(data, dtype=dtype, count=prod(shape), offset=offset)
        return flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # a parser of bytes from outside raises what it likes: tokenize.TokenError, …
        raise BadArrays(f"an array cannot be read: {error}") from None


def encode(array: NDArray[Any]) -> Array:
    """Return an array as Flower sends it: the bytes of `Array(array)`, without a second copy of them on the way."""
    array = np.asarray(array, order="C")
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    content = array.reshape(-1).view(np.uint8).data
    return Array(str(array.dtype), tuple(array.shape), "numpy.ndarray", b"".join((head.getvalue(), content)))


@lru_cache(maxsize=4096)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(BytesIO(header))
    if dtype.hasobject:
        raise ValueError("objects are never unpickled")
    if any(length < 0 for length in shape):  # NumPy would take −1 for "whatever fits"
        raise ValueError("negative dimensions")
    return tuple(shape), bool(fortran), dtype


def _fitting(slot: _Slot, array: Array, kinds: str) -> NDArray[Any]:
    """Decode an array that must fit a slot; return it flat."""
    found = decode(array)
    if found.shape != slot.shape:
        raise BadArrays(f"array {slot.name} has shape {found.shape}, expected {slot.shape}")
    if found.dtype.kind not in kinds:
        raise BadArrays(f"array {slot.name} holds {found.dtype}, expected {slot.dtype}")
    return found.reshape(-1)
