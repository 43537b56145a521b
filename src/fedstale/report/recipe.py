"""How to get the same runs again: the command of one run, the TOML file of a sweep."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .. import configs
from ..analysis import METHOD_SETTINGS
from ..simulation.settings import Settings, make_settings
from ..tasks.defaults import used_rate
from .study import WITHOUT_EFFECT

_DEFAULTS = make_settings().record()


def changed(settings: Settings) -> dict[str, Any]:
    """The rule, whose default depends on whether a β is given, and the settings that are not at their default."""
    return {name: value for name, value in settings.record().items() if name == "rule" or value != _DEFAULTS[name]}


def common(runs: Sequence[Settings]) -> dict[str, Any]:
    """Every setting that matters and is the same in all runs, at its default or not, with the rate that was used."""
    records = [_as_used(settings) for settings in runs]
    names = [name for name in records[0] if name not in WITHOUT_EFFECT and records[0][name] not in (None, {})]
    return {name: records[0][name] for name in names if all(one[name] == records[0][name] for one in records)}


def _as_used(settings: Settings) -> dict[str, Any]:
    record = settings.record()
    return {**record, "rounds": settings.total_rounds, "lr": used_rate(record)}


def in_short(common: Mapping[str, Any]) -> str:
    """The settings that are asked for first, in one line."""
    first = ("num_clients", "participation", "p_min", "swap", "probabilities", "rounds", "lr")
    return ", ".join(f"{name} {configs.text(common[name])}" for name in first if name in common)


def command(settings: Settings) -> str:
    """The command line that runs these settings; where they do not say all, what to give again in Python."""
    if settings.unwritten:
        return "\n".join(_again(settings))
    named = settings.task if isinstance(settings.task, str) else json.dumps(settings.task)
    words = ["fedstale", "run", named]
    for name, value in changed(settings).items():
        flag = f"--{name.replace('_', '-')}"
        if name == "task":
            continue
        if isinstance(value, dict) and not name.endswith("_options"):
            words += [flag, json.dumps(value, ensure_ascii=False)]
        elif isinstance(value, dict):
            for key, inner in value.items():
                words += [flag.removesuffix("s"), f"{key}={inner}"]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{name.replace('_', '-')}")
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def _again(settings: Settings) -> list[str]:
    given = ", ".join(f"{name}=…" for name in settings.unwritten)
    whose = [f"# {name}: {names} is not written down" for name, names in settings.unwritten.items()]
    return [*whose, f"# give the object again in Python: fedstale.simulate(…, {given}), fedstale.resume(run, {given})"]


def grid(name: str, runs: Sequence[Settings]) -> str:
    """A TOML file for `fedstale sweep` that has these runs; says so where it has others, too, or cannot have some."""
    absent = dict.fromkeys(line for settings in runs for line in _again(settings) if settings.unwritten)
    runs = [settings for settings in runs if not settings.unwritten]
    if not runs:
        return "\n".join(absent)
    records = [settings.record() for settings in runs]
    varied = [key for key in _DEFAULTS if len({json.dumps(record[key]) for record in records}) > 1]
    common = {key: value for key, value in changed(runs[0]).items() if key not in varied}
    axes: dict[str, list[Any]] = {}
    together = [key for key in varied if key in METHOD_SETTINGS]
    unset = [key for key in varied if any(record[key] is None for record in records)]  # TOML has no word for it
    methods = [key for key in varied if key in unset or (key in together and (len(together) > 1 or unset))]
    if methods:
        cases = _once({key: record[key] for key in methods if record[key] is not None} for record in records)
        axes["cases"] = cases
    axes |= {key: _once(record[key] for record in records) for key in varied if key not in methods}
    lines = [f"name = {toml(name)}"]
    if common:
        lines += ["", "[settings]", *(f"{key} = {toml(value)}" for key, value in common.items())]
    if axes:
        lines += ["", "[grid]", *(f"{key} = {toml(values)}" for key, values in axes.items())]
    every = math.prod(len(values) for values in axes.values())
    if every != len(runs):
        lines.insert(0, f"# {len(runs):,} of the {every:,} combinations are in this report")
    return "\n".join([*absent, *lines])


def toml(value: Any) -> str:
    """A value of JSON types as TOML; None has no form there and is left out of tables and lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_toml_key(key)} = {toml(inner)}" for key, inner in value.items() if inner is not None)
        return "{ " + inside + " }" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(inner) for inner in value if inner is not None) + "]"
    return repr(value)


def _toml_key(key: str) -> str:
    """A key, in quotes where it needs them."""
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _once(values: Any) -> list[Any]:
    """Each value once, numbers in order before everything else."""
    found = {json.dumps(value, sort_keys=True): value for value in values}
    numbers = [value for value in found.values() if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return [*sorted(numbers), *(value for value in found.values() if value not in numbers)]
