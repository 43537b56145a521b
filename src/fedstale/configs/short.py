"""The short forms that settings use, `rule = "fedstale"`, `beta = "auto"`, `participation = "two-groups"`.

They stand for an object where they say all of it, so that a run is the same run however it was asked for; otherwise the
object's config (`objects`) stands in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from .. import beta as betas
from .. import participation as who
from .. import rules
from ..checks import InvalidInput, fail
from ..tasks.quadratic import Quadratic
from .objects import Config, from_config, same, text, to_config, whole, written_fields


def short_beta(beta: Any) -> Config:
    """β as a setting: a number, a name or a table where they say all of it."""
    made = betas.make(beta)
    if isinstance(made, betas.Constant):
        return float(made.beta)
    if isinstance(made, betas.Schedule) and isinstance(made.points, Mapping):
        return to_config(made.points)
    named = [name for name, kind in betas.NAMES.items() if same(made, kind())]
    return named[0] if named else to_config(made)


def short_rule(rule: rules.Rule) -> dict[str, Config]:
    """A rule as the settings `rule`, `beta`, `rule_options`, `server_lr`, `clip_norm`, `max_weight`.

    Bounds inside a server optimiser are the same as around it, and the η_s of a rule inside one is not used. What these
    settings cannot say (a rule that is guarded twice or robust, a server Adam with η_s = 1) is one config, as `rule`.
    """
    config = to_config(rule)
    base, wrappers = rule, list[rules.Guarded | rules.ServerOptimizer]()
    while isinstance(base, (rules.Guarded, rules.ServerOptimizer)):
        wrappers.append(base)
        base = base.rule
    guards = [outer for outer in wrappers if isinstance(outer, rules.Guarded)]
    optimizers = [outer for outer in wrappers if isinstance(outer, rules.ServerOptimizer)]
    outermost: rules.Rule = optimizers[0] if optimizers else base
    usual_lr = next((field.default for field in fields(outermost) if field.name == "server_lr"), 1.0)
    cannot = isinstance(base, rules.WrappedRule) or max(len(guards), len(optimizers)) > 1
    if cannot or not whole(config) or (outermost.server_lr == 1.0 and usual_lr != 1.0):
        return {"rule": config}
    options: dict[str, Config] = {}
    for part in (base, *optimizers):
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name not in ("rule", "server_lr") and (value != field.default or field.name == "seed"):
                options[field.name] = to_config(value)
    short: dict[str, Config] = {"rule": outermost.name, "rule_options": options}
    options.pop("beta", None)
    if isinstance(base, (rules.FedStale, rules.TemperedFedStale)):
        beta = short_beta(base.beta)
        if type(base) is rules.FedStale or beta != type(base).beta:  # U-FedVARP with β = 1 goes without saying
            short["beta"] = beta
    if outermost.server_lr != usual_lr:
        short["server_lr"] = outermost.server_lr
    bounds = {name: getattr(guard, name) for guard in guards for name in ("clip_norm", "max_weight")}
    return short | {name: value for name, value in bounds.items() if value is not None}


def rule_of(
    rule: Config,
    beta: Config = None,
    rule_options: Mapping[str, Config] | None = None,
    server_lr: float = 1.0,
    clip_norm: float | None = None,
    max_weight: float | None = None,
    seed: int = 0,
) -> rules.Rule:
    """Make the rule of the settings; β goes to a rule that has one, the seed to one that draws numbers."""
    if not isinstance(rule, str):
        made = from_config(rule, "rule")
        if not isinstance(made, rules.Rule):
            raise fail("rule", text(rule), "must be a rule such as FedStale")
        return rules.guard(made, clip_norm, max_weight)
    options = {name: from_config(value, "rule") for name, value in (rule_options or {}).items()}
    for name in ("beta", "server_lr"):
        if name in options:
            raise fail("rule_options", options, f"{name} is a setting of its own")
    if server_lr != 1.0:
        options["server_lr"] = server_lr
    if beta is not None:
        options["beta"] = from_config(beta, "rule")
    kind = rules.RULES.get(rule.partition("+")[0])
    if kind is not None and any(field.name == "seed" for field in fields(kind)):
        options.setdefault("seed", seed)
    return rules.guard(rules.make(rule, **options), clip_norm, max_weight)


def short_process(process: who.Process) -> Config:
    """A process as the setting `participation`: the paper's two groups by their name, any other as its config."""
    if isinstance(process, who.Bernoulli) and process.labels is not None:
        p_min = float(np.min(process.p))
        if same(process, who.Bernoulli.two_groups(process.num_clients, p_min)):
            return "two-groups"
    return to_config(process)


def short_selection(selection: who.Selection) -> dict[str, Config]:
    """A selection as the settings `selection` and `selection_options`."""
    for name, kind in who.SELECTIONS.items():
        if type(selection) is kind:
            return {"selection": name, "selection_options": written_fields(selection)}
    return {"selection": to_config(selection)}


def short_estimator(estimator: who.Estimator) -> Config:
    """An estimator as the setting `probabilities`: its name where that says all, else its config."""
    for name, kind in who.ESTIMATORS.items():
        if name != "known" and same(estimator, kind()):
            return name
    return to_config(estimator)


def short_task(task: Any) -> Config:
    """A task as the setting `task`; of one with data only the name and a fingerprint are written."""
    if isinstance(task, Quadratic) and same(task, Quadratic.figure1()):
        return "quadratic"
    return to_config(task)


def canonical(record: Mapping[str, Config]) -> dict[str, Config]:
    """The settings of a run as they would be had it been asked for by objects: equal runs have equal ones.

    By name or as an object, with an option at its default or without: `FedStale(beta="auto")` is rule = "fedstale".
    """
    found = dict(record)
    if isinstance(record.get("rule"), str):
        names = ("rule", "beta", "rule_options", "server_lr", "clip_norm", "max_weight", "seed")
        try:
            rule = rule_of(**{name: record[name] for name in names if name in record})
        except (InvalidInput, TypeError):  # a rule that this version does not know is equal to itself alone
            return found
        found = {name: value for name, value in found.items() if name not in names or name == "seed"}
        found |= short_rule(rule)
    return found
