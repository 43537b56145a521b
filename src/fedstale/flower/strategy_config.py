"""What a checkpoint says of the strategy that wrote it, so that `resume` needs nothing but the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import configs
from ..checks import fail
from ..memory import parse
from ..rules import Guarded, Rule

_FIXED = ("probabilities", "weights", "memory", "identity", "averaged_buffers", "num_clients")
"""Options that the saved state depends on: a resumed run cannot change them."""


class StrategyConfig:
    """The rule and the options of a strategy, as JSON values.

    Functions and objects cannot be saved: `facts["not_saved"]` names the options that must be given again.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)

    @classmethod
    def describe(cls, rule: Rule, options: Mapping[str, Any], store_run: str | None) -> StrategyConfig:
        """Describe a strategy."""
        plain = {name: _plain(value) for name, value in options.items() if name not in ("checkpoint", "resume")}
        return cls(
            {
                "rule": configs.to_config(rule),
                "options": {name: value for name, value in plain.items() if value is not _NOT_SAVED},
                "not_saved": sorted(name for name, value in plain.items() if value is _NOT_SAVED),
                "store_run": store_run,
            }
        )

    @property
    def store_run(self) -> str | None:
        """The run of the fedstale store, where there was one."""
        run: str | None = self.facts["store_run"]
        return run

    def rule(self, given: Rule | None) -> Rule:
        """Return the rule: the one given, which must be the one that was saved as far as that says, or that one."""
        saved = self.facts["rule"]
        if given is not None:
            self._check(given)
            return given
        if not configs.whole(saved):
            raise fail("rule", None, f"{configs.text(saved)} could not be saved whole: give resume(path, rule=…)")
        rule: Rule = configs.from_config(saved, "rule")
        return rule

    def options(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the saved options with the changes."""
        saved = self.facts["options"]
        for name in self.facts["not_saved"]:
            if name not in changes:
                raise fail(name, None, f"it could not be saved: give resume(path, {name}=…)")
        for name in _FIXED:
            if name in changes and name in saved and _plain(changes[name]) != saved[name]:
                raise fail(name, changes[name], f"the checkpoint was written with {saved[name]!r}")
        return {**saved, **changes}

    def _check(self, given: Rule) -> None:
        """Refuse to go on with a rule of other hyper-parameters, as far as they were saved; bounds are options here."""
        bare = given.rule if isinstance(given, Guarded) else given
        if not configs.agree(self.facts["rule"], configs.to_config(bare)):
            raise fail("rule", given, f"the checkpoint is of {configs.text(self.facts['rule'])}")


def check_memory(given: str, saved: str) -> None:
    """Refuse to go on with another kind of memory; where rows on disk lie is known to the checkpoint."""
    (folder, kind), (saved_folder, saved_kind) = parse(given), parse(saved)
    if (folder is None, kind) != (saved_folder is None, saved_kind):
        raise fail("memory", given, f"the checkpoint was written with {saved!r}")


_NOT_SAVED = object()


def _simple(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, or `_NOT_SAVED`."""
    if _simple(value):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _NOT_SAVED
