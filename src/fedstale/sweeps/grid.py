"""What a sweep runs: every combination of the listed settings, from a TOML file or from Python.

name = "swaps"

[settings]              # what all runs have in common: any setting of a run
task = "digits-mlp"

[grid]                  # every combination is one run
p_min = [0.5, 0.1]
lr = "grid"             # the task's own five rates
seed = [0, 1, 2]
cases = [{ rule = "fedavg" }, { rule = "fedstale", beta = "auto" }]   # settings that change together
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checks import InvalidInput, fail, unknown
from ..configs import Config, text
from ..simulation.settings import Settings, make_settings
from ..simulation.settings_file import read_toml
from ..tasks.defaults import full_name

_CASES = "cases"
_TASK_GRID = "grid"
_MOST_RUNS = 1_000_000


@dataclass(frozen=True)
class Grid:
    """A grid of runs.

    Parameters
    ----------
    name
        What the sweep is called in the store.
    settings
        What all runs have in common.
    axes
        A list of values for each setting that varies; "lr" may be "grid" (the rates of `Task.lr_grid`), and "cases"
        is a list of tables of settings that change together. The last axis varies fastest.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Sequence[Any] | str] = field(default_factory=dict)

    def runs(self) -> list[Settings]:
        """Return the settings of every run, each once; a wrong one gives one line that names it."""
        if not self.name.strip() or not self.name.isprintable():
            raise fail("name", self.name, "must be one line of printable text")
        for key in (*self.settings, *self.axes):
            if key not in Settings.model_fields and key != _CASES:
                raise unknown("setting", key, [*Settings.model_fields, _CASES])
        twice = sorted(set(self.settings) & set(self.axes))
        if twice:
            raise fail(twice[0], self.axes[twice[0]], "is in both [settings] and [grid]: give it once")
        names, lists = list(self.axes), [self._values(name) for name in self.axes]
        if (count := math.prod(map(len, lists))) > _MOST_RUNS:
            raise fail("grid", f"{count:,} combinations", f"a sweep has at most {_MOST_RUNS:,} runs")
        made: dict[str, Settings] = {}
        for values in itertools.product(*lists):
            given: dict[str, Any] = dict(self.settings)
            for name, value in zip(names, values, strict=True):
                given |= value if name == _CASES else {name: value}
            for settings in self._rates(given):
                made.setdefault(repr(settings), settings)
        return list(made.values())

    def _values(self, name: str) -> list[Any]:
        values = self.axes[name]
        if name == "lr" and values == _TASK_GRID:
            return [_TASK_GRID]
        if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence) or not values:
            raise fail(name, values, "must be a non-empty list of values")
        if name == _CASES and not all(isinstance(value, Mapping) for value in values):
            raise fail(name, values, "must be a list of tables, such as {rule = 'fedavg'}")
        return list(values)

    def _rates(self, given: dict[str, Any]) -> list[Settings]:
        if given.get("lr") != _TASK_GRID:
            return [make_settings(**given)]
        settings = make_settings(**{**given, "lr": None})
        return [settings.replace(lr=rate) for rate in lr_grid(settings.task)]


def lr_grid(task: Config) -> tuple[float, ...]:
    """Return the learning rates a task is tuned on."""
    from ..checks import choose
    from ..tasks.catalogue import TASKS

    if not isinstance(task, str):
        raise fail("lr", _TASK_GRID, f"needs a named task, not {text(task)}")
    return choose("task", full_name(task), TASKS).lr_grid


def from_file(path: Path) -> Grid:
    """Read a grid from a TOML file, or from a Python file that sets `grid`."""
    if path.suffix == ".py":
        return _from_python(path)
    found = read_toml(path)
    try:
        for key in found:
            if key not in ("name", "settings", "grid"):
                raise unknown("heading", key, ["name", "settings", "grid"])
        for key in ("settings", "grid"):
            if not isinstance(found.get(key, {}), dict):
                raise fail(key, found[key], f"must be a table: [{key}]")
        grid = Grid(str(found.get("name", path.stem)), found.get("settings", {}), found.get("grid", {}))
        grid.runs()
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return grid


def _from_python(path: Path) -> Grid:
    import runpy

    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    grid = runpy.run_path(str(path)).get("grid")
    if not isinstance(grid, Grid):
        raise InvalidInput(f"{path} must set grid = fedstale.sweeps.Grid(...)")
    return grid
