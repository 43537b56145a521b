"""Runs as one table for other programs: CSV or Parquet, one line per run and round.

Columns: run, name, sweep, status, diverged_in (counted from 1), the config keys in which the runs differ
("config.beta"), round (from 0), the metrics. A value that was not recorded is empty; one that was NaN says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..durable import replacing
from ..extras import missing
from ..spreadsheet import CsvWriter
from .config import config_leaves
from .errors import StoreError
from .info import RunInfo

if TYPE_CHECKING:
    from .store import Store

_GROUP = 1 << 16  # lines that Parquet writes at once


def write_csv(store: Store, target: str | Path | IO[str], runs: Iterable[str | RunInfo] | None) -> None:
    """Write the runs (all of them when None) to a file, which appears only when it is complete, or to a stream."""
    table = _Table(store, runs)
    if not isinstance(target, (str, Path)):
        _lines(table, target)
        return
    with replacing(Path(target)) as path, open(path, "w", newline="", encoding="utf-8") as file:
        _lines(table, file)


def write_parquet(store: Store, target: str | Path, runs: Iterable[str | RunInfo] | None) -> None:
    """Write the same table as a Parquet file; config keys that are always numbers become numbers."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise StoreError(missing("pyarrow")) from None
    table = _Table(store, runs)
    numeric = [all(not isinstance(row[k], str) for row in table.config_rows) for k in range(len(table.keys))]
    kinds = [pa.string()] * 4 + [pa.int64()] + [pa.float64() if number else pa.string() for number in numeric]
    kinds += [pa.int64()] + [pa.float64()] * len(table.metrics)
    schema = pa.schema(list(zip(table.header, kinds, strict=True)))
    with replacing(Path(target)) as path, ParquetWriter(path, schema) as writer:
        batches: list[Any] = []
        for constants, rounds, columns in table.parts():
            fixed = [
                value if value is None or kind == pa.int64() else float(value) if kind == pa.float64() else _text(value)
                for value, kind in zip(constants, kinds, strict=False)
            ]
            arrays = [pa.repeat(pa.scalar(value, kind), len(rounds)) for value, kind in zip(fixed, kinds, strict=False)]
            arrays.append(pa.array(rounds))
            arrays += (pa.array(values, mask=missing) for values, missing in columns)
            batches.append(pa.record_batch(arrays, schema=schema))
            if sum(batch.num_rows for batch in batches) >= _GROUP:
                writer.write_table(pa.Table.from_batches(batches))
                batches.clear()
        if batches:
            writer.write_table(pa.Table.from_batches(batches))


class _Table:
    """The chosen runs, and which columns they need together."""

    def __init__(self, store: Store, runs: Iterable[str | RunInfo] | None) -> None:
        self._store = store
        settings_row = store.runs() if runs is None else runs
        self._infos = [store.run(run).info() if isinstance(run, str) else run for run in settings_row]
        leaves = [dict(config_leaves(info.config)) for info in self._infos]
        keys = sorted({key for leaf in leaves for key in leaf})
        self.keys = [key for key in keys if len({leaf.get(key) for leaf in leaves}) > 1]
        self.config_rows = [[_value(leaf.get(key)) for key in self.keys] for leaf in leaves]
        self.metrics = sorted({name for info in self._infos for name in info.summary})
        self.header = [
            "run",
            "name",
            "sweep",
            "status",
            "diverged_in",
            *(f"config.{key}" for key in self.keys),
            "round",
        ]
        self.header += self.metrics

    def parts(self) -> Iterator[tuple[list[Any], NDArray[np.int64], list[tuple[NDArray[Any], NDArray[np.bool_]]]]]:
        """Yield for each run its constant columns, its rounds, and each metric with the mask of what is missing."""
        for info, settings_row in zip(self._infos, self.config_rows, strict=True):
            rounds, found = self._store.run(info.id).columns()
            columns = []
            for name in self.metrics:
                values, missing = np.full(len(rounds), np.nan), np.ones(len(rounds), dtype=bool)
                if name in found:
                    places = np.searchsorted(rounds, found[name].rounds)
                    values[places], missing[places] = found[name].values, False
                columns.append((values, missing))
            yield [info.id, info.name, info.sweep, info.status, info.diverged_in, *settings_row], rounds, columns


def _lines(table: _Table, file: IO[str]) -> None:
    writer = CsvWriter(file, "\n")
    writer.writerow(table.header)
    for constants, rounds, columns in table.parts():
        fixed = [repeat("" if value is None else _text(value)) for value in constants]
        cells = ([None if gone else x for x, gone in zip(v.tolist(), m.tolist(), strict=True)] for v, m in columns)
        writer.writerows(zip(*fixed, rounds.tolist(), *cells, strict=False))


def _value(value: float | str | None) -> float | str | None:
    """A setting as a cell: text without its quotes, None for null, JSON text for everything else that is no number."""
    if not isinstance(value, str):
        return value
    inner = json.loads(value)
    return inner if inner is None or isinstance(inner, str) else value


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else repr(value)
