"""The rounds of a run, looked at afterwards: kept in RAM as columns, or read back from the store."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, InvalidInput
from ..federation import Ints

Metrics = dict[str, float]


@dataclass(frozen=True, eq=False)
class Record:
    """One round: its index, its metrics, who came, and the accuracy per client where it was measured."""

    round: int
    metrics: Metrics
    participants: Ints
    per_client: Float | None = None


class Rounds(Protocol):
    """What a run's rounds were."""

    @property
    def metrics(self) -> dict[str, Float]:
        """One array per metric, one entry per round, NaN where it was not measured."""

    @property
    def participants(self) -> Sequence[Ints]:
        """Who came in each round."""

    @property
    def per_client(self) -> tuple[Ints, Float] | None:
        """Rounds, and the accuracy of each client at them; None where it was not asked for."""


@dataclass
class _Column:
    """A metric: the rounds that have it and its values, 12 bytes a round."""

    rounds: array[int] = field(default_factory=lambda: array("i"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class _LazySequence(Sequence[Any]):
    """A sequence whose items are made when they are asked for."""

    length: int
    item: Any

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self.item(k) for k in range(self.length)[index]]
        return self.item(range(self.length)[index])


class RoundsInMemory:
    """The rounds of a run in RAM: 12 bytes for each metric and round, 4 for each participant, no object per round."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._who = array("i")
        self._ends = array("q", [0])
        self._measured: list[tuple[int, Float]] = []
        self._first = 0

    def add(self, record: Record) -> None:
        """Take a round; rounds come one after the other."""
        position = len(self._ends) - 1
        if position == 0:
            self._first = record.round
        for name, value in record.metrics.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column()
            column.rounds.append(position)
            column.values.append(value)
        self._who.frombytes(np.ascontiguousarray(record.participants, dtype=np.intc).tobytes())
        if record.per_client is not None:
            self._measured.append((record.round, record.per_client))
        self._ends.append(len(self._who))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Record:
        index = range(len(self))[index]
        metrics = {}
        for name, column in self._columns.items():
            found = np.searchsorted(_view(column.rounds), index)
            if found < len(column.rounds) and column.rounds[found] == index:
                metrics[name] = column.values[found]
        round = self._first + index
        return Record(round, metrics, self._participants_of(index), dict(self._measured).get(round))

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))

    def column(self, name: str) -> Float:
        """One metric over all rounds, NaN where it was not measured."""
        values = np.full(len(self), np.nan)
        if name in self._columns:
            column = self._columns[name]
            values[_view(column.rounds)] = _view(column.values)
        return values

    @property
    def metrics(self) -> dict[str, Float]:
        """See `Rounds`."""
        return {name: self.column(name) for name in self._columns}

    @property
    def participants(self) -> Sequence[Ints]:
        """See `Rounds`."""
        return _LazySequence(len(self), self._participants_of)

    @property
    def per_client(self) -> tuple[Ints, Float] | None:
        """See `Rounds`."""
        if not self._measured:
            return None
        return np.array([t for t, _ in self._measured]), np.array([values for _, values in self._measured])

    def _participants_of(self, index: int) -> Ints:
        return np.array(self._who[self._ends[index] : self._ends[index + 1]], dtype=np.int64)


@dataclass
class RoundsInStore:
    """The rounds of a run in a store, read when they are asked for.

    Parameters
    ----------
    folder
        The store.
    id
        The run.
    """

    folder: Path
    id: str

    @cached_property
    def metrics(self) -> dict[str, Float]:
        """See `Rounds`."""
        columns = self._read("metrics")
        rounds = columns.pop("round")
        length = int(rounds[-1]) + 1 if len(rounds) else 0
        found: dict[str, Float] = {}
        for name, values in columns.items():
            found[name] = np.full(length, np.nan)
            found[name][rounds] = values
        return found

    @cached_property
    def participants(self) -> Sequence[Ints]:
        """See `Rounds`."""
        known: dict[int, Ints] = self._read("participants")

        def participants_of(index: int) -> Ints:
            if index not in known:
                raise InvalidInput(f"run {self.id}: the participants of round {index} are no longer in the store")
            return known[index]

        return _LazySequence(max(known, default=-1) + 1, participants_of)

    @cached_property
    def per_client(self) -> tuple[Ints, Float] | None:
        """See `Rounds`."""
        found: tuple[Ints, Float] | None = self._read("per_client")
        return found

    def _read(self, what: str) -> Any:
        from ..store import Store

        with Store.open(self.folder, read_only=True) as store:
            run = store.run(self.id)
            if what == "per_client":
                return run.client_metrics("accuracy") if "accuracy" in run.client_metric_names() else None
            return getattr(run, what)()


def _view(values: array[Any]) -> NDArray[Any]:
    """A column as an array, without a copy; not to be held on to, because a column that is looked at cannot grow."""
    return np.frombuffer(values, dtype=values.typecode)
