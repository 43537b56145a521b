"""How a stale update is stored: float64, float32, float16 or bfloat16.

Rounding a row is safe: the stored, rounded row is what both terms of Eq. 8 use, so the update stays unbiased
whatever the rounding did (spec: unbiasedness does not depend on what is in the memory).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import choose

Row = NDArray[Any]

_F16, _F32, _F64 = np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8")
_BFLOAT16_MAX = np.float32(np.frombuffer(np.uint32(0x7F7F0000).tobytes(), dtype=np.float32)[0])


@dataclass(frozen=True)
class Precision:
    """A storage format for rows; the base class stores a NumPy float type as it is.

    Attributes
    ----------
    name, dtype
        Of the format.
    exact
        The types whose values are stored without any rounding.
    load
        Widens stored values into a float array: load(array, stored).
    """

    name: str
    dtype: np.dtype[Any]
    exact: frozenset[np.dtype[Any]]
    load: Callable[[Row, Row], None] = field(default_factory=lambda: np.copyto)

    def store(self, values: Row, out: Row) -> None:
        """Round values into storage; what is beyond the format's range is stored as its largest number."""
        if values.dtype in self.exact:
            np.copyto(out, values)
        else:
            with np.errstate(over="ignore"):
                np.copyto(out, values, casting="same_kind")
            if np.isinf(out).any():
                limit = np.finfo(self.dtype).max
                np.copyto(out, np.clip(values, -limit, limit), casting="same_kind")


@dataclass(frozen=True)
class _BFloat16(Precision):
    """The upper half of a float32 (NumPy has no bfloat16), rounded to nearest, ties to even."""

    def store(self, values: Row, out: Row) -> None:
        """Round to nearest even: add half of what is cut off, then cut."""
        single = np.clip(values, -_BFLOAT16_MAX, _BFLOAT16_MAX).astype(np.float32, copy=False)
        bits = single.view(np.uint32)
        np.right_shift(bits + (((bits >> 16) & 1) + np.uint32(0x7FFF)), 16, out=out, casting="unsafe")


def _load_bfloat16(out: Row, stored: Row) -> None:
    """Put the stored half back into the upper half of a float32."""
    np.copyto(out, (stored.astype(np.uint32) << 16).view(np.float32))


PRECISIONS: dict[str, Precision] = {
    "float64": Precision("float64", _F64, frozenset({_F16, _F32, _F64})),
    "float32": Precision("float32", _F32, frozenset({_F16, _F32})),
    "float16": Precision("float16", _F16, frozenset({_F16})),
    "bfloat16": _BFloat16("bfloat16", np.dtype("<u2"), frozenset(), _load_bfloat16),  # eight bits of mantissa
}


def precision(name: str) -> Precision:
    """Look a storage format up by name."""
    return choose("precision", name, PRECISIONS)
