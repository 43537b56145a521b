"""Tables for other programs: comma-separated values, in which text stays text for a spreadsheet, and data frames.

A cell that begins with =, +, −, @, a tab or a carriage return is a formula to a spreadsheet, and names come from people
and from files. It gets an apostrophe in front, which spreadsheets take for "this is text"; numbers stay numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
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


def number_cell(value: float | None) -> str:
    """Return all digits of a number; nothing where it is missing."""
    return "" if value is None or math.isnan(value) else repr(float(value))


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


def _read_table(path: Path) -> list[dict[str, str]]:
    """Read a file with one line of headings, each line by heading; none where there is no file."""
    return [row for _, row in numbered_rows(path)[1]] if path.exists() else []


def numbered_rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Read a file with one line of headings: the headings, and each line by heading with its number in the file.

    Raises
    ------
    InvalidInput
        It is no comma-separated text.
    """
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        try:
            headings = list(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            raise InvalidInput(f"{path}, line {reader.line_num + 1}: {error}") from None
    return headings, rows


def update_table(path: Path, rows: Sequence[Mapping[str, str]], key: Sequence[str]) -> list[dict[str, str]]:
    """Put lines into a file, in place of those with the same key, so that a table can be made in several sittings.

    Parameters
    ----------
    path
        The file; it is made where it is not there.
    rows
        The new lines, at least one, all with the same headings.
    key
        The headings by which a line is known.

    Returns
    -------
    All lines of the file.
    """
    table = {tuple(row[name] for name in key): dict(row) for row in (*_read_table(path), *rows)}
    headings = list(rows[0])
    write_table(path, headings, [[row.get(name, "") for name in headings] for row in table.values()])
    return list(table.values())


def data_frame(columns: Mapping[str, Any], index: str | None = None) -> Any:
    """Make a pandas DataFrame of columns; `index` names the one that becomes its index. Needs pandas."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise InvalidInput(missing("pandas")) from None
    frame = DataFrame(dict(columns))
    return frame if index is None else frame.set_index(index)
