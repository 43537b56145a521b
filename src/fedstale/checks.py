"""What is refused, and how it is said: every error names the argument, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]
T = TypeVar("T")
_SMALLEST = float(np.nextafter(1.0 / np.finfo(np.float64).max, 1.0))
"""The smallest probability whose inverse is finite."""


MOST_ROUNDS = 2**31
"""More than any run has: a round's index fits into four bytes."""
MOST_CLIENTS = 10_000_000
"""More than any federation here has: a number per client is 80 MB, and a slip of the pen is noticed before that."""


class InvalidInput(ValueError):
    """A wrong argument. Nothing was changed."""


class NonFinite(InvalidInput):
    """An update holds NaN or Inf, or numbers too large to be added."""


class UnknownName(InvalidInput):
    """A name that no registry knows."""


def printable(text: str, length: int | None = None, keep: str = "") -> str:
    r"""Return a text in printable characters: others, such as codes for a terminal, are written as "\x1b".

    Parameters
    ----------
    text
        What somebody else wrote.
    length
        Where to cut it, when given.
    keep
        Characters to leave as they are, such as the end of a line.
    """
    if length is not None:
        text = text[: length + 1]
    if not text.isprintable():
        shown = (c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
        text = "".join(shown)
    return text if length is None or len(text) <= length else text[: length - 1] + "…"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs, 3 batches."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def fail(argument: str, value: object, allowed: str, kind: type[InvalidInput] = InvalidInput) -> InvalidInput:
    """Build the error for a wrong argument (raise what it returns)."""
    try:
        text = " ".join(repr(value).split())  # arrays have several lines
    except ValueError:  # Python does not write an integer of more than some thousand digits
        text = "a number of thousands of digits"
    if len(text) > 120:
        text = text[:117] + "..."
    return kind(f"{argument} = {text}: {allowed}")


def unknown(kind: str, name: object, known: Iterable[str]) -> UnknownName:
    """Build the error for an unknown name, with the near matches first (raise what it returns)."""
    names = sorted(known)
    return UnknownName(f"unknown {kind} {name!r}: {near_names(name, names) or 'known: ' + ', '.join(names)}")


def near_names(name: object, known: Iterable[str]) -> str:
    """Ask whether one of the names was meant that are near this one; "" where none is."""
    near = difflib.get_close_matches(str(name), sorted(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else ""


def choose(kind: str, name: str, table: dict[str, T]) -> T:
    """Look a name up in a registry."""
    try:
        return table[name]
    except (KeyError, TypeError):
        raise unknown(kind, name, table) from None


def number_or_text(text: str) -> float | int | str:
    """Read a number where there is one: β and options may be either."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or what pandas has for these."""
    unnamed = value is None or type(value).__name__ in ("NAType", "NaTType")
    return unnamed or (isinstance(value, float) and value != value)


def positive_int(argument: str, value: Any, minimum: int = 1) -> int:
    """An integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise fail(argument, value, f"must be an integer of at least {minimum}")
    if value >= 2**63:
        raise fail(argument, value, "must be less than 2**63")
    return int(value)


def client_count(argument: str, value: Any, minimum: int = 1) -> int:
    """A number of clients: an integer of at least `minimum`, and not more than memory is made for."""
    if positive_int(argument, value, minimum) > MOST_CLIENTS:
        raise fail(argument, value, f"must be at most {MOST_CLIENTS:,} clients")
    return int(value)


def number(argument: str, value: Any, low: float = -np.inf, high: float = np.inf, *, open_low: bool = False) -> float:
    """A finite number in [low, high], or (low, high] with `open_low`."""
    bracket = "(" if open_low else "["
    allowed = f"must be a finite number in {bracket}{low:g}, {high:g}]"
    if isinstance(value, (bool, str)):
        raise fail(argument, value, allowed)
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise fail(argument, value, allowed) from None
    if not np.isfinite(result) or result < low or result > high or (open_low and result == low):
        raise fail(argument, value, allowed)
    return result


def fraction(argument: str, value: Any) -> float:
    """A number in [0, 1]."""
    return number(argument, value, 0.0, 1.0)


def fraction_in(argument: str, text: str, names: Iterable[str]) -> float:
    """A number in [0, 1] written as text; any other text is an unknown name among these."""
    try:
        value = float(text)
    except ValueError:
        raise unknown(argument, text, [*names, "a number in [0, 1]"]) from None
    return fraction(argument, value)


def probability(argument: str, value: Any) -> float:
    """A number in (0, 1]: a client that never comes has no unbiased weight 1/p."""
    result = number(argument, value, 0.0, 1.0, open_low=True)
    if result < _SMALLEST:
        raise fail(argument, value, "1/p must be finite")
    return result


def probabilities(argument: str, value: ArrayLike, length: int | None = None) -> Float:
    """An array of numbers in (0, 1]; a scalar is spread over `length`."""
    array = vector(argument, value, length)
    inside = (array >= _SMALLEST) & (array <= 1.0)
    if not inside.all():
        bad = int(np.argmin(inside))
        raise fail(f"{argument}[{bad}]", float(array[bad]), "probabilities must lie in (0, 1], and 1/p be finite")
    return array


def vector(argument: str, value: ArrayLike, length: int | None = None) -> Float:
    """A finite one-dimensional float64 array; a scalar is spread over `length`."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(argument, value, "must be an array of numbers") from None
    if array.ndim == 0 and length is not None:
        array = np.full(length, float(array))
    if array.ndim != 1 or (length is not None and array.shape != (length,)):
        wanted = "one-dimensional" if length is None else f"of shape ({length},)"
        raise fail(argument, f"array of shape {array.shape}", f"must be {wanted}")
    finite = np.isfinite(array)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise fail(f"{argument}[{bad}]", float(array[bad]), "must be finite")
    return array


def client_ids(argument: str, value: ArrayLike, num_clients: int) -> NDArray[np.int64]:
    """Distinct client indices in 0 … num_clients − 1."""
    raw = np.asarray(value)
    if raw.size == 0:
        return np.empty(0, dtype=np.int64)
    if raw.ndim != 1 or raw.dtype.kind not in "iu":
        raise fail(argument, value, "must be a one-dimensional array of client indices (integers)")
    ids = raw.astype(np.int64)
    rising = bool((ids[1:] > ids[:-1]).all())  # as participants come: in their order
    first, last = (ids[0], ids[-1]) if rising else (ids.min(), ids.max())
    if first < 0 or last >= num_clients:
        bad = np.flatnonzero((ids < 0) | (ids >= num_clients))
        allowed = f"client indices must lie in 0 … {num_clients - 1}"
        raise fail(f"{argument}[{bad[0]}]", int(ids[bad[0]]), allowed)
    if rising:
        return ids
    unique, counts = np.unique(ids, return_counts=True)
    if unique.size != ids.size:
        raise fail(argument, int(unique[counts > 1][0]), "a client may take part only once in a round")
    return ids
