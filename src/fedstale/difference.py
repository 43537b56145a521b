"""An update that nobody has computed yet: Δ = c (w − w_i), read where it lies when the pass over a round comes to it.

A server that is sent models would otherwise write every Δ_i to memory only to read it again: with large models that is
most of its time, and a row of room per participant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Difference:
    """Δ = scale · (start − end), shape (d,), in the dtype of `start`; it is what they hold when it is looked at.

    Whoever makes one has seen that it is finite: a memory may write over what it had while it reads it.

    Attributes
    ----------
    start
        w, shape (d,).
    pieces
        w_i in pieces, one after the other, each of `start`'s dtype and without gaps.
    edges
        Where each piece begins, and d, shape (pieces + 1,).
    scale
        c, such as the factor of an update that was shortened.
    """

    start: NDArray[Any]
    pieces: Sequence[NDArray[Any]]
    edges: NDArray[np.int64]
    scale: float = 1.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""
        return self.start.dtype

    @property
    def shape(self) -> tuple[int]:
        """Shape (d,)."""
        return (len(self.start),)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, columns: slice) -> NDArray[Any]:
        """Compute some numbers of it, side by side."""
        low, high, _ = columns.indices(len(self))
        return self.write(np.empty(max(0, high - low), dtype=self.dtype), low)

    def take(self, columns: NDArray[np.int64]) -> NDArray[Any]:
        """Compute its numbers at some places."""
        end = np.empty(len(columns), dtype=self.dtype)
        which = np.searchsorted(self.edges, columns, side="right") - 1
        for piece in np.unique(which):
            here = which == piece
            end[here] = self.pieces[piece][columns[here] - self.edges[piece]]
        return self._scaled(np.subtract(self.start[columns], end, out=end))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Compute all of it."""
        whole = self.write(np.empty(len(self), dtype=self.dtype))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def write(self, out: NDArray[Any], low: int = 0) -> NDArray[Any]:
        """Compute what comes from `low` on, as much as there is room for, and return the room."""
        at, high = low, low + len(out)
        piece = int(np.searchsorted(self.edges, low, side="right")) - 1
        while at < high:
            first, last = int(self.edges[piece]), min(int(self.edges[piece + 1]), high)
            end = self.pieces[piece][at - first : last - first]
            np.subtract(self.start[at:last], end, out=out[at - low : last - low])
            at, piece = last, piece + 1
        return self._scaled(out)

    def _scaled(self, found: NDArray[Any]) -> NDArray[Any]:
        if self.scale != 1.0:
            found *= found.dtype.type(self.scale)
        return found
