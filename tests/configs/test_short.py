"""The short forms of settings say all of an object, or its config stands in their place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale import beta, rules
from fedstale.configs import (
    canonical,
    from_config,
    rule_of,
    same,
    short_beta,
    short_estimator,
    short_process,
    short_rule,
    short_selection,
)
from fedstale.participation import (
    Bernoulli,
    BetaFrequency,
    FedAUEstimator,
    Forgetting,
    KnownProbabilities,
    Markov,
    UniformSample,
)

from .objects import any_beta, any_rule, estimators


def essence(rule: fs.Rule) -> dict[str, Any]:
    """What a rule computes with: bounds are the same inside and around an optimiser, η_s counts once."""
    found: dict[str, Any] = {"bounds": [], "optimizer": None, "server_lr": rule.server_lr}
    while isinstance(rule, (rules.Guarded, rules.ServerOptimizer)):
        if isinstance(rule, rules.Guarded):
            bounds = rule.clip_norm, rule.max_weight
            found["bounds"] += [bounds] if bounds != (None, None) else []
        else:
            found["optimizer"] = replace(rule, rule=fs.FedAvg())
        rule = rule.rule
    if isinstance(rule, fs.FedStale):
        found["beta"] = beta.make(rule.beta)
        rule = replace(rule, beta=0.5)
    return found | {"base": replace(rule, server_lr=1.0)}


@given(any_rule)
def test_a_rule_as_settings_is_the_rule(rule: fs.Rule) -> None:
    short = json.loads(json.dumps(short_rule(rule)))
    again = rule_of(**short, seed=7)
    assert essence(again) == essence(rule)
    assert again.name == rule.name
    assert short_rule(again) == short


@given(any_beta)
def test_a_beta_as_a_setting_is_the_beta(value: Any) -> None:
    again = beta.make(from_config(json.loads(json.dumps(short_beta(value)))))
    assert same(again, beta.make(value)) or again == beta.make(value)


@given(st.one_of(*estimators.values()))
def test_an_estimator_as_a_setting_is_the_estimator(value: Any) -> None:
    short = short_estimator(value)
    if not isinstance(short, str):
        assert same(from_config(short), value)


def test_short_where_that_says_all() -> None:
    assert short_rule(fs.FedStale()) == {"rule": "fedstale", "beta": "auto", "rule_options": {}}
    assert short_rule(fs.FedStale(beta=beta.Constant(0.5), server_lr=0.3)) == {
        "rule": "fedstale",
        "beta": 0.5,
        "server_lr": 0.3,
        "rule_options": {},
    }
    bounded = {"rule": "fedstale+adam", "beta": "auto", "rule_options": {"tau": 0.1}, "clip_norm": 2.0}
    assert short_rule(rules.ServerAdam(rules.Guarded(fs.FedStale(), clip_norm=2.0), tau=0.1)) == bounded
    assert short_rule(rules.Guarded(rules.ServerAdam(fs.FedStale(server_lr=9.0), tau=0.1), clip_norm=2.0)) == bounded
    assert short_rule(rules.SCSG())["rule_options"] == {"seed": 0}  # else it would be the run's
    assert short_rule(rules.ServerAdam(server_lr=1.0))["rule"]["class"] == "ServerAdam"  # 1 means "its own" there
    assert short_beta({10: 1, 0: 0}) == {"0": 0, "10": 1}
    assert short_beta(beta.Auto(forget=0.9)) == {"class": "Auto", "forget": 0.9, "start": 0.0}
    assert short_process(Bernoulli.two_groups(6, 0.1)) == "two-groups"
    assert short_process(Bernoulli([1.0, 0.1]))["class"] == "Bernoulli"  # its groups are read off p
    assert short_process(Markov([1.0, 0.1], 0.5))["correlation"] == [0.5, 0.5]
    assert short_selection(UniformSample(3)) == {"selection": "uniform", "selection_options": {"m": 3}}
    names = [short_estimator(one) for one in (FedAUEstimator(), FedAUEstimator(None), BetaFrequency(), Forgetting())]
    assert names == ["fedau", "fedau-nocutoff", "beta", "forgetting"]
    assert short_estimator(FedAUEstimator(9)) == {"class": "FedAUEstimator", "cutoff": 9}
    assert short_estimator(KnownProbabilities(np.array([0.5, 0.1]))) == {"class": "KnownProbabilities", "p": [0.5, 0.1]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"rule": "fedstale"}, {"rule": "fedstale", "beta": "auto", "clip_norm": None}),
        ({"rule": "fedstale", "beta": "0.5"}, {"rule": "fedstale", "beta": 0.5}),
        ({"rule": "fedprox"}, {"rule": "fedprox", "rule_options": {"mu": 0.1}}),
        ({"rule": "scsg", "seed": 3}, {"rule": "scsg", "seed": 3, "rule_options": {"seed": 3}}),
        ({"rule": "u-fedvarp"}, {"rule": "u-fedvarp", "beta": 1.0}),
    ],
)
def test_the_same_run_in_other_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) == canonical(other)


def test_other_runs_stay_apart() -> None:
    records: list[dict[str, Any]] = [
        {"rule": "fedstale"},
        {"rule": "fedstale", "beta": {"0": 0, "10": 1}},
        {"rule": "fedstale", "beta": {"class": "Auto", "forget": 0.9}},
        {"rule": "fedstale", "clip_norm": 2.0},
        {"rule": "scsg", "seed": 3},
        {"rule": "scsg", "seed": 3, "rule_options": {"seed": 0}},
        {"rule": "of a later version", "beta": 3},
    ]
    assert len({json.dumps(canonical(record), sort_keys=True) for record in records}) == len(records)
