"""What runs have in common and where they differ: runs of one task become methods under conditions, over seeds.

A study is the runs of one task. Runs that differ only in seed are repetitions; only in the learning rate, candidates of
which the best counts, as in the paper (`analysis.tuning`). The rule with its β and memory is the method. Everything
else that varies (p_min, swap, …) makes the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import configs
from ..analysis import METHOD_SETTINGS, Cell, Curve, Estimate, Measured, method_order, over_seeds, tuned
from ..analysis.metrics import main_metric
from ..simulation.settings import Settings
from ..store import RunInfo, Store
from ..sweeps import measure, settings_of
from ..sweeps.identity import identity
from ..sweeps.results import tail_of

_Condition = tuple[tuple[str, Any], ...]
"""The settings that make it, by name."""

_WITHOUT_EFFECT = (
    *("engine", "threads", "device", "keep_freed_memory"),
    *("evaluate_every", "per_client", "memory_error", "train_loss"),
)
"""Settings that change how a run is done or seen, not what comes out (but for rounding)."""
_NOT_CONDITIONS = ("task", "seed", "lr", *METHOD_SETTINGS, *_WITHOUT_EFFECT)
_CURVES = 4
"""So many conditions are shown with their curves."""


@dataclass(frozen=True, eq=False)
class Row:
    """One method under one condition at its best rate."""

    condition: _Condition
    method: str
    cell: Cell
    infos: tuple[RunInfo, ...]
    numbers: dict[str, Estimate] = field(default_factory=dict)
    """Mean and standard error over seeds, by metric, of the last tenth of the rounds."""


@dataclass(eq=False)
class Study:
    """The finished runs of one task.

    Parameters
    ----------
    store
        Where they are.
    task
        What is learned.
    found
        Settings (in normal form) and runs.
    """

    store: Store
    task: str
    found: list[tuple[Settings, RunInfo]]

    @cached_property
    def metric(self) -> str:
        """What methods are compared by: the test accuracy, or the excess loss of a quadratic."""
        return main_metric({name for _, info in self.found for name in info.summary}) or "excess_loss"

    @property
    def accurate(self) -> bool:
        """Whether that is an accuracy: a share, the larger the better."""
        return self.metric == "accuracy"

    @cached_property
    def measured(self) -> list[Measured]:
        """The runs with their score, the larger the better: the accuracy, or minus the excess loss."""
        return [measure(self.store, settings, info, self.metric) for settings, info in self.found]

    @cached_property
    def keys(self) -> list[str]:
        """The settings that make conditions."""
        records = [settings.record() for settings, _ in self.found]
        varied = [name for name in records[0] if name not in _NOT_CONDITIONS]
        return [name for name in varied if len({repr(record[name]) for record in records}) > 1]

    @cached_property
    def rows(self) -> list[Row]:
        """The comparison: one row per condition and method, in order."""
        infos = {id(measured): info for measured, (_, info) in zip(self.measured, self.found, strict=True)}
        rows = []
        for cell in tuned(self.measured):
            settings = cell.runs[0].settings
            mine = tuple(infos[id(run)] for run in cell.runs)
            rows.append(Row(self.condition(settings), settings.label, cell, mine, self._numbers(settings, mine)))
        # Stable: equal ones stay as they came.
        order = {name: k for k, name in enumerate(sorted({row.method for row in rows}, key=method_order))}
        return sorted(
            rows,
            key=lambda row: (
                [_order(value) for _, value in row.condition],
                bool(row.cell.estimate.diverged),  # no number, no rank
                order[row.method],
            ),
        )

    def condition(self, settings: Settings) -> _Condition:
        """The condition of a run."""
        return tuple((name, getattr(settings, name)) for name in self.keys)

    @cached_property
    def conditions(self) -> dict[str, list[Row]]:
        """The rows by condition."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(condition_text(row.condition), []).append(row)
        return found

    @cached_property
    def methods(self) -> list[str]:
        """The methods in order."""
        return sorted({row.method for row in self.rows}, key=method_order)

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({settings.seed for settings, _ in self.found})

    def shown(self) -> dict[str, list[Row]]:
        """The conditions whose curves are shown: all, or the corners of p_min and swap, or some evenly apart."""
        if len(self.conditions) <= _CURVES:
            return self.conditions
        names = list(self.conditions)
        if {"p_min", "swap"} <= set(self.keys):
            names = self._corners() or names
        if len(names) > _CURVES:
            names = [names[k] for k in np.linspace(0, len(names) - 1, _CURVES).astype(int)]
        return {name: self.conditions[name] for name in names}

    def _corners(self) -> list[str]:
        """Corners of the largest part of the grid in which nothing but p_min and swap varies."""
        parts: dict[str, dict[tuple[float, float], str]] = {}
        for name, rows in self.conditions.items():
            condition = dict(rows[0].condition)
            at = condition.pop("p_min"), condition.pop("swap")
            parts.setdefault(repr(condition), {})[at] = name
        part = max(parts.values(), key=len)
        ends = [(max(axis), min(axis)) for axis in zip(*part, strict=True)]
        wanted = [(p, swap) for p in dict.fromkeys(ends[0]) for swap in dict.fromkeys(reversed(ends[1]))]
        return [part[at] for at in wanted if at in part]

    def _numbers(self, settings: Settings, infos: Sequence[RunInfo]) -> dict[str, Estimate]:
        names = [name for name in ("accuracy_group0", "accuracy_group1", "beta") if name in infos[0].summary]
        return {name: Estimate.of(tail_of(self.store, settings, info, name) for info in infos) for name in names}

    def curve(self, row: Row, metric: str) -> Curve:
        """A metric over the seeds, at the rounds that any seed has."""
        series = []
        for info in row.infos:
            known = metric in info.summary
            columns = (
                self.store.run(info.id).metrics([metric]) if known else {"round": np.empty(0), metric: np.empty(0)}
            )
            series.append((columns["round"], columns[metric]))
        return over_seeds(series, [info.diverged_in for info in row.infos])


