"""The names that settings know (rules, tasks, participation, …), with what each is: for lists and help texts."""

from __future__ import annotations

import inspect
from dataclasses import fields

from ..rules import RULES
from ..tasks.defaults import ALIASES
from ..tasks.names import DESCRIPTIONS, QUADRATIC

_PARTICIPATION = {
    "bernoulli": "each client on its own with probability p_i (options p or p_min, share)",
    "two-groups": "the paper's: half of the clients always, the others with p_min",
    "markov": "on and off spells with the same p_i (option correlation)",
    "cyclic": "clients take turns in windows (options period, width)",
    "correlated": "clients come together (options correlation, groups)",
    "time-varying": "p_i changes over the rounds (options rounds, values)",
    "trace": "who came, from a CSV file: round,client, or device names with times (options path, round, unit)",
    "phones": "723 real phones over five days; options kind (bootstrap, replay, model), only_seen, devices, repeat",
}
_SELECTIONS = {
    "all": "every available client",
    "uniform": "m of the available clients at random (option m)",
    "fraction": "a fraction of the available clients at random (option f)",
    "least-recent": "the m available clients that were absent longest (option m)",
}
_ESTIMATORS = {
    "known": "the true p_i of the participation process",
    "fedau": "FedAU: mean length of the intervals between visits, cut off at 50 rounds",
    "fedau-nocutoff": "the same without a cutoff",
    "beta": "share of the rounds in which a client came, with a Beta prior",
    "forgetting": "the same, where older rounds count less",
    "daily": "the same by the time of day: a day of 48 rounds that all share, and each client's own hours",
}
_MEMORIES = {
    "ram": "one float32 vector per client in RAM",
    "ram:PRECISION": "the same as float64, float32, float16 or bfloat16",
    "disk": "one vector per client in a memory-mapped file in the run's folder",
    "disk:FOLDER": "the same in a folder of yours",
    "clustered:K": "K vectors; each client points to one of them",
    "lowrank:K": "K vectors; each client is a mixture of them",
}


def _rules() -> dict[str, str]:
    """The first sentence of each rule's docstring, and the options that it takes."""
    found = {}
    for name, rule in RULES.items():
        computes = " ".join((inspect.getdoc(rule) or "").partition("\n\n")[0].split())
        options = ", ".join(field.name for field in fields(rule))
        found[name] = f"{computes} Options: {options}." if options else computes
    return found


def _tasks() -> dict[str, str]:
    short = {name: f"the same as {task}" for name, task in ALIASES.items()}
    return {**DESCRIPTIONS, **short, QUADRATIC: "quadratic functions without data: Figure 1, or random ones"}


def registry() -> dict[str, dict[str, str]]:
    """Every kind of name, and what each name is."""
    return {
        "rules": _rules(),
        "tasks": _tasks(),
        "participation": _PARTICIPATION,
        "selections": _SELECTIONS,
        "estimators": _ESTIMATORS,
        "memories": _MEMORIES,
    }


def known(kind: str) -> str:
    """Name everything of a kind, for the help of an option."""
    return f"Known: {', '.join(registry()[kind])}."
