"""The one pass over a round's rows: O(|S|·d) time, row by row, in blocks that stay in the processor's cache.

Gathering |S| rows with a fancy index copies them through main memory several times; here each fresh row and
each stale row is read once, widened to float64 in a small block, used for every sum at once, and the fresh row
is written to its new place. float64 blocks cost little (the pass is bound by memory) and make the sums exact
to rounding of the result. A block is multiplied with one row of weights at a time, a BLAS call that takes half the
time of one for two rows; `weighted_sum` makes the same call, so that the two agree bit for bit.

Where numba is there (the extra `fast`) and rows are large, `compiled` does the same pass several times as fast, equal
to rounding. Which of the two is taken depends on the shape and the kind of the rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..difference import Difference
from .precision import Precision

COLUMNS = 8192
_ROWS = 8
_EXACT_COLUMNS = 1 << 16
_PIECE = 1 << 15
"""Numbers of an update that are squared together."""
_STRETCH = 1 << 22
"""Columns after which rows may leave the memory of the process."""
_WORTH_COMPILING = 1 << 20
"""Numbers of a round from which on loops are compiled: loading numba takes as long as hundreds of smaller rounds."""


@cache
def _compiled() -> ModuleType | None:
    try:
        from . import compiled
    except ImportError:  # it is an extra, and may not know this NumPy yet
        return None
    return compiled


def _loops(rows: Sequence[NDArray[Any] | Difference]) -> Any:
    """Return the compiled loops where they are there and read these rows."""
    loops = _compiled()
    return loops if loops is not None and loops.takes(rows) else None


def _block_shape(length: int) -> tuple[int, int]:
    """Rows and columns of a block: more rows where they are short, so that a small model is done at once."""
    columns = min(COLUMNS, length)
    return _ROWS * COLUMNS // columns, columns


def blocks(count: int, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
    """Cut some columns of `count` rows into (rows, columns) blocks, all rows of a column range in sequence."""
    rows, columns = _block_shape(stop - start)
    for low in range(start, stop, columns):
        for first in range(0, count, rows):
            yield slice(first, min(first + rows, count)), slice(low, min(low + columns, stop))


def weighted_sum(rows: Sequence[NDArray[Any]], weights: Float, length: int) -> Float:
    """Σ weights_i rows_i in float64, shape (length,)."""
    if len(rows) * length >= _WORTH_COMPILING and (loops := _loops(rows)) is not None:
        summed: Float = loops.weighted_sum(rows, weights, length)
        return summed
    result = np.zeros(length)
    buffer = np.empty(_block_shape(length))
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN is found in the result, not told of here
        for some, columns in blocks(len(rows), 0, length):
            x = buffer[: some.stop - some.start, : columns.stop - columns.start]
            for k, i in enumerate(range(some.start, some.stop)):
                x[k] = rows[i][columns]
            result[columns] += weights[some] @ x
    return result


def squares(rows: Sequence[NDArray[Any] | Difference]) -> Float:
    """‖rows_i‖² in float64, shape (|S|,)."""
    return np.array([sum(np.einsum("i,i->", x, x, dtype=np.float64) for x in _parts(row)) for row in rows])


def _parts(row: NDArray[Any] | Difference) -> Iterator[NDArray[Any]]:
    """The pieces of a row: one that nobody has computed yet is never made whole."""
    return (row[low : low + _PIECE] for low in range(0, len(row), _PIECE))


def squares_of_differences(rows: Sequence[Difference]) -> Float:
    """‖rows_i‖² of updates that nobody has computed yet, shape (|S|,): summed in their own dtype in short stretches."""
    if sum(map(len, rows)) >= _WORTH_COMPILING and (loops := _loops(rows)) is not None:
        found: Float = loops.squares(rows)
        return found
    found = np.zeros(len(rows))
    for i, row in enumerate(rows):
        found[i] = sum(float(part @ part) for part in _parts(row))
    return found


@dataclass(frozen=True)
class Mix:
    """The weights of c Σ_i a_i h_i + Σ_S (u_i Δ_i − v_i h_i), the form that every rule with a memory has."""

    fresh: Float
    """u_i, shape (|S|,)"""
    stale: Float
    """v_i, shape (|S|,)"""
    total: float
    """c"""
    masses: Float
    """the a_i with which the new rows count in the running sum from now on, shape (|S|,)"""
    statistics: bool = False
    """whether ⟨Δ_i, h_i⟩ and ‖h_i‖² are wanted"""
    refresh: Float | None = None
    """r_i of h_i ← h_i + r_i (Δ_i − h_i), shape (|S|,); None for h_i ← Δ_i"""


@dataclass(frozen=True, eq=False)
class Exchange:
    """What one pass is over: rows as for `exchange`, and the running total."""

    fresh: Sequence[NDArray[Any] | Difference]
    stale: Sequence[NDArray[Any] | None]
    target: Sequence[NDArray[Any]]
    precision: Precision
    mix: Mix
    old_masses: Float
    total: Float


@dataclass
class Sums:
    """What one pass computes: two vectors of shape (d,), and two of shape (|S|,) where they were asked for."""

    mix: Float
    """c Σ_i a_i h_i + Σ_S (u_i Δ_i − v_i h_i)"""
    total: Float
    """Σ_i a_i h_i over all clients after the replacement of the participants' rows"""
    inner: Float
    """⟨Δ_i, h_i⟩"""
    stale_sq: Float
    """‖h_i‖²"""


