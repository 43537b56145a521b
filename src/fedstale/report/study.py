"""What runs have in common and where they differ: runs of one task become methods under conditions, over seeds.

A study is the runs of one task. Runs that differ only in seed are repetitions; only in the learning rate, candidates of
which the best counts, as in the paper (`analysis.tuning`). The rule with its β and memory is the method. Everything
else that varies (p_min, swap, …) makes the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..analysis import Cell, Estimate, Gap, Table, tuned
from ..analysis.metrics import main_metric
from ..simulation.identity import identity
from ..simulation.settings import Settings
from ..store import RunInfo, Store
from ..sweeps import measure, settings_of
from ..tasks.defaults import full_name

WITHOUT_EFFECT = (
    *("engine", "threads", "device", "keep_freed_memory"),
    *("evaluate_every", "quantiles", "per_client", "memory_error", "update_noise", "train_loss"),
)
"""Settings that change how a run is done or seen, not what comes out (but for rounding)."""
_OBJECTIVE = "objective"
PLAIN = ("U-FedAvg", "FedStale β=0 (U-FedAvg)")
"""What corrects for absence and remembers nothing."""
_WHO = ("participation", "participation_options", "p_min", "selection", "selection_options")
_CURVES = 4
"""So many conditions are shown with their curves."""


class Study(Table):
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

    def __init__(self, store: Store, task: str, found: Sequence[tuple[Settings, RunInfo]]) -> None:
        self.store = store
        self.task = task
        self.runs = [settings for settings, _ in found]
        self.metric = main_metric({name for _, info in found for name in info.summary}) or "excess_loss"
        super().__init__(tuned(measure(store, settings, info, self.metric) for settings, info in found))

    @property
    def accurate(self) -> bool:
        """Whether methods are compared by an accuracy, the larger the better, or by a loss."""
        return self.metric == "accuracy"

    @cached_property
    def conditions(self) -> dict[str, list[Cell]]:
        """The cells by condition."""
        return self.by_condition()

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({settings.seed for settings in self.runs})

    @property
    def has_objective(self) -> bool:
        """Whether every run tells the training loss over all clients, which the rules minimise."""
        return self.accurate and all(cell.has(_OBJECTIVE) for cell in self.cells)

    def gap_closed(self, cell: Cell) -> Estimate | None:
        """How much of what absence costs a method wins back; None without U-FedAvg or everybody in every round."""
        if cell.settings.p_min == 1.0 or not self.has_objective:
            return None
        plain = [one for one in self.cells if one.method in PLAIN and self.condition(one) == self.condition(cell)]
        rest = self.condition(cell, *_WHO)
        full = [one for one in self.cells if one.settings.p_min == 1.0 and self.condition(one, *_WHO) == rest]
        if not plain or len(full) != 1:
            return None
        objectives = [by_objective(one).values for one in (plain[0], full[0], cell)]
        seeds = sorted(set.intersection(*(set(values) for values in objectives)))
        low, high, mine = (-np.array([values[seed] for seed in seeds]) for values in objectives)
        if not seeds or not np.isfinite([low, high, mine]).all():
            return None
        return Gap(low, high).closed(mine)

    def shown(self) -> dict[str, list[Cell]]:
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
        for name, cells in self.conditions.items():
            condition = dict(self.condition(cells[0]))
            at = condition.pop("p_min"), condition.pop("swap")
            parts.setdefault(repr(condition), {})[at] = name
        part = max(parts.values(), key=len)
        ends = [(max(axis), min(axis)) for axis in zip(*part, strict=True)]
        wanted = [(p, swap) for p in dict.fromkeys(ends[0]) for swap in dict.fromkeys(reversed(ends[1]))]
        return [part[at] for at in wanted if at in part]


def by_objective(cell: Cell) -> Cell:
    """The same runs, judged by minus their objective."""
    runs = (replace(run, accuracy=-run.run.tail(_OBJECTIVE)) for run in cell.runs if run.run is not None)
    return Cell(tuple(runs), cell.lr)


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
            # What was not written is like no other.
            mine = info.id if settings.unwritten else identity(settings.record())
            found.setdefault(settings.task_name, {}).setdefault(mine, (settings, info))
    # The largest rate first, as the tasks list theirs: of rates with equal means, the first is taken.
    made = [
        Study(store, task, sorted(_same_rounds(list(runs.values())), key=lambda run: -(run[0].lr or 0)))
        for task, runs in found.items()
    ]
    return sorted(made, key=lambda study: -len(study.runs)), others


def _same_rounds(runs: list[tuple[Settings, RunInfo]]) -> list[tuple[Settings, RunInfo]]:
    """Write the number of rounds into all settings where some have it, so that an equal number is no difference."""
    if all(settings.rounds is None for settings, _ in runs):
        return runs
    return [(settings.model_copy(update={"rounds": settings.total_rounds}), info) for settings, info in runs]


def normal(info: RunInfo) -> Settings | None:
    """The settings of a run without those that change nothing, β filled in; None for a run of something else."""
    settings = settings_of(info)
    if settings is None:
        return None
    changes: dict[str, Any] = {name: Settings.model_fields[name].default for name in WITHOUT_EFFECT}
    changes["task"] = full_name(settings.task)
    if isinstance(settings.rule, str) and settings.rule.partition("+")[0] == "fedstale" and settings.beta is None:
        changes["beta"] = "auto"
    return settings.model_copy(update=changes)
