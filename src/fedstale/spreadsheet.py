"""Tables for other programs: comma-separated values, in which text stays text for a spreadsheet, and data frames.

A cell that begins with =, +, −, @, a tab or a carriage return is a formula to a spreadsheet, and names come from people
and from files. It gets an apostrophe in front, which spreadsheets take for "this is text"; numbers stay numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from .checks import InvalidInput
from .durable import replacing
from .extras import missing

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """Return what is written for a value."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


class CsvWriter:
    """A `csv.writer` whose cells are no formulas; `end` is what ends a line."""

    def __init__(self, file: IO[str], end: str = "\r\n") -> None:
        self._inner = csv.writer(file, lineterminator=end)

    def writerow(self, row: Iterable[Any]) -> None:
        """Write a line."""
        self._inner.writerow(map(cell, row))

    def writerows(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write lines."""
        self._inner.writerows(map(cell, row) for row in rows)


def write_table(path: Path, headings: Iterable[Any], rows: Iterable[Iterable[Any]]) -> None:
    """Write a file with one line of headings: all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished, open(unfinished, "w", newline="", encoding="utf-8") as file:
        writer = CsvWriter(file)
        writer.writerow(headings)
        writer.writerows(rows)


def data_frame(columns: Mapping[str, Any], index: str | None = None) -> Any:
    """Make a pandas DataFrame of columns; `index` names the one that becomes its index. Needs pandas."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise InvalidInput(missing("pandas")) from None
    frame = DataFrame(dict(columns))
    return frame if index is None else frame.set_index(index)
