"""How a round's updates become one global update: the paper's ComputeUpdate, one file per method."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..checks import choose, fail
from ..rule_state import MemoryState, RuleState, held_by_clients, per_client
from .ace import ACE, ACED
from .afa_cd import AFACD
from .afa_cs import AFACS
from .anchors import Anchored
from .area import AREA
from .averaging import FedAvg, UnbiasedFedAvg
from .base import Local, Rule, refuse_non_finite
from .ca2fl import CA2FL
from .cafed import CAFed
from .coverage import OutsideCoverage
from .fedamd import FedAMD
from .fedasync import FedAsync
from .fedau import FedAU
from .fedawe import FedAWE
from .fedbuff import FedBuff, UnbiasedFedBuff
from .feddyn import FedDyn
from .fedlaavg import FedLaAvg
from .fedprox import FedProx
from .fedstale_async import FedStaleAsync
from .fedsteer import FedSteer, UnbiasedFedSteer
from .guard import Guarded, guard
from .mifa import MIFA, WaitingMIFA
from .robust import Robust, robustly
from .sarah import SARAH
from .scaffold import Scaffold
from .scsg import SCSG
from .server_optimizers import (
    OPTIMIZERS,
    ServerAdagrad,
    ServerAdam,
    ServerAdaptive,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
from .spider import SPIDER
from .stale import FedStale, FedVARP, UnbiasedFedVARP
from .svrg import SVRG
from .tempered import TemperedFedStale
from .wrapped import WrappedRule

__all__ = [
    "ACE",
    "ACED",
    "AFACD",
    "AFACS",
    "AREA",
    "CA2FL",
    "DEFAULT",
    "MIFA",
    "OPTIMIZERS",
    "RULES",
    "SARAH",
    "SCSG",
    "SPIDER",
    "SVRG",
    "Anchored",
    "CAFed",
    "FedAMD",
    "FedAU",
    "FedAWE",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedDyn",
    "FedLaAvg",
    "FedProx",
    "FedStale",
    "FedStaleAsync",
    "FedSteer",
    "FedVARP",
    "Guarded",
    "Local",
    "MemoryState",
    "OutsideCoverage",
    "Robust",
    "Rule",
    "RuleState",
    "Scaffold",
    "ServerAdagrad",
    "ServerAdam",
    "ServerAdaptive",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerYogi",
    "TemperedFedStale",
    "UnbiasedFedAvg",
    "UnbiasedFedBuff",
    "UnbiasedFedSteer",
    "UnbiasedFedVARP",
    "WaitingMIFA",
    "WrappedRule",
    "guard",
    "held_by_clients",
    "make",
    "per_client",
    "refuse_non_finite",
    "robustly",
]

_ALL: tuple[type[Rule], ...] = (
    FedAvg,
    UnbiasedFedAvg,
    FedVARP,
    UnbiasedFedVARP,
    FedStale,
    TemperedFedStale,
    FedSteer,
    UnbiasedFedSteer,
    FedAU,
    CAFed,
    FedAMD,
    MIFA,
    WaitingMIFA,
    FedLaAvg,
    FedAWE,
    AFACD,
    AFACS,
    FedAsync,
    FedBuff,
    UnbiasedFedBuff,
    CA2FL,
    ACE,
    ACED,
    AREA,
    FedStaleAsync,
    Scaffold,
    SVRG,
    SCSG,
    SARAH,
    SPIDER,
    FedProx,
    FedDyn,
)
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in _ALL}
DEFAULT = TemperedFedStale.name
"""The rule of a run that names none: the best on held-out seeds (docs/results/README.md, "The rules compared")."""


def make(name: str, **options: Any) -> Rule:
    """Make a rule by name: `make("fedstale", beta="auto")`; a server optimiser follows a plus: "fedstale+adam".

    With several of them the last is the outermost, and the one that options are for.
    """
    base, *kinds = str(name).split("+")
    rule = choose("rule", base, RULES)
    optimizers = [choose("server optimiser", kind, OPTIMIZERS) for kind in kinds]
    optimizer = optimizers[-1] if optimizers else None
    outer = {field.name for field in fields(optimizer)} - {"rule"} if optimizer else set()
    known = ({field.name for field in fields(rule)} - ({"server_lr"} if optimizer else set())) | outer
    for option in options:
        if option not in known:
            raise fail(option, options[option], f"{name} takes {', '.join(sorted(known))}")
    made = rule(**{key: value for key, value in options.items() if key not in outer})
    if optimizer is None:
        return made
    for inner in optimizers[:-1]:
        made = inner(made)
    return optimizer(made, **{key: value for key, value in options.items() if key in outer})
