"""What a checkpoint says of the strategy that wrote it, so that `resume` needs nothing but the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..checks import InvalidInput, fail
from ..rules import Rule, ServerOptimizer, make

_FIXED = ("probabilities", "weights", "memory", "identity", "beside", "num_clients")
"""Options that the saved state depends on: a resumed run cannot change them."""


class Saved:
    """The rule and the options of a strategy, as JSON values.

    Functions and objects cannot be saved: `facts["absent"]` names the options that must be given again.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)

    @classmethod
    def of(cls, rule: Rule, options: Mapping[str, Any], store_run: str | None) -> Saved:
        """Describe a strategy."""
        values = _values(rule)
        plain = {name: _plain(value) for name, value in options.items() if name != "checkpoint"}
        simple = {name: value for name, value in values.items() if _simple(value)}
        whole = len(simple) == len(values) and _remade(rule, values) == rule
        return cls(
            {
                "rule": {"name": rule.name, "values": simple, "whole": whole, "text": repr(rule)},
                "options": {name: value for name, value in plain.items() if value is not _ABSENT},
                "absent": sorted(name for name, value in plain.items() if value is _ABSENT),
                "store_run": store_run,
            }
        )

    @property
    def store_run(self) -> str | None:
        """The run of the fedstale store, where there was one."""
        run: str | None = self.facts["store_run"]
        return run

    def rule(self, given: Rule | None) -> Rule:
        """Return the rule: the one given, or the one that was saved."""
        saved = self.facts["rule"]
        if given is not None:
            if given.name != saved["name"]:
                raise fail("rule", given, f"the checkpoint is of {saved['text']}")
            return given
        if not saved["whole"]:
            raise fail("rule", None, f"{saved['text']} could not be saved whole: give resume(path, rule=…)")
        return make(saved["name"], **saved["values"])

    def options(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the saved options with the changes."""
        saved = self.facts["options"]
        for name in self.facts["absent"]:
            if name not in changes:
                raise fail(name, None, f"it could not be saved: give resume(path, {name}=…)")
        for name in _FIXED:
            if name in changes and name in saved and _plain(changes[name]) != saved[name]:
                raise fail(name, changes[name], f"the checkpoint was written with {saved[name]!r}")
        return {**saved, **changes}

    def check(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on with a rule of other hyper-parameters, as far as they were saved."""
        if facts["rule"]["values"] != self.facts["rule"]["values"]:
            raise fail("rule", facts["rule"]["text"], f"the checkpoint is of {self.facts['rule']['text']}")


def exists(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / "state.safetensors").exists()


def _values(rule: Rule) -> dict[str, Any]:
    """Return what `rules.make` takes to make the rule again."""
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}
    if isinstance(rule, ServerOptimizer):
        inner = _values(values.pop("rule"))
        del inner["server_lr"]  # the optimiser's own is used
        return inner | values
    return values


def _remade(rule: Rule, values: dict[str, Any]) -> Rule | None:
    try:
        return make(rule.name, **values)
    except InvalidInput:  # a rule of the user's own
        return None


_ABSENT = object()


def _simple(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, or `_ABSENT`."""
    if _simple(value):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _ABSENT
