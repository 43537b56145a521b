"""The cells of a table of results: what may stand in each column of a file that somebody else wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from ..analysis.table import Edge
from ..checks import InvalidInput, fail

BY_SEED = ("objective", "accuracy", "accuracy_worst_decile")
"""What is written for each seed."""
ENDS = ("plain", "everybody")
"""Written for each seed as well: the objectives between which the gap lies."""
SECONDS = "seconds_to_plain"
"""Where there is a clock: virtual seconds until the objective is as small as U-FedAvg's at the end, seed by seed."""

_TEXTS = ("setting", "rule", "label", "version", "config", "machine")
_AT_EDGE = ("", *get_args(Edge))
_HAS_GAP = ("", "True", "False")
_NUMBERS = (
    *(f"{name}{error}" for name in (*BY_SEED, "gap_closed", SECONDS) for error in ("", "_error")),
    *("decades_within_5_percent", "update_noise", "update_bias", "bytes_per_round", "server_bytes"),
    *("seconds_per_round", "diverged"),
)
_SEEDS = tuple(f"{name}_by_seed" for name in (*BY_SEED, *ENDS, SECONDS))
_EVERY = (*_TEXTS, "lr", "at_edge", "seeds", "has_gap", *_NUMBERS, *_SEEDS, "cannot")


def missing_column(headings: Sequence[str]) -> str:
    """Name the first column that a table lacks; "" where it has all. Some tables are older than those of the clock."""
    return next((name for name in _EVERY if name not in headings and not name.startswith(SECONDS)), "")


def checked(where: str, row: Mapping[str, str]) -> Mapping[str, str]:
    """Return a line whose cells hold what they should.

    Parameters
    ----------
    where
        File and line, for the error.
    row
        By heading.
    """
    if None in row or None in row.values():
        raise InvalidInput(f"{where}: it has {'more' if None in row else 'fewer'} cells than there are headings")
    for name, text in row.items():
        if not text.isprintable():
            raise fail(f"{where}, {name}", text, "must be printable characters")
    for name in _TEXTS:
        if not row[name]:
            raise fail(f"{where}, {name}", "", "must not be empty")
    if row["cannot"]:
        return row
    seeds = row["seeds"].split()
    if (
        not seeds
        or not all(seed.isascii() and seed.isdigit() for seed in seeds)
        or len({*map(int, seeds)}) < len(seeds)
    ):
        raise fail(f"{where}, seeds", row["seeds"], "must be different whole numbers with blanks between them")
    for name, known in (("at_edge", _AT_EDGE), ("has_gap", _HAS_GAP)):
        if row[name] not in known:
            raise fail(f"{where}, {name}", row[name], f"must be {', '.join(known[1:])} or nothing")
    if not 0 < _number(row["lr"]) < math.inf:
        raise fail(f"{where}, lr", row["lr"], "must be a finite number above 0")
    for name in _NUMBERS:
        if row.get(name) and math.isinf(_number(row[name])):
            raise fail(f"{where}, {name}", row[name], "must be a finite number, or nan where there is none")
    for name in _SEEDS:
        _check_seeds(where, name, row.get(name, ""), len(seeds))
    if bool(row["plain_by_seed"]) != bool(row["everybody_by_seed"]):
        raise fail(f"{where}, plain_by_seed", row["plain_by_seed"], "must be there if and only if everybody_by_seed is")
    return row


def _check_seeds(where: str, name: str, text: str, count: int) -> None:
    """A number for each seed; the ends of the gap and the seconds may be absent."""
    cells = text.split()
    wanted = {count} if name.removesuffix("_by_seed") in BY_SEED else {0, count}
    if len(cells) not in wanted or any(math.isinf(_number(cell)) for cell in cells):
        raise fail(
            f"{where}, {name}", text, f"must be a finite number for each of {count} seeds, or nan where it diverged"
        )


def _number(text: str) -> float:
    """Read a number; infinite where it is none, so that one question finds both."""
    try:
        return float(text)
    except ValueError:
        return math.inf
