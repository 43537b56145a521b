"""The pass of `kernel` as compiled loops (numba, the extra `fast`): each row is read once, at the speed of memory.

The loops go through all rows of a few thousand columns at a time, whose sums stay in the processor's cache. Columns are
shared out to threads in blocks that depend on nothing but d, and what is summed over blocks is summed in their order:
the same numbers give the same bits, however many threads there are. A column's sums are plain multiplications and
additions, row after row, so that `weighted_sum` and `exchange` agree bit for bit; only ⟨Δ_i, h_i⟩ and ‖h_i‖² let the
compiler choose the order within a block. Numba keeps the machine code beside this file, or in the user's cache.
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


def takes(rows: Sequence[NDArray[Any]]) -> bool:
    """Whether the loops read such rows: all of one native float type, without gaps."""
    kind = rows[0].dtype if rows else None
    return kind in _FRESH and all(row.dtype == kind and row.flags.c_contiguous and row.flags.aligned for row in rows)


def weighted_sum(rows: Sequence[NDArray[Any]], weights: Float, length: int) -> Float:
    """Σ weights_i rows_i, as `kernel.weighted_sum`."""
    result = np.zeros(length)
    _shared(_add_rows, len(rows), length, _FRESH[rows[0].dtype], _addresses(rows), weights, result)
    return result


def exchange(work: Exchange, sums: Sums) -> None:
    """Do what `kernel.exchange` does, into `sums`."""
    fresh, precision, mix = work.fresh, work.precision, work.mix
    count, length = len(fresh), len(work.total)
    zeros = np.zeros(_COLUMNS, dtype=_LIKE[precision.name].dtype)
    products = np.zeros((2, -(-length // _COLUMNS), count))
    _shared(
        _mix_rows,
        count,
        length,
        _FRESH[fresh[0].dtype],
        _LIKE[precision.name],
        _addresses(fresh),
        np.array([0 if row is None else row.ctypes.data for row in work.stale], dtype=np.int64),
        _addresses(work.target),
        zeros,
        np.stack([mix.fresh, mix.masses, mix.stale, work.old_masses]),
        np.full(count, np.nan) if mix.refresh is None else mix.refresh,
        mix.total,
        work.total,
        sums.mix,
        sums.total,
        products,
    )
    if mix.statistics:
        sums.inner[:], sums.stale_sq[:] = products.sum(axis=1)


def _addresses(rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.array([row.ctypes.data for row in rows], dtype=np.int64)


def _shared(loop: Callable[..., None], count: int, length: int, *arguments: Any) -> None:
    """Run a loop over all blocks of columns, in as many threads as there is work and processors for."""
    blocks = -(-length // _COLUMNS)
    threads = max(1, min(processors(), blocks, count * length // _SHARE))
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
def _mix_rows(
    first: Any,
    last: Any,
    fresh_like: Any,
    stored_like: Any,
    fresh: Any,
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
    for block in range(first, last):
        low = block * _COLUMNS
        old, mixed, moved = total[low : low + _COLUMNS], mix[low : low + _COLUMNS], out[low : low + _COLUMNS]
        n = len(old)
        for j in range(n):
            mixed[j] = factor * old[j]
            moved[j] = old[j]
        for i in range(len(fresh)):
            u = carray(_pointer(fresh[i] + low * fresh_like.itemsize, fresh_like), (n,))
            h = zeros[:n]
            if stale[i] != 0:
                h = carray(_pointer(stale[i] + low * stored_like.itemsize, stored_like), (n,))
            slot = carray(_pointer(target[i] + low * stored_like.itemsize, stored_like), (n,))
            u_weight, u_mass, h_weight, h_mass = weights[0, i], weights[1, i], weights[2, i], weights[3, i]
            rate = refresh[i]
            inner, square = 0.0, 0.0
            if rate == rate and rate != 1.0 and fresh[i] == target[i]:
                for j in range(n):  # by one name: the compiler takes two names of one row for a dependence
                    x, y = _load(slot[j]), _load(h[j])
                    kept = _round(y + rate * (x - y), stored_like)
                    slot[j] = kept
                    mixed[j] = (mixed[j] + u_weight * x) - h_weight * y
                    moved[j] = (moved[j] + u_mass * _load(kept)) - h_mass * y
                    inner = _and(inner, x * y)
                    square = _and(square, y * y)
            elif rate == rate and rate != 1.0:
                for j in range(n):
                    x, y = np.float64(u[j]), _load(h[j])
                    kept = _round(y + rate * (x - y), stored_like)
                    slot[j] = kept
                    mixed[j] = (mixed[j] + u_weight * x) - h_weight * y
                    moved[j] = (moved[j] + u_mass * _load(kept)) - h_mass * y
                    inner = _and(inner, x * y)
                    square = _and(square, y * y)
            elif fresh[i] == target[i]:
                for j in range(n):
                    x, y = np.float64(u[j]), _load(h[j])
                    mixed[j] = (mixed[j] + u_weight * x) - h_weight * y
                    moved[j] = (moved[j] + u_mass * x) - h_mass * y
                    inner = _and(inner, x * y)
                    square = _and(square, y * y)
            else:
                for j in range(n):
                    x, y = np.float64(u[j]), _load(h[j])
                    kept = _round(u[j], stored_like)
                    slot[j] = kept
                    mixed[j] = (mixed[j] + u_weight * x) - h_weight * y
                    moved[j] = (moved[j] + u_mass * _load(kept)) - h_mass * y
                    inner = _and(inner, x * y)
                    square = _and(square, y * y)
            products[0, block, i] = inner
            products[1, block, i] = square
