"""The shared test: what every rule must do, whatever its equation. A new rule adds one line to `RULES`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale import participation, rules, theta
from fedstale.rules import ServerAdaptive
from tests.combinations import combinations
from tests.everything import everything

N, D, ROUNDS = 6, 50, 24

RULES: list[fs.Rule] = [
    fs.FedAvg(),
    fs.UnbiasedFedAvg(),
    fs.FedVARP(),
    fs.UnbiasedFedVARP(),
    fs.FedStale(beta=0.5),
    fs.FedStale(beta={0: 0.0, 20: 1.0}),
    fs.FedStale(beta="auto"),
    fs.FedStale(beta="auto-per-client"),
    fs.FedStale(beta="theory"),
    rules.TemperedFedStale(),
    rules.TemperedFedStale(theta=0.5, refresh=0.25, beta="auto"),
    rules.TemperedFedStale(theta=theta.AutoTheta(sample=7), refresh=0.0, self_normalised=True),
    rules.FedSteer(),
    rules.UnbiasedFedSteer(core=3, ridge=0.5),
    rules.CAFed(),
    rules.FedAMD(anchors=0.5),
    rules.FedAU(cutoff=4),
    rules.FedAU(cutoff=None),
    rules.MIFA(),
    rules.WaitingMIFA(),
    rules.FedLaAvg(),
    rules.FedAWE(),
    rules.AFACD(max_delay=3),
    rules.AFACS(max_delay=3),
    rules.FedAsync(prox=0.1),
    rules.FedAsync(staleness="hinge"),
    rules.FedBuff(),
    rules.UnbiasedFedBuff(),
    rules.CA2FL(),
    rules.ACE(),
    rules.ACE(wait=True),
    rules.ACED(max_age=2),
    rules.AREA(),
    rules.FedStaleAsync(half_life=0.1),  # the origin of the masses moves every few rounds
    rules.FedStaleAsync(beta=0.5),
    rules.Scaffold(),
    rules.Scaffold(option="I"),
    rules.SVRG(period=3),
    rules.SCSG(period=3, share=0.5),
    rules.SARAH(period=3),
    rules.SPIDER(period=3, share=0.5, clip=2.0),
    rules.FedProx(),
    rules.FedDyn(),
    rules.ServerMomentum(fs.FedStale(beta=0.5)),
    rules.ServerAdagrad(rules.MIFA()),
    rules.ServerAdam(fs.FedStale()),
    rules.ServerYogi(rules.Scaffold()),
    rules.ServerAdam(rules.ServerMomentum(fs.FedStale(beta="auto-per-client"))),
    rules.ServerMomentum(rules.Guarded(rules.ServerMomentum(rules.SVRG(period=3)), max_weight=5.0)),
]
ROWS = ["ram", "ram:float64", "ram:float16", "ram:bfloat16", "disk:{}", "disk:{}:bfloat16"]
MEMORIES = [*ROWS, "clustered:3", "clustered:3:bfloat16", "lowrank:2", "lowrank:3:float64"]
PLAIN = ["ram", "disk:{}", "clustered:3", "lowrank:2"]
FIRST_STEP = {"feddyn": 6.0, "spider": 2.0, "fedasync": 1.8, "fedamd": 0.0}
# FedDyn: mean + h/a, both 3; SPIDER: clipped; FedAMD: all are anchors

every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)


def memories(rule: fs.Rule, names: list[str]) -> list[str]:
    """The memories that make a difference to a rule: clients keep their rows themselves, so those are never cut."""
    return names if rule.memory else [name for name in names if name in ROWS] if rule.client_memory else ["ram"]


def history(t: int, dtype: Any = np.float32) -> fs.Round:
    """Round t of a fixed random history; round 5 is empty, client 5 is first seen late."""
    rng = np.random.default_rng([9, t])
    p = np.array([1.0, 0.8, 0.6, 0.5, 0.4, 0.1])
    who = np.flatnonzero(rng.random(N) < p)
    who = who[:0] if t == 5 else who[who != 5] if t < 10 else who
    updates, again = rng.normal(size=(2, len(who), D)).astype(dtype) + dtype(1)
    ages = np.minimum(rng.integers(0, 4, len(who)), t)
    return fs.Round(t, who, updates, probabilities=p[who], steps=1 + who % 3, lr=0.1, second_pass=again, ages=ages)


def advance(rule: fs.Rule, state: fs.State, first: int, last: int) -> list[NDArray[Any]]:
    return [np.array(rule.step(state, history(t))) for t in range(first, last)]


def start(rule: fs.Rule, memory: str = "ram") -> fs.State:
    return rule.init(fs.Federation(N, D), memory=memory, model=np.zeros(D, np.float32))


def every_pair(among: list[str], shift: int = 0) -> list[Any]:
    """Every rule with every memory; by default one rule with all of them, every other with one, each in its turn."""
    every = fs.FedStale(beta="auto-per-client")
    made = []
    for number, rule in enumerate(RULES):
        names = memories(rule, among)
        turn = [name for name in PLAIN if name in names]
        own = names if rule == every else [turn[(number + shift) % len(turn)]]
        made += [pytest.param(rule, name, marks=() if name in own else pytest.mark.slow) for name in names]
    return made


@pytest.mark.parametrize(("rule", "memory"), every_pair(MEMORIES), ids=repr)
def test_save_and_load_in_the_middle_changes_no_bit(rule: fs.Rule, memory: str, tmp_path: Path) -> None:
    whole = start(rule, memory.format(tmp_path / "whole"))
    expected = advance(rule, whole, 0, ROUNDS)

    state = start(rule, memory.format(tmp_path / "cut"))
    got = advance(rule, state, 0, 7)
    for first in range(7, ROUNDS, 3):  # save after every third round, each time into a new process' state
        state.save(tmp_path / "checkpoint")
        state.close()
        state = fs.State.load(tmp_path / "checkpoint")
        got += advance(rule, state, first, min(first + 3, ROUNDS))

    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))
    assert everything(whole) == everything(state)


@pytest.mark.parametrize(("rule", "memory"), every_pair(PLAIN, shift=1), ids=repr)
def test_going_on_after_a_save_and_coming_back_to_it(rule: fs.Rule, memory: str, tmp_path: Path) -> None:
    """What happens after a checkpoint never reaches it: a crash falls back to exactly what was saved."""
    state = start(rule, memory.format(tmp_path / "rows"))
    advance(rule, state, 0, 10)
    state.save(tmp_path / "checkpoint")
    expected = advance(rule, state, 10, ROUNDS)
    state.close()
    again = fs.State.load(tmp_path / "checkpoint")
    assert again.round == 10
    assert all(np.array_equal(a, b) for a, b in zip(expected, advance(rule, again, 10, ROUNDS), strict=True))


ESTIMATORS: list[participation.Estimator] = [
    participation.KnownProbabilities(0.5),
    participation.FedAUEstimator(cutoff=3),
    participation.FedAUEstimator(cutoff=None),
    participation.BetaFrequency(),
    participation.Forgetting(decay=0.9),
    participation.DailyFrequency(period=4, bins=2),
]


@pytest.mark.parametrize(
    ("rule", "memory", "estimator"),
    combinations([rule for rule in RULES if rule.unbiased], ["disk:{}", "ram"], ESTIMATORS),
    ids=repr,
)
def test_estimated_probabilities_survive_a_save(
    rule: fs.Rule, estimator: participation.Estimator, memory: str, tmp_path: Path
) -> None:
    def advance(state: fs.State, first: int, last: int) -> list[NDArray[Any]]:
        result = []
        for t in range(first, last):
            assert state.estimator is not None
            told = history(t)
            p = estimator.probabilities(state.estimator, told.clients)
            result.append(np.array(rule.step(state, fs.Round(t, told.clients, told.updates, probabilities=p))))
            estimator.observe(state.estimator, told.clients, t)
        return result

    whole = start(rule, memory.format(tmp_path / "whole"))
    cut = start(rule, memory.format(tmp_path / "cut"))
    whole.estimator, cut.estimator = estimator.init(N), estimator.init(N)
    expected, got = advance(whole, 0, 20), advance(cut, 0, 9)
    cut.save(tmp_path / "checkpoint")
    cut.close()
    got += advance(fs.State.load(tmp_path / "checkpoint"), 9, 20)
    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))


@every_rule
def test_disk_equals_ram(rule: fs.Rule, tmp_path: Path) -> None:
    ram, disk = start(rule), start(rule, f"disk:{tmp_path}")
    pairs = zip(advance(rule, ram, 0, ROUNDS), advance(rule, disk, 0, ROUNDS), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@every_rule
def test_a_refused_round_changes_nothing(rule: fs.Rule) -> None:
    state = start(rule)
    advance(rule, state, 0, 8)
    before = everything(state)
    for bad in (np.nan, np.inf, -np.inf):
        updates = np.ones((3, D), np.float32)
        updates[1, D - 1] = bad
        with pytest.raises(fs.InvalidInput, match=r"client 4.*finite"):
            rule.step(state, fs.Round(8, [0, 4, 2], updates, probabilities=0.5, lr=0.1, steps=5, second_pass=updates))
    assert everything(state) == before


@every_rule
def test_empty_rounds_and_unseen_clients(rule: fs.Rule) -> None:
    state = rule.init(fs.Federation(N, D), model=np.zeros(D))
    assert rule.step(state, fs.Round(0, [], np.empty((0, D)))) == pytest.approx(np.zeros(D))
    more: dict[str, Any] = {"lr": 0.1, "steps": 5}
    rule.step(state, fs.Round(1, [3], np.ones((1, D)), probabilities=0.5, second_pass=np.ones((1, D)), **more))
    rule.step(
        state, fs.Round(5, [5, 3], np.ones((2, D)), probabilities=[0.1, 0.5], second_pass=np.ones((2, D)), **more)
    )
    assert np.isfinite(np.asarray(rule.combine(state, fs.Round(6, [], [])))).all()
    assert list(state.last_seen) == [-1, -1, -1, 5, -1, 5]


@every_rule
def test_one_client_alone(rule: fs.Rule) -> None:
    state = rule.init(fs.Federation(1, 1))
    update = np.array([[3.0]])
    told = fs.Round(0, [0], update, probabilities=1.0, lr=0.1, steps=5, second_pass=update)
    first = rule.combine(state, told)
    if isinstance(rule, ServerAdaptive):
        m, v = (1 - rule.beta1) * 3.0, rule.second_moment(np.array([1e-6]), np.array([9.0]))
        assert first == pytest.approx(m / (np.sqrt(v) + 1e-3))
    else:
        assert first == pytest.approx([FIRST_STEP.get(rule.name, 3.0)])


@every_rule
def test_a_rule_refuses_the_state_of_another(rule: fs.Rule) -> None:
    state = start(rule)
    state.rule = "other"
    with pytest.raises(fs.InvalidInput, match="continues only its own state"):
        rule.combine(state, fs.Round(0, [], []))


def test_every_registered_rule_is_covered_and_made_by_name() -> None:
    assert {rule.name for rule in RULES if "+" not in rule.name} == set(rules.RULES)
    assert {kind for rule in RULES for kind in rule.name.split("+")[1:]} == set(rules.OPTIMIZERS)
    for name in [*rules.RULES, "fedstale+adam", "scaffold+momentum", "fedstale+momentum+adam"]:
        assert rules.make(name).name == name


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.memory], ids=repr)
def test_a_million_clients_cost_only_those_seen(rule: fs.Rule) -> None:
    state = rule.init(fs.Federation(1_000_000, D))
    who = np.array([3, 999_999])
    for t in range(5):
        rule.combine(state, fs.Round(t, who, np.ones((2, D), np.float32), probabilities=0.5))
    assert state.memory.nbytes == 2 * D * 4
