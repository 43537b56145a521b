"""How a round's updates become one global update: the paper's ComputeUpdate, one file per family."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..checks import choose, fail
from .averaging import FedAvg, UnbiasedFedAvg
from .base import Local, Rule
from .stale import FedStale, FedVARP, UnbiasedFedVARP

__all__ = ["RULES", "FedAvg", "FedStale", "FedVARP", "Local", "Rule", "UnbiasedFedAvg", "UnbiasedFedVARP", "make"]

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (FedAvg, UnbiasedFedAvg, FedVARP, UnbiasedFedVARP, FedStale)
}


def make(name: str, **options: Any) -> Rule:
    """Make a rule by name: `make("fedstale", beta="auto")`."""
    rule = choose("rule", name, RULES)
    known = {field.name for field in fields(rule)}
    for option in options:
        if option not in known:
            raise fail(option, options[option], f"{name} takes {', '.join(sorted(known))}")
    return rule(**options)