def refreshed(u: Float, h: Float, rate: Float) -> Float:
    """h_i + r_i (Δ_i − h_i), row by row; Δ_i itself, to the bit, where r_i = 1."""
    with np.errstate(invalid="ignore", over="ignore"):
        new: Float = u - h
        new *= rate[:, None]
        new += h
    whole = rate == 1.0
    new[whole] = u[whole]
    return new


def exchange(
    fresh: Sequence[NDArray[Any] | Difference],
    stale: Sequence[NDArray[Any] | None],
    target: Sequence[NDArray[Any]],
    precision: Precision,
    mix: Mix,
    *,
    old_masses: Float,
    total: Float,
    out: Float,
    mixed: Float | None = None,
    leave: Callable[[slice], None] | None = None,
) -> Sums:
    """Mix fresh and stale rows, write the new ones to `target`, and the moved running total to `out`.

    `stale[i]` is None for a client never seen before (h_i = 0). Where `target` does not overlap `stale`, and `out` is
    not `total`, nothing has happened until the caller makes the result current; `target` may also be `stale`, row by
    row, and `out` may be `total`. The mix goes to `mixed`, if there is such. `leave` is told of columns of the rows
    that are done with.
    """
    count, length = len(fresh), len(total)
    sums = Sums(np.empty(length) if mixed is None else mixed, out, np.zeros(count), np.zeros(count))
    loops = _loops(fresh) if count * length >= _WORTH_COMPILING else None
    mix_some = _exchange if loops is None else loops.exchange
    work = Exchange(fresh, stale, target, precision, mix, old_masses, total)
    for low in range(0, length, _STRETCH):
        columns = slice(low, min(low + _STRETCH, length))
        mix_some(columns, work, sums)
        if leave is not None:
            leave(columns)
    return sums


def _exchange(part: slice, work: Exchange, sums: Sums) -> None:
    """Do it with NumPy for some columns, into `sums`."""
    fresh, stale, target, precision = work.fresh, work.stale, work.target, work.precision
    mix, old_masses, total, out = work.mix, work.old_masses, work.total, sums.total
    count = len(fresh)
    np.multiply(total[part], mix.total, out=sums.mix[part])
    np.copyto(out[part], total[part])
    exact = mix.refresh is None and all(row.dtype in precision.exact for row in fresh)
    plain = precision.load is np.copyto
    there = all(isinstance(row, np.ndarray) for row in fresh)
    shape = _block_shape(part.stop - part.start)
    u_block, h_block = np.empty((2, min(shape[0], count) * shape[1]))
    raw_block, zeros = np.empty(u_block.shape, dtype=precision.dtype), np.zeros(shape[1], dtype=precision.dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN is found in the sums, not told of here
        for some, columns in blocks(count, part.start, part.stop):
            size = some.stop - some.start, columns.stop - columns.start
            u, h, raw = (block[: size[0] * size[1]].reshape(size) for block in (u_block, h_block, raw_block))
            rows: Any = (fresh[some], stale[some], target[some])
            sent, before, slots = rows if there and size[1] == len(total) else [_cut(each, columns) for each in rows]
            np.concatenate(sent, out=u.reshape(-1))
            before = [zeros[: size[1]] if row is None else row for row in before]
            np.concatenate(before, out=(h if plain else raw).reshape(-1))
            if not plain:
                precision.load(h, raw)
            mixed = mix.fresh[some] @ u
            if mix.statistics:
                sums.inner[some] += _dots(u, h)
                sums.stale_sq[some] += _dots(h, h)
            if exact:
                for row, slot in zip(sent, slots, strict=True):
                    np.copyto(slot, row)
            else:  # the total is over what was stored, not over what was sent
                precision.store(u if mix.refresh is None else refreshed(u, h, mix.refresh[some]), raw)
                for slot, row in zip(slots, raw, strict=True):
                    np.copyto(slot, row)
                precision.load(u, raw)
            moved = mix.masses[some] @ u
            mixed -= mix.stale[some] @ h
            moved -= old_masses[some] @ h
            sums.mix[columns] += mixed
            out[columns] += moved


def _cut(rows: Sequence[Any], columns: slice) -> list[Any]:
    """Some columns of every row that is there."""
    return [None if row is None else row[columns] for row in rows]


def _dots(x: Float, y: Float) -> Float:
    """⟨x_i, y_i⟩ of the rows of two blocks."""
    products: Float = np.matmul(x[:, None, :], y[:, :, None])[:, 0, 0]
    return products


def exact_sums(
    rows: Sequence[NDArray[Any]], masses: Float, precision: Precision, length: int
) -> Iterator[tuple[slice, Float]]:
    """Σ a_i h_i over any number of rows, some columns after the other, each exact to one rounding (Neumaier)."""
    buffer = np.empty(min(_EXACT_COLUMNS, length))
    for low in range(0, length, _EXACT_COLUMNS):
        columns = slice(low, min(low + _EXACT_COLUMNS, length))
        row = buffer[: columns.stop - low]
        total, lost = np.zeros_like(row), np.zeros_like(row)
        for mass, stored in zip(masses.tolist(), rows, strict=True):
            precision.load(row, stored[columns])
            row *= mass
            moved = total + row
            big = np.abs(total) >= np.abs(row)
            lost += np.where(big, (total - moved) + row, (row - moved) + total)
            total = moved
        yield columns, total + lost
