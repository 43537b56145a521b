"""Every wrong call names the argument, the value and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules
from tests.everything import everything

D = 3


def combine(clients: Any = (0, 1), updates: Any = None, p: Any = 0.5, index: int = 0) -> None:
    rule = fs.FedStale(beta=0.5)
    state = rule.init(fs.Federation(4, D))
    rule.combine(
        state,
        fs.Round(index, list(clients), np.ones((2, D)) if updates is None else updates, probabilities=p),
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: combine(p=0.0), r"probabilities\[0\] = 0.0: probabilities must lie in \(0, 1\]"),
        (lambda: combine(p=[0.5, 1.2]), r"probabilities\[1\] = 1.2"),
        (lambda: combine(p=[0.5, np.nan]), r"probabilities\[1\] = nan"),
        (lambda: combine(p=[0.5]), r"probabilities = .*shape \(1,\).*must be of shape \(2,\)"),
        (lambda: combine(p=None), "probabilities = None: this rule divides by p_i"),
        (lambda: combine(clients=(0, 4)), r"clients\[1\] = 4: client indices must lie in 0 … 3"),
        (lambda: combine(clients=(-1, 0)), r"clients\[0\] = -1"),
        (lambda: combine(clients=(2, 2)), "clients = 2: a client may take part only once"),
        (lambda: combine(clients=(0.5, 1.0)), "clients = .*integers"),
        (lambda: combine(updates=np.ones((2, 4))), r"updates = .*\(2, 4\).*must have shape \(2, 3\)"),
        (lambda: combine(updates=np.ones((3, D))), r"must have shape \(2, 3\)"),
        (lambda: combine(updates=[np.ones(D)]), "updates = '1 rows'"),
        (lambda: combine(updates=[np.ones(D), np.ones(2)]), r"updates\[1\]"),
        (lambda: combine(updates=np.ones((2, D), int)), "floating-point"),
        (lambda: combine(index=-1), "index = -1"),
        (lambda: fs.FedStale(beta=1.5), r"beta = 1.5: must be a finite number in \[0, 1\]"),
        (lambda: fs.FedStale(beta=-0.1), "beta = -0.1"),
        (lambda: fs.FedStale(beta=float("nan")), "beta = nan"),
        (lambda: fs.FedStale(beta="1.5"), "beta = 1.5"),
        (lambda: fs.FedStale(beta="atuo"), "unknown beta 'atuo': did you mean auto"),
        (lambda: fs.FedStale(beta={0: 2.0}), "beta of round 0 = 2.0"),
        (lambda: fs.FedStale(beta={}), "at least one"),
        (lambda: fs.FedAvg(server_lr=0.0), "server_lr = 0.0"),
        (lambda: fs.Federation(0, 3), "num_clients = 0: must be an integer of at least 1"),
        (lambda: fs.Federation(3, -1), "num_params = -1"),
        (lambda: fs.Federation(3, True), "num_params = True"),
        (lambda: fs.Federation(2, 3, weights=[0.5, 0.6]), "weights = 1.1: .*sum to 1"),
        (lambda: fs.Federation(2, 3, weights=[-0.5, 1.5]), "non-negative"),
        (lambda: fs.Federation(2, 3, weights=[1.0]), r"must be of shape \(2,\)"),
        (lambda: fs.Federation(2, 3, weights="samples"), "weights = 'samples'"),
        (lambda: fs.Federation(2, 3, weights="sample"), "sizes = None"),
        (lambda: fs.Federation(2, 3, sizes=[0, 0]), "not all zero"),
        (lambda: fs.Federation(2, 3, probabilities=[0.5, 0.0]), r"probabilities\[1\] = 0.0"),
        (lambda: fs.Federation(2, 3).grown(1), "does not shrink"),
        (lambda: rules.make("fedstal"), "unknown rule 'fedstal': did you mean fedstale"),
        (lambda: rules.make("fedavg", beta=0.5), "beta = 0.5: fedavg takes server_lr"),
        (
            lambda: fs.FedAvg().init(fs.Federation(2, 3), model=np.zeros(4)),
            r"model = .*must have shape \(3,\)",
        ),
        (lambda: fs.FedStale().init(fs.Federation(2, 3), memory="rom"), "memory = 'rom': must be \"ram\""),
        (lambda: fs.FedStale().init(fs.Federation(2, 3), memory="ram:float8"), "unknown precision 'float8'"),
    ],
)
def test_message(call: Any, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        call()


def test_a_round_is_not_applied_twice() -> None:
    rule = fs.FedAvg()
    state = rule.init(fs.Federation(2, D))
    rule.combine(state, fs.Round(3, [0], np.ones((1, D))))
    with pytest.raises(fs.InvalidInput, match="index = 3: rounds before 4 have already been applied"):
        rule.combine(state, fs.Round(3, [0], np.ones((1, D))))


def test_a_sum_that_overflows_is_refused() -> None:
    rule = fs.UnbiasedFedAvg()
    state = rule.init(fs.Federation(2, 1))
    with pytest.raises(fs.InvalidInput, match="overflows"):
        rule.combine(state, fs.Round(0, [0, 1], np.full((2, 1), 1.7e308), probabilities=0.1))


WEIGHTED: list[fs.Rule] = [fs.FedStale(beta=0.5), fs.FedStale(beta="auto-per-client"), fs.UnbiasedFedAvg()]
AVERAGED: list[fs.Rule] = [fs.FedVARP(), rules.MIFA()]  # a mean of finite numbers is finite


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        *((rule, bad) for rule in (*WEIGHTED, *AVERAGED) for bad in (np.nan, np.inf)),
        *((rule, 1e308) for rule in WEIGHTED),
    ],
    ids=repr,
)
def test_a_refused_round_leaves_the_memory_as_it_was(rule: fs.Rule, bad: float) -> None:
    """Rules look at the weighted sum, after the new rows are staged and before they are made current."""
    state = rule.init(fs.Federation(3, 2, probabilities=0.01), memory="ram:float64", model=np.zeros(2))
    rule.step(state, fs.Round(0, [0, 1], np.ones((2, 2))))
    before = everything(state)
    with pytest.raises(fs.InvalidInput):
        rule.step(state, fs.Round(1, [0, 1, 2], np.array([[1.0, 2.0], [bad, 1.0], [bad, 3.0]])))
    assert everything(state) == before


def test_the_beta_of_a_state_is_named() -> None:
    state = fs.FedStale(beta="auto-per-client").init(fs.Federation(2, 2))
    with pytest.raises(fs.InvalidInput, match="the state was made with a β for each client"):
        fs.FedStale(beta=0.5).combine(state, fs.Round(0, [0], np.ones((1, 2)), probabilities=0.5))
    state = fs.FedStale(beta=0.5).init(fs.Federation(2, 2))
    with pytest.raises(fs.InvalidInput, match="the state was made with one β for all clients"):
        fs.FedStale(beta="auto-per-client").combine(state, fs.Round(0, [0], np.ones((1, 2)), probabilities=0.5))


@pytest.mark.parametrize("rule", [fs.FedStale, fs.UnbiasedFedVARP, fs.TemperedFedStale, rules.MIFA])
def test_every_rule_checks_its_server_rate(rule: type[fs.Rule]) -> None:
    with pytest.raises(fs.InvalidInput, match=r"^server_lr = -1\.0"):
        rule(server_lr=-1.0)


def test_steps_without_a_model() -> None:
    rule = fs.FedAvg()
    with pytest.raises(fs.InvalidInput, match="model = None"):
        rule.step(rule.init(fs.Federation(2, 1)), fs.Round(0, [], []))
