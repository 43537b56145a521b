"""Which runs are drawn: at first, with their other seeds, and as the page names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.palette import COLOURS, DASHES
from ..store import RunInfo
from .curves import repeated
from .source import Source

LIMIT = 400
"""Runs that can be chosen at once."""
_STYLES = len(DASHES) * len(COLOURS)
"""Styles of one method."""


def first_choice(source: Source) -> list[str]:
    """What is drawn when the page opens: what is running, or the newest run; with its other seeds."""
    runs = list(source.runs.values())
    start = [info for info in runs if info.status == "running"][:4] or runs[:1]
    return with_seeds(source, [info.id for info in start])


def with_seeds(source: Source, ids: list[str]) -> list[str]:
    """The runs and those that differ from one of them only in the seed."""
    runs = source.runs
    mine = [runs[id] for id in ids if id in runs]
    wanted = {repeated(info) for info in mine} - {None}
    # Comparing tasks first spares most of the work: a store may hold thousands of runs.
    tasks = [(info.config.get("task"), info.sweep) for info in mine]
    near = (info for info in runs.values() if (info.config.get("task"), info.sweep) in tasks)
    same = [info.id for info in near if repeated(info) in wanted]
    return list(dict.fromkeys([*(info.id for info in mine), *same]))[:LIMIT]


def chosen_runs(source: Source, ids: Any) -> list[RunInfo]:
    """The runs that the page names, without those that are gone."""
    runs = source.runs
    return [runs[id] for id in list(ids or [])[:LIMIT] if isinstance(id, str) and id in runs]


def all_or_none(source: Source, found: Sequence[RunInfo], chosen: Any) -> list[str]:
    """What is chosen with all of the found runs; without them where all of them were."""
    mine = [info.id for info in chosen_runs(source, chosen)]
    ids = [info.id for info in found]
    if set(ids) <= set(mine):
        return [id for id in mine if id not in set(ids)]
    return list(dict.fromkeys([*mine, *ids]))[:LIMIT]


def looks(given: Any) -> dict[str, int]:
    """The repetition of its method that each run is drawn as, as the page tells it."""
    found = given.items() if isinstance(given, dict) else ()
    return {id: k for id, k in found if isinstance(id, str) and isinstance(k, int) and 0 <= k < _STYLES}