def studies(store: Store, infos: Iterable[RunInfo]) -> tuple[list[Study], list[RunInfo]]:
    """Sort finished runs into studies; and those that the simulator did not make, which no study can compare."""
    found: dict[str, dict[str, tuple[Settings, RunInfo]]] = {}
    others = []
    for info in infos:
        if not info.ended:
            continue
        settings = normal(info)
        judged = main_metric(info.summary) or info.diverged_in is not None
        if settings is None or not judged:
            others.append(info)
        else:  # the newest of equals comes first
            mine = (
                info.id if settings.unwritten else identity(settings.record())
            )  # what was not written is like no other
            found.setdefault(settings.task_name, {}).setdefault(mine, (settings, info))
    # The largest rate first, as the tasks list theirs: of rates with equal means, the first is taken.
    made = [
        Study(store, task, sorted(runs.values(), key=lambda run: -(run[0].lr or 0))) for task, runs in found.items()
    ]
    return sorted(made, key=lambda study: -len(study.found)), others


def normal(info: RunInfo) -> Settings | None:
    """The settings of a run without those that change nothing, β filled in; None for a run of something else."""
    settings = settings_of(info)
    if settings is None:
        return None
    changes: dict[str, Any] = {name: Settings.model_fields[name].default for name in _WITHOUT_EFFECT}
    if isinstance(settings.rule, str) and settings.rule.partition("+")[0] == "fedstale" and settings.beta is None:
        changes["beta"] = "auto"
    return settings.model_copy(update=changes)


def condition_text(condition: _Condition) -> str:
    """A condition in words."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in condition)


def value_text(value: Any) -> str:
    """A setting's value as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return configs.text(value)


def _order(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, float(value), "") if number else (1, 0.0, repr(value))
