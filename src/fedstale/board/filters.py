"""The table of runs: what its columns hold, which runs a filter keeps, and in which order.

A filter is words. `digits running` keeps runs in which both words occur somewhere (name, id, sweep, status, task,
rule); `p_min=0.1`, `accuracy>0.9`, `seed!=0`, `status=failed` compare a setting, a metric's last value or a column.
`accuracy>0.9` keeps no run that diverged; `status=diverged` and `diverged_in<10` do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import configs
from ..analysis import config_label
from ..analysis.metrics import main_metric
from ..store import RunInfo
from ..tasks.defaults import full_name
from .run_settings import full

_CONDITION = re.compile(r"^([\w.]+)(!=|>=|<=|=|>|<)(.+)$")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}

COLUMNS = {
    "run": "Run",
    "p_min": "p_min",
    "swap": "Swap",
    "lr": "Rate",
    "seed": "Seed",
    "rounds": "Rounds",
    "result": "Result",
    "status": "Status",
}
"""Keys and headings."""


def title(info: RunInfo) -> str:
    """What a run is called: its name, else its method, else its id."""
    return info.name or config_label(info.config) or info.id


def result(info: RunInfo) -> tuple[str, float] | None:
    """The last test accuracy, or the last excess loss, of a run that has one; one that diverged has no result."""
    name = main_metric(info.summary)
    return None if name is None or info.diverged_in is not None else (name, info.summary[name])


def matching(runs: Iterable[RunInfo], text: str) -> list[RunInfo]:
    """The runs that a filter keeps."""
    tests = [_test(word) for word in text.split()]
    return [info for info in runs if all(test(info) for test in tests)]


def ordered(runs: Sequence[RunInfo], column: str, descending: bool) -> list[RunInfo]:
    """The runs by a column (any other word: as they come, the newest first); what has no value comes last."""
    if column not in COLUMNS:
        return list(reversed(runs)) if column == "oldest" else list(runs)
    keyed = [(_sortable(_cell(info, column)), info) for info in runs]
    known = [(key, info) for key, info in keyed if key is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [info for _, info in known] + [info for key, info in keyed if key is None]


def _test(word: str) -> Callable[[RunInfo], bool]:
    found = _CONDITION.match(word)
    if found is None:
        wanted = word.casefold()
        return lambda info: wanted in _text(info)
    key, sign, value = found.groups()
    value = full_name(value) if key == "task" else value
    compare, wanted_value = _COMPARE[sign], _number(value)

    def test(info: RunInfo) -> bool:
        mine = _value(info, key)
        if mine is None:
            return sign == "!="
        if isinstance(mine, float) and isinstance(wanted_value, float):
            return compare(mine, wanted_value)
        return sign in ("=", "!=") and compare(str(mine).casefold(), value.casefold())

    return test


def _value(info: RunInfo, key: str) -> float | str | None:
    if key in ("status", "sweep", "name", "id", "diverged_in"):
        found: Any = getattr(info, key)
    elif key == "rounds" and "rounds" not in info.summary:
        found = info.rounds_done
    else:
        # β is a setting and a metric: the setting is meant.
        setting = full(info).get(key)
        found = info.summary.get(key) if setting is None and info.diverged_in is None else setting
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        return float(found)
    return None if found is None else configs.text(found)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _text(info: RunInfo) -> str:
    parts = (info.name, info.id, info.sweep, info.status, info.config.get("task"), info.config.get("rule"))
    return " ".join(configs.text(part) for part in parts if part).casefold()


def _cell(info: RunInfo, column: str) -> Any:
    if column == "run":
        return title(info)
    if column == "rounds":
        return info.rounds_done
    if column == "status":
        return info.status
    if column == "result":
        found = result(info)
        # Accuracies among themselves, losses among themselves.
        return None if found is None or math.isnan(found[1]) else (found[0] == "accuracy", found[1])
    return full(info).get(column)


def _sortable(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return (0, value)
    return (1, value.casefold()) if isinstance(value, str) else (2, value)
