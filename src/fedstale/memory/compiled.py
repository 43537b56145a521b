"""The pass of `kernel` as compiled loops (numba, the extra `fast`): each row is read once, at the speed of memory.

The loops go through all rows of a few thousand columns at a time, whose sums stay in the processor's cache. Columns are
shared out to threads in blocks that depend on nothing but d and the pieces of a model, and what is summed over blocks
is summed in their order: the same numbers give the same bits, however many threads there are. A column's sums are plain
multiplications and additions, row after row, so that `weighted_sum` and `exchange` agree bit for bit; only ⟨Δ_i, h_i⟩
and squares let the compiler choose the order within a block. Numba keeps the machine code beside this file, or in the
user's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from ..checks import Float
from ..difference import Difference

if TYPE_CHECKING:
    from .kernel import Exchange, Sums

_COLUMNS = 8192
_SHARE = 1 << 20
"""Numbers of a row that are worth a thread."""
_LIKE: dict[str, NDArray[Any]] = {
    "float64": np.empty(0),
    "float32": np.empty(0, dtype=np.float32),
    "float16": np.empty(0, dtype=np.int16),  # signed and unsigned tell the two halves of sixteen bits apart
    "bfloat16": np.empty(0, dtype=np.uint16),
}
_FRESH = {np.dtype(np.float32): _LIKE["float32"], np.dtype(np.float64): _LIKE["float64"]}


def takes(rows: Sequence[NDArray[Any] | Difference]) -> bool:
    """Whether the loops read such rows: all of one native float type, without gaps; no differences, or all from one."""
    if not rows or rows[0].dtype not in _FRESH or any(_start([row]) is not _start(rows) for row in rows):
        return False
    parts = [part for row in rows for part in ([row] if isinstance(row, np.ndarray) else [row.start, *row.pieces])]
    return all(part.dtype == rows[0].dtype and part.flags.c_contiguous and part.flags.aligned for part in parts)


def weighted_sum(rows: Sequence[NDArray[Any]], weights: Float, length: int) -> Float:
    """Σ weights_i rows_i, as `kernel.weighted_sum`."""
    result = np.zeros(length)
    blocks = -(-length // _COLUMNS)
    _shared(_add_rows, blocks, len(rows) * length, _FRESH[rows[0].dtype], _addresses(rows), weights, result)
    return result


def squares(rows: Sequence[Difference]) -> Float:
    """‖rows_i‖² of differences from one vector, shape (|S|,)."""
    start = rows[0].start
    edges = _edges(rows, slice(0, len(start)))
    sums = np.zeros((len(edges) - 1, len(rows)))
    like, scales = _FRESH[start.dtype], np.array([row.scale for row in rows], dtype=start.dtype)
    _shared(_square_rows, len(sums), sums.size, like, edges, _places(rows, edges), scales, start, sums)
    total: Float = sums.sum(axis=0)
    return total


def exchange(columns: slice, work: Exchange, sums: Sums) -> None:
    """Do what `kernel.exchange` does for some columns, into `sums`."""
    fresh, precision, mix = work.fresh, work.precision, work.mix
    count, start = len(fresh), _start(fresh)
    edges = _edges(fresh, columns)
    products = np.zeros((2, len(edges) - 1, count)) if mix.statistics else None
    old = np.array([0 if row is None else row.ctypes.data for row in work.stale], dtype=np.int64)
    new = _addresses(work.target)
    _shared(
        _mix_rows,
        len(edges) - 1,
        count * (columns.stop - columns.start),
        _LIKE[precision.name],
        edges,
        _FRESH[fresh[0].dtype],
        _places(fresh, edges),
        start,
        np.array([getattr(row, "scale", 1.0) for row in fresh], dtype=fresh[0].dtype),
        old,
        None if (old == new).all() else new,
        np.zeros(_COLUMNS, dtype=_LIKE[precision.name].dtype),
        np.stack([mix.fresh, mix.masses, mix.stale, work.old_masses]),
        mix.refresh,
        mix.total,
        work.total,
        sums.mix,
        None if sums.total is work.total else sums.total,
        products,
    )
    if products is not None:
        inner, squared = products.sum(axis=1)
        sums.inner += inner
        sums.stale_sq += squared


def _start(rows: Sequence[NDArray[Any] | Difference]) -> NDArray[Any] | None:
    """What rows are differences from, None for rows that are there."""
    return None if not rows or isinstance(rows[0], np.ndarray) else rows[0].start


def _edges(rows: Sequence[NDArray[Any] | Difference], columns: slice) -> NDArray[np.int64]:
    """Where blocks of some columns begin, and where the last ends: none is longer than _COLUMNS or parts a piece."""
    parted = {id(row.edges): row.edges for row in rows if not isinstance(row, np.ndarray)}
    even = np.arange(columns.start, columns.stop, _COLUMNS)
    every = np.unique(np.concatenate([even, *parted.values(), [columns.stop]]))
    within: NDArray[np.int64] = every[(every >= columns.start) & (every <= columns.stop)].astype(np.int64)
    return within


def _places(rows: Sequence[NDArray[Any] | Difference], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The addresses of every row at the beginning of every block, shape (rows, blocks)."""
    low, found = edges[:-1], np.empty((len(rows), len(edges) - 1), dtype=np.int64)
    for place, row in zip(found, rows, strict=True):
        pieces = [row] if isinstance(row, np.ndarray) else row.pieces
        first = np.zeros(1, dtype=np.int64) if isinstance(row, np.ndarray) else row.edges[:-1]
        piece = np.searchsorted(first, low, side="right") - 1
        place[:] = _addresses(pieces)[piece] + (low - first[piece]) * row.dtype.itemsize
    return found


