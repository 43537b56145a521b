"""What a method is called, and in which order methods are listed: one spelling for tables, figures and messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import configs
from ..configs import Config

METHOD_SETTINGS = ("rule", "beta", "rule_options", "memory", "server_lr")
"""The settings that make a method; everything else says where it is tried."""

NAMES = {
    "fedavg": "FedAvg",
    "u-fedavg": "U-FedAvg",
    "fedvarp": "FedVARP",
    "u-fedvarp": "U-FedVARP",
    "fedstale": "FedStale",
    "tempered": "Tempered FedStale",
    "fedsteer": "FedSteer",
    "u-fedsteer": "U-FedSteer",
    "fedau": "FedAU",
    "ca-fed": "CA-Fed",
    "fedamd": "FedAMD",
    "mifa": "MIFA",
    "mifa-wait": "MIFA, waiting",
    "fedlaavg": "FedLaAvg",
    "fedawe": "FedAWE",
    "afa-cd": "AFA-CD",
    "afa-cs": "AFA-CS",
    "fedasync": "FedAsync",
    "fedbuff": "FedBuff",
    "u-fedbuff": "U-FedBuff",
    "ca2fl": "CA²FL",
    "ace": "ACE",
    "aced": "ACED",
    "area": "AREA",
    "fedstale-async": "FedStaleAsync",
    "scaffold": "SCAFFOLD",
    "svrg": "SVRG",
    "scsg": "SCSG",
    "sarah": "SARAH",
    "spider": "SPIDER",
    "fedprox": "FedProx",
    "feddyn": "FedDyn",
}
"""The rules as their papers write them; a rule that is not listed keeps its own name."""

EVERYBODY = "everybody, always"
"""The limit that no method reaches: all clients in every round."""

SAME_AS = {"FedStale β=0": "U-FedAvg", "FedStale β=1": "U-FedVARP"}
"""The ends of the range of β have names of their own (Eq. 5 and 7)."""


def method_label(
    rule: Config,
    beta: Config = None,
    memory: str | None = None,
    rule_options: Mapping[str, Any] | None = None,
    server_lr: float = 1.0,
) -> str:
    """Name a method: "FedStale β=0.5", "FedStale β=0 (U-FedAvg)", "FedStale+adam β=auto, lowrank:4, η_s 0.1".

    Parameters
    ----------
    rule, beta
        As settings have them: names, numbers or configs of objects.
    memory
        Where stale updates are kept; None and "ram" go without saying.
    rule_options
        Further options of the rule.
    server_lr
        η_s; 1 goes without saying.
    """
    name, plus, optimizer = configs.text(rule).partition("+")
    beta = "auto" if beta is None and name == "fedstale" else beta  # the rule's own default
    label = NAMES.get(name, name) + plus + optimizer + ("" if beta is None else f" β={configs.text(beta)}")
    label += f" ({SAME_AS[label]})" if label in SAME_AS else ""
    more = [] if memory in (None, "ram") else [str(memory)]
    more += [f"{key} {configs.text(value)}" for key, value in (rule_options or {}).items()]
    more += [] if server_lr == 1.0 else [f"η_s {server_lr:g}"]
    return ", ".join([label, *more])


def config_label(config: Mapping[str, Any]) -> str:
    """Name the method of a run by its config; nothing for a run that has no rule."""
    if not isinstance(config.get("rule"), (str, Mapping)):
        return ""
    return method_label(**{name: config[name] for name in METHOD_SETTINGS if config.get(name) is not None})


def method_order(label: str) -> tuple[int, float, str]:
    """Sort key: FedAvg first, FedStale by β (numbers before words), then the others by name."""
    known = ("FedAvg", "U-FedAvg", "FedVARP", "U-FedVARP", "FedStale")
    first, _, rest = label.partition(" β=")
    try:
        beta = float(rest.split(" ")[0].rstrip(","))
    except ValueError:
        beta = float("inf")
    return known.index(first) if first in known else len(known), beta, label
