"""What a run has recorded and not yet committed: checked at once, packed when the store commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import MOST_CLIENTS, MOST_ROUNDS, Float, fail, positive_int
from .blocks import Block, SeriesKind

Row = tuple[int, str, int, bytes]
"""Kind, name, first round and blob."""

Number = float | int | np.number[Any]

_RESERVED = ("run", "name", "sweep", "status", "diverged_in", "round")
"""Columns of an export, which a metric may not be named after."""


class Recorder:
    """The growing end of a run's series.

    Attributes
    ----------
    last
        The last recorded round, −1 before the first.
    summary
        The last value of each metric.
    """

    def __init__(self, last: int, summary: Mapping[str, float]) -> None:
        self.last = last
        self.summary = dict(summary)
        self._open: dict[tuple[SeriesKind, str], Block] = {}  # the block of each series that takes the next round
        self._unsaved: dict[tuple[int, str, int], Block] = {}
        self._torn = False  # in the middle of `add`

    def add(
        self,
        round: int,
        metrics: Mapping[str, Number],
        participants: ArrayLike | None,
        clients: Mapping[str, ArrayLike] | None,
    ) -> None:
        """Take the numbers of a round, all or none."""
        round = positive_int("round", round, 0)
        if round >= MOST_ROUNDS:
            raise fail("round", round, f"must be less than {MOST_ROUNDS:,}")
        if round <= self.last:
            raise fail("round", round, f"round {self.last} is recorded already; truncate the run to go back")
        values: list[tuple[SeriesKind, str, float | NDArray[Any] | None]] = [(SeriesKind.ROUNDS, "", None)]
        numbers = {name: _metric(name, value) for name, value in metrics.items()}
        values += ((SeriesKind.METRIC, name, number) for name, number in numbers.items())
        if participants is not None:
            values.append((SeriesKind.PARTICIPANTS, "", _gaps(participants)))
        values += ((SeriesKind.CLIENTS, name, _per_client(name, array)) for name, array in (clients or {}).items())
        self._mend()
        self._torn = True
        for kind, name, value in values:
            block = self._open.get((kind, name))
            if block is None or block.full:
                block = self._open[kind, name] = Block(kind, name)
            block.add(round, value)
            self._unsaved[block.key] = block
        self.last, self.summary, self._torn = round, self.summary | numbers, False

    @property
    def unsaved(self) -> bool:
        """Whether something is not committed."""
        return bool(self._unsaved)

    def rows(self) -> list[Row]:
        """The blocks to write; they stay unsaved until `saved` says that the transaction is through."""
        self._mend()
        return [(*key, block.encode()) for key, block in self._unsaved.items()]

    def saved(self) -> None:
        """Note that what `rows` gave is committed."""
        self._unsaved.clear()

    def _mend(self) -> None:
        """Drop what an interrupt in the middle of `add` left of its round."""
        if self._torn:
            for block in self._open.values():
                block.cut(self.last)
            self._open = {key: block for key, block in self._open.items() if block.rounds}
            self._unsaved = {key: block for key, block in self._unsaved.items() if block.rounds}
            self._torn = False


def _metric(name: str, value: Any) -> float:
    if not _printable(name) or name in _RESERVED or name.startswith("config."):
        raise fail("metrics", name, f"a name must be printable text, not {', '.join(_RESERVED)} or config.…")
    if not isinstance(value, (int, float, np.number)) or isinstance(value, np.complexfloating):
        raise fail(f"metrics[{name!r}]", value, "must be a number")
    try:
        return float(value)
    except OverflowError:
        raise fail(f"metrics[{name!r}]", value, "must fit into a float") from None


def _gaps(participants: ArrayLike) -> NDArray[np.int64]:
    """Increasing ids as differences: small numbers that repeat, which compress well."""
    ids = np.asarray(participants)
    if ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= MOST_CLIENTS:
        raise fail("participants", participants, "must be a one-dimensional array of client indices")
    ordered = np.sort(ids.astype(np.int64))
    gaps = ordered.copy()
    gaps[1:] -= ordered[:-1]
    if (gaps[1:] == 0).any():
        raise fail("participants", participants, "a client may take part only once in a round")
    return gaps


def _per_client(name: str, array: ArrayLike) -> Float:
    try:
        # A copy: the caller may reuse its array before the next commit.
        values = np.array(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(f"clients[{name!r}]", array, "must be an array of numbers") from None
    if not _printable(name):
        raise fail("clients", name, "a name must be printable text")
    if values.ndim != 1 or len(values) > MOST_CLIENTS:
        allowed = f"must be one-dimensional, one per client, of at most {MOST_CLIENTS:,}"
        raise fail(f"clients[{name!r}]", f"array of shape {values.shape}", allowed)
    return values


def _printable(name: object) -> bool:
    return isinstance(name, str) and name != "" and name.isprintable()