def _addresses(rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.array([row.ctypes.data for row in rows], dtype=np.int64)


def _shared(loop: Callable[..., None], blocks: int, numbers: int, *arguments: Any) -> None:
    """Run a loop over all blocks of columns, in as many threads as there is work and processors for."""
    threads = max(1, min(processors(), blocks, numbers // _SHARE))
    if threads == 1:
        loop(0, blocks, *arguments)
        return
    bounds = [blocks * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads - 1) as pool:  # its end waits for all: nobody writes after a failure
        others = [pool.submit(loop, *ends, *arguments) for ends in pairwise(bounds[1:])]
        loop(bounds[0], bounds[1], *arguments)
        for other in others:
            other.result()


def processors() -> int:
    """How many threads may run: the processors that this process may use, or fewer where OMP_NUM_THREADS says so."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(here, int(wanted)) if wanted.isdecimal() and int(wanted) else here


# What is compiled: never when this is imported, but when it is first called


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # there is no folder to keep machine code in
        return njit(nogil=True)(function)


@intrinsic
def _pointer(context: Any, address: Any, like: Any) -> Any:
    """The row that begins at an address, of numbers as in `like`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, like), code


def _bits(source: Any, target: Any) -> Any:
    """Make a function that takes the bits of a number for another."""

    @intrinsic
    def cast(context: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return target(source), code

    return cast


_single_of = _bits(types.uint32, types.float32)
_bits_of_single = _bits(types.float32, types.uint32)
_double_of = _bits(types.int64, types.float64)
_bits_of_double = _bits(types.float64, types.int64)


def _load(stored: Any) -> Any:
    """Widen a stored number to float64 (`Precision.load`)."""


def _round(value: Any, like: Any) -> Any:
    """Round a number as it is stored (`Precision.store`): to nearest, ties to even, within the format's range."""


@overload(_load, strict=False)
def _load_of(stored: Any) -> Any:
    if stored == types.uint16:
        return lambda stored: np.float64(_single_of(np.uint32(stored) << np.uint32(16)))
    if stored == types.int16:

        def half(stored: Any) -> Any:
            size = np.int64(stored) & 0x7FFF
            small = np.float64(np.int32(size)) * 2.0**-24
            large = _double_of((size << 42) + (1008 << 52))
            value = small if size < 1024 else large
            return -value if stored < 0 else value

        return half
    return lambda stored: np.float64(stored)


_LARGEST_HALF, _LARGEST_SINGLE = 65504.0, float(np.finfo(np.float32).max)
_LARGEST_BRAIN = 3.3895313892515355e38


@overload(_round, strict=False)
def _round_of(value: Any, like: Any) -> Any:
    stored = like.dtype
    if stored == types.uint16:

        def brain(value: Any, like: Any) -> Any:
            wide = min(max(np.float64(value), -_LARGEST_BRAIN), _LARGEST_BRAIN)
            bits = _bits_of_single(np.float32(wide))
            return np.uint16((bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16))

        return brain
    if stored == types.int16:

        def half(value: Any, like: Any) -> Any:
            size = min(abs(np.float64(value)), _LARGEST_HALF)
            # Adding and taking away 3·2^51 units of the last place rounds to that place.
            power = max(_double_of(_bits_of_double(size) & (0x7FF << 52)), 2.0**-14)
            unit = power * (1.5 * 2.0**42)
            near = (size + unit) - unit
            small = np.int64(np.int32(near * 2.0**24))
            large = (_bits_of_double(near) >> 42) - (1008 << 10)
            bits = small if near < 2.0**-14 else large
            return np.int16(bits | 0x8000 if value < 0 else bits)

        return half
    if stored == types.float32 and value == types.float64:
        return lambda value, like: np.float32(min(max(value, -_LARGEST_SINGLE), _LARGEST_SINGLE))
    return lambda value, like: value


@njit(nogil=True, fastmath={"reassoc"})
def _and(total: Any, product: Any) -> Any:
    """One more product of a sum whose order the compiler may choose."""
    return total + product


@_compiled
def _add_rows(first: Any, last: Any, like: Any, rows: Any, weights: Any, result: Any) -> None:
    for block in range(first, last):
        low = block * _COLUMNS
        sums = result[low : low + _COLUMNS]
        n = len(sums)
        for i in range(len(rows)):
            row = carray(_pointer(rows[i] + low * like.itemsize, like), (n,))
            weight = weights[i]
            for j in range(n):
                sums[j] += weight * np.float64(row[j])


@_compiled
def _square_rows(first: Any, last: Any, like: Any, edges: Any, rows: Any, scales: Any, start: Any, sums: Any) -> None:
    for block in range(first, last):
        low = edges[block]
        n = edges[block + 1] - low
        base = start[low : low + n]
        for i in range(len(rows)):
            row = carray(_pointer(rows[i, block], like), (n,))
            scale, square = scales[i], scales[i] * 0
            for j in range(n):
                x = scale * (base[j] - row[j])
                square = _and(square, x * x)
            sums[block, i] = square


@_compiled
def _mix_rows(
    first: Any,
    last: Any,
    stored_like: Any,
    edges: Any,
    fresh_like: Any,
    fresh: Any,
    start: Any,
    scales: Any,
    stale: Any,
    target: Any,
    zeros: Any,
    weights: Any,
    refresh: Any,
    factor: Any,
    total: Any,
    mix: Any,
    out: Any,
    products: Any,
) -> None:
    """Where something is None, code without it is compiled: `target` and `out` then are `stale` and `total`."""
    count, spare = len(fresh), np.zeros_like(zeros)
    for block in range(first, last):
        low = edges[block]
        n = edges[block + 1] - low
        mixed = mix[low : low + n]
        if start is not None:
            base = start[low : low + n]
        if out is None:
            moved = total[low : low + n]
            for j in range(n):
                mixed[j] = factor * moved[j]
        else:
            old = total[low : low + n]
            moved = out[low : low + n]
            for j in range(n):
                mixed[j] = factor * old[j]
                moved[j] = old[j]
        for i in range(0, count, 2):  # two rows at a time: the sums are read and written half as often
            u = carray(_pointer(fresh[i, block], fresh_like), (n,))
            h = zeros[:n]
            if stale[i] != 0:
                h = carray(_pointer(stale[i] + low * stored_like.itemsize, stored_like), (n,))
            if target is not None:
                slot = carray(_pointer(target[i] + low * stored_like.itemsize, stored_like), (n,))
            u_weight, u_mass, h_weight, h_mass = weights[0, i], weights[1, i], weights[2, i], weights[3, i]
            scale, inner, square = scales[i], 0.0, 0.0
            # A row without a second one is beside itself, and counts nothing.
            v, g, slot_v = u, zeros[:n], spare[:n]
            v_weight, v_mass, g_weight, g_mass = 0.0, 0.0, 0.0, 0.0
            scale_v, inner_v, square_v = scale, 0.0, 0.0
            k = i + 1
            if k < count:
                v = carray(_pointer(fresh[k, block], fresh_like), (n,))
                if stale[k] != 0:
                    g = carray(_pointer(stale[k] + low * stored_like.itemsize, stored_like), (n,))
                if target is not None:
                    slot_v = carray(_pointer(target[k] + low * stored_like.itemsize, stored_like), (n,))
                v_weight, v_mass, g_weight, g_mass = weights[0, k], weights[1, k], weights[2, k], weights[3, k]
                scale_v = scales[k]
            elif target is None:
                g = slot_v
            if refresh is not None:
                rate = refresh[i]
                rate_v = refresh[min(k, count - 1)]
            for j in range(n):
                if start is None:
                    sent, sent_v = u[j], v[j]
                else:
                    sent, sent_v = scale * (base[j] - u[j]), scale_v * (base[j] - v[j])
                x, y = np.float64(sent), _load(h[j])
                z, q = np.float64(sent_v), _load(g[j])
                if refresh is None:
                    kept, kept_v = _round(sent, stored_like), _round(sent_v, stored_like)
                else:
                    kept = _round(x if rate == 1.0 else y + rate * (x - y), stored_like)
                    kept_v = _round(z if rate_v == 1.0 else q + rate_v * (z - q), stored_like)
                if target is None:
                    h[j], g[j] = kept, kept_v
                else:
                    slot[j], slot_v[j] = kept, kept_v
                mixed[j] = (((mixed[j] + u_weight * x) - h_weight * y) + v_weight * z) - g_weight * q
                moved[j] = (((moved[j] + u_mass * _load(kept)) - h_mass * y) + v_mass * _load(kept_v)) - g_mass * q
                if products is not None:
                    inner, square = _and(inner, x * y), _and(square, y * y)
                    inner_v, square_v = _and(inner_v, z * q), _and(square_v, q * q)
            if products is not None:
                products[0, block, i], products[1, block, i] = inner, square
                if k < count:
                    products[0, block, k], products[1, block, k] = inner_v, square_v
