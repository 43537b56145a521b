"""Small charts in the terminal: a curve in braille dots, a line of blocks; plain ASCII where that is all there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..checks import Float

_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bits of the eight dots of a braille character (U+2800 + bits), four rows of two."""


def columns(rounds: Float, values: Float, count: int) -> Float:
    """The mean of the values in each of `count` equal spans of rounds, NaN where there is none."""
    good = np.isfinite(values)
    at, known = np.asarray(rounds, dtype=np.float64)[good], values[good]
    if not at.size:
        return np.full(count, np.nan)
    first, last = at[0], max(at[-1], at[0] + 1)
    column = np.minimum(((at - first) / (last - first) * count).astype(int), count - 1)
    number = np.bincount(column, minlength=count)
    total = np.bincount(column, weights=known, minlength=count)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def chart(
    rounds: Float,
    values: Float,
    *,
    width: int = 60,
    height: int = 8,
    ascii_only: bool = False,
    form: Callable[[float], str] = "{:.4g}".format,
) -> str:
    """Draw a curve with its range on the left and its rounds below.

    Parameters
    ----------
    rounds, values
        The points, shape (n,); values that are not finite are left out, at least one must be there.
    width, height
        In characters, without the labels on the left.
    ascii_only
        Whether to use nothing but ASCII.
    form
        How the range is written.
    """
    across, down = (1, 1) if ascii_only else (2, 4)
    level = _filled(columns(rounds, values, width * across))
    low, high = float(level.min()), float(level.max())
    steps = height * down - 1
    row = (
        steps - np.rint((level - low) / (high - low) * steps).astype(int) if high > low else np.full(len(level), steps)
    )
    here = np.zeros((height * down, width * across), dtype=bool)
    before = row[0]
    for column, now in enumerate(row):  # up or down to the last point, so that the curve has no holes
        here[min(now, before + np.sign(now - before)) : max(now, before + np.sign(now - before)) + 1, column] = True
        before = now
    lines = _ascii(here) if ascii_only else _braille(here)
    labels = [form(high), *[""] * (height - 2), form(low)] if height > 1 else [form(high)]
    edge, corner, line = ("|", "+", "-") if ascii_only else ("│", "└", "─")
    wide = max(map(len, labels))
    body = [f"{label:>{wide}} {edge}{text}" for label, text in zip(labels, lines, strict=True)]
    known = np.asarray(rounds)[np.isfinite(values)]
    first, last = f"{known[0] + 1:,.0f}", f"{known[-1] + 1:,.0f}"
    ends = first + last.rjust(max(width - len(first), len(last) + 1))
    return "\n".join([*body, f"{'':>{wide}} {corner}{line * width}", f"{'':>{wide}}  {ends}"])


def spark(rounds: Float, values: Float, *, width: int = 40, ascii_only: bool = False) -> str:
    """Draw a curve in one line of blocks, the lowest for the least value."""
    level = _filled(columns(rounds, values, width))
    marks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    low, high = float(level.min()), float(level.max())
    share = (level - low) / (high - low) if high > low else np.zeros(len(level))
    return "".join(marks[int(k)] for k in np.rint(share * (len(marks) - 1)))


def _filled(level: Float) -> Float:
    """Straight lines over spans without a value."""
    good = np.flatnonzero(np.isfinite(level))
    return np.interp(np.arange(len(level)), good, level[good])


def _ascii(here: NDArray[np.bool_]) -> list[str]:
    return ["".join("*" if mark else " " for mark in row) for row in here]


def _braille(here: NDArray[np.bool_]) -> list[str]:
    height, width = here.shape[0] // 4, here.shape[1] // 2
    cells = here.reshape(height, 4, width, 2).transpose(0, 2, 1, 3)
    bits = (cells * _DOTS).sum(axis=(2, 3))
    return ["".join(chr(0x2800 + int(code)) if code else " " for code in row) for row in bits]
