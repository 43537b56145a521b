"""What is compared: a rule with its β and its memory, by name or as an object; or everybody in every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import configs
from .. import memory as memories
from .. import rules as known_rules
from ..analysis import method_label
from ..analysis.methods import EVERYBODY as EVERYBODY_LABEL
from ..checks import fail, number_or_text
from ..configs import Config
from ..participation import Bernoulli, Participation
from ..rules import OPTIMIZERS, RULES, Rule
from .coverage import quantiles_of
from .settings import Settings


@dataclass(frozen=True, eq=False)
class Method:
    """A rule with its β and its memory, and what it is called; or the limit, all clients in every round.

    Two methods are the same if they are called the same.
    """

    rule: Config | Rule
    beta: Config = None
    memory: str | None = None
    """Where stale updates live, if not where the setting says."""
    everybody: bool = False
    """Whether all clients take part in every round: what no method can have, same seeds and batches."""
    name: str | None = None
    """What it is called, if not by its rule."""

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        if self.name is not None or self.everybody:
            return self.name or EVERYBODY_LABEL
        if not isinstance(self.rule, Rule):
            return method_label(self.rule, self.beta, self.memory)
        short: dict[str, Any] = configs.short_rule(self.rule)
        said = {name: short[name] for name in ("beta", "rule_options", "server_lr") if name in short}
        return method_label(short["rule"], memory=self.memory, **said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.label == other.label

    def __hash__(self) -> int:
        return hash(self.label)

    def applied(self, settings: Settings, participation: Participation) -> Settings:
        """Return the settings of a run of this method, in a setting with this participation."""
        asked = settings.model_dump() | {"rule": self.rule, "beta": self.beta, "rule_options": {}}
        if self.memory is not None:
            asked["memory"] = self.memory
        if self.everybody:
            groups = participation.participation_groups()  # the same clients stay the rare ones
            always = Bernoulli(np.ones(participation.num_clients), labels=groups)
            asked |= {"participation": always, "p_min": 1.0, "rounds": settings.total_rounds}
            asked |= {"participation_options": {}, "selection": "all", "selection_options": {}}
            if (finer := quantiles_of(participation, settings.quantiles)) is not None:
                asked["quantiles"] = finer.tolist()
        return settings.replace(**asked)


EVERYBODY = Method("fedavg", everybody=True)
"""The yardstick: FedAvg with every client in every round."""
PLAIN = Method("u-fedavg")
"""Corrects for absence and remembers nothing: where the gap begins that a memory may close."""
DEFAULT = (
    Method("fedavg"),
    PLAIN,
    Method("fedvarp"),
    Method("fedstale", "auto"),
    Method("tempered"),
    EVERYBODY,
)
_ALL = (
    *(Method(name) for name in RULES if name != "fedstale"),
    Method("fedstale", 0.5),
    Method("fedstale", "auto"),
    Method("fedstale", "auto-per-client"),
    Method("fedstale", "auto", "clustered:4"),
    Method("fedstale", "auto", "lowrank:4"),
    *(Method(f"fedstale+{name}", "auto") for name in OPTIMIZERS),
    EVERYBODY,
)
"""Every method by its default, the approximate memories, and FedStale with each server optimiser."""

Asked = str | Rule | Method | Sequence[str | Rule | Method] | Mapping[str, str | Rule | Method] | None
"""How methods can be named: see `methods`."""


def methods(asked: Asked) -> tuple[Method, ...]:
    """Read what is to be compared.

    Parameters
    ----------
    asked
        Names with commas between them ("fedavg,fedstale:0.8,fedstale+adam,fedstale@lowrank:4,everybody"), a rule, a
        `Method`, or several of them; a mapping says what each is called. "all" is every method, None the usual six.
    """
    if asked is None:
        return DEFAULT
    if isinstance(asked, str):
        found = _ALL if asked.strip() == "all" else tuple(_named(text) for text in asked.split(","))
    elif isinstance(asked, Mapping):
        found = tuple(_called(name, _as_method(value)) for name, value in asked.items())
    elif isinstance(asked, Sequence):
        found = tuple(_as_method(value) for value in asked)
    else:
        found = (_as_method(asked),)
    if not found:
        raise fail("rules", asked, "there must be at least one method to compare")
    labels = [method.label for method in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise fail("rules", twice, 'two methods are called that: name them, {"first": …, "second": …}')
    return found


def file_methods(settings: Settings) -> tuple[Method, ...]:
    """Return the usual methods, and the rule that the settings ask for beside them."""
    own = Method(configs.rule_of(settings.rule, settings.beta, settings.rule_options, seed=settings.seed))
    return DEFAULT if own in DEFAULT else (*DEFAULT[:-1], own, DEFAULT[-1])


def _as_method(asked: Any) -> Method:
    if isinstance(asked, Method):
        return asked
    if isinstance(asked, Rule):
        return Method(asked)
    if isinstance(asked, str):
        return _named(asked)
    raise fail("rules", asked, "must be names, rules such as FedStale, or methods")


def _called(name: str, method: Method) -> Method:
    return Method(method.rule, method.beta, method.memory, method.everybody, name)


def _named(text: str) -> Method:
    described, at, memory = text.strip().partition("@")
    name, colon, beta = described.partition(":")
    if described == "everybody":
        return EVERYBODY
    known_rules.make(name)
    if colon and not beta:
        raise fail("rules", text, "β stands behind the colon: fedstale:0.5")
    if at:
        memories.parse(memory)
    return Method(name, number_or_text(beta) if colon else None, memory or None)
