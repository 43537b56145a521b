"""The settings of runs side by side: all of them, or those in which the runs differ; and the rate that was used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import configs
from ..participation.registry import takes_p_min
from ..simulation.settings import Settings, make_settings
from ..store import RunInfo
from ..tasks.defaults import full_name, used_rate

_DEFAULTS = make_settings().record()
_IN_COLUMNS = ("p_min", "swap", "lr", "seed", "rounds")
"""Settings that the table of runs has a column for."""


def full(info: RunInfo) -> dict[str, Any]:
    """A run's config with the full name of its task and the rate it used; settings it does not have are at defaults.

    No p_min where it does not say who comes.
    """
    if "task" not in info.config or "rule" not in info.config:
        return info.config
    config = {**_DEFAULTS, **info.config}
    p_min = config["p_min"] if takes_p_min(config["participation"], config["participation_options"]) else None
    return {**config, "task": full_name(config["task"]), "lr": used_rate(config), "p_min": p_min}


def value(setting: Any) -> str:
    """A setting in words; six digits of a number."""
    if setting is None or setting == {}:
        return "–"
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return f"{setting:.6g}" if isinstance(setting, float) else configs.text(setting)


def meaning(name: str) -> str:
    """What a setting is, in the words of its description."""
    field = Settings.model_fields.get(name)
    return (field.description or "") if field is not None else ""


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The settings in which they differ, in the order of the settings."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if len({value(config.get(name)) for config in configs}) > 1]


def unusual(info: RunInfo) -> str:
    """The settings that are not at their defaults and that nothing else in a row of the table tells."""
    told = ("task", "rule", "beta", "rule_options", "memory", "server_lr", *_IN_COLUMNS)
    mine = full(info)
    found = [name for name in mine if name in _DEFAULTS and name not in told and mine[name] != _DEFAULTS[name]]
    return ", ".join(f"{name} {value(mine[name])}" for name in found)
