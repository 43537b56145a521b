"""Shell completion: the words that an option or argument may be. `fedstale --install-completion` sets it up."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..participation import ESTIMATORS, PROCESSES, SELECTIONS
from ..rules import OPTIMIZERS, RULES
from ..tasks.names import task_names

_MOST_RUNS = 200
"""Runs of a store that are offered: the newest."""


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Tasks, and TOML files here."""
    return _beginning([*task_names(), *sorted(path.name for path in Path().glob("*.toml"))], incomplete)


def tasks(incomplete: str) -> list[str]:
    """The names of tasks."""
    return _beginning(task_names(), incomplete)


def rules(incomplete: str) -> list[str]:
    """The names of rules, with a server optimiser once there is a plus."""
    name, plus, optimizer = incomplete.partition("+")
    if plus and name in RULES:
        return [f"{name}+{word}" for word in _beginning(OPTIMIZERS, optimizer)]
    return _beginning(RULES, incomplete)


def methods(incomplete: str) -> list[str]:
    """The last of several names with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in (*rules(last), *_beginning(("everybody", "all"), last))]


def participation(incomplete: str) -> list[str]:
    """The names of participation processes."""
    return _beginning(PROCESSES, incomplete)


def selections(incomplete: str) -> list[str]:
    """The names of selections."""
    return _beginning(SELECTIONS, incomplete)


def estimators(incomplete: str) -> list[str]:
    """The names of estimators of p_i."""
    return _beginning(ESTIMATORS, incomplete)


def runs(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """The ids of runs in the store, with their names; nothing where there is no store."""
    from ..store import Store

    with suppress(Exception), Store.open(ctx.params.get("store"), create=False, read_only=True, patience=0) as store:
        infos = store.runs(limit=_MOST_RUNS)
        return [(info.id, info.name or "") for info in infos if info.id.startswith(incomplete)]
    return []


def runs_or_sweeps(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """The ids of runs and the names of sweeps in the store."""
    from ..store import Store

    with suppress(Exception), Store.open(ctx.params.get("store"), create=False, read_only=True, patience=0) as store:
        sweeps = dict.fromkeys(info.sweep for info in store.runs(limit=_MOST_RUNS) if info.sweep)
        return [*((name, "sweep") for name in sweeps if name.startswith(incomplete)), *runs(ctx, incomplete)]
    return []
