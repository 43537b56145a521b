"""Every method of asynchronous servers against a few lines of its own, in time: another event loop, another state.

The reference knows how long each device works. It keeps a list of what is due, takes the next replies out of it, and
has its own local training, memory and estimate of p. The library must give the same models after every step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules
from fedstale.clock import Buffered, LogNormal
from fedstale.participation import Bernoulli, FedAUEstimator, Participation
from fedstale.simulation import TimedSimulation
from fedstale.simulation.trainers import QuadraticTrainer
from fedstale.tasks.quadratic import Quadratic

from .test_references import ALPHA, LR, START, A, Array, C, D, K, N, mean, train

STEPS = 60
Reply = tuple[int, Array, Array, int]
"""Client, Δ_i from the model it began with, the model it sends, and the step it began in."""
Method = Callable[[int, Array, list[Reply], dict[int, float]], Array]
"""From t, w, the replies of a step and their p̂: the next model."""


def fedasync(mixing: float, s: Callable[[int], float]) -> Method:
    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        for _, _, model, began in replies:
            weight = mixing * s(t - began)
            w = (1 - weight) * w + weight * model
        return w

    return step


def fedbuff(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
    return w - mean({i: update / np.sqrt(1 + t - began) for i, update, _, began in replies})


def bounded(weights: dict[int, float], most: float) -> dict[int, float]:
    return {i: weight / max(1.0, sum(weights.values()) / most) for i, weight in weights.items()}


def u_fedbuff(most: float) -> Method:
    past: dict[int, list[float]] = {}

    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        weights = {}
        for i, _, _, began in replies:
            s = 1 / np.sqrt(1 + t - began)
            weights[i] = float(ALPHA[i] / p[i] * s / np.mean(past.get(i, [s])))
            past.setdefault(i, []).append(s)
        weights = bounded(weights, most)
        return np.asarray(w - sum((weights[i] * update for i, update, *_ in replies), np.zeros(D)))

    return step


def ca2fl() -> Method:
    cached = {i: np.zeros(D) for i in range(N)}

    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        direction = mean(cached) + mean({i: update - cached[i] for i, update, *_ in replies})
        cached.update({i: update for i, update, *_ in replies})
        return w - direction

    return step


def mifa(wait: bool) -> Method:
    cached = {i: np.zeros(D) for i in range(N)}
    answered: set[int] = set()

    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        cached.update({i: update for i, update, *_ in replies})
        answered.update(i for i, *_ in replies)
        return w if wait and len(answered) < N else w - mean(cached)

    return step


def latest(max_age: float) -> Method:
    cached: dict[int, tuple[int, Array]] = {}

    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        cached.update({i: (began, update) for i, update, _, began in replies})
        return w - mean({i: update for i, (began, update) in cached.items() if t - began <= max_age})

    return step


def area() -> Method:
    models = {i: START.copy() for i in range(N)}

    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        models.update({i: model for i, _, model, _ in replies})
        return mean(models)

    return step


def ageing(beta: float, half_life: float, most: float) -> Method:
    cached: dict[int, tuple[int, Array]] = {}

    def step(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
        stale = {i: beta * 0.5 ** ((t - began) / half_life) * update for i, (began, update) in cached.items()}
        delta = sum((ALPHA[i] * old for i, old in stale.items()), np.zeros(D))
        weights = bounded({i: float(ALPHA[i] / p[i]) for i, *_ in replies}, most)
        for i, update, _, began in replies:
            delta = delta + weights[i] * (update - stale.get(i, np.zeros(D)))
            cached[i] = (began, update)
        return np.asarray(w - delta)

    return step


def anarchic(t: int, w: Array, replies: list[Reply], p: dict[int, float]) -> Array:
    return w - mean({i: update for i, update, *_ in replies})


METHODS: list[tuple[fs.Rule, Callable[[], Method]]] = [
    (rules.FedAsync(), lambda: fedasync(0.6, lambda age: (1 + age) ** -0.5)),
    (rules.FedAsync(mixing=0.9, staleness="constant"), lambda: fedasync(0.9, lambda age: 1.0)),
    (
        rules.FedAsync(staleness="hinge", slope=2.0, grace=3.0),
        lambda: fedasync(0.6, lambda age: 1.0 if age <= 3 else 1 / (2 * (age - 3) + 1)),
    ),
    (rules.FedBuff(), lambda: fedbuff),
    (rules.UnbiasedFedBuff(), lambda: u_fedbuff(1.0)),
    (rules.UnbiasedFedBuff(max_step=0.3), lambda: u_fedbuff(0.3)),
    (rules.UnbiasedFedBuff(max_step=None), lambda: u_fedbuff(np.inf)),
    (rules.CA2FL(), ca2fl),
    (rules.ACE(), lambda: latest(np.inf)),
    (rules.ACE(wait=True), lambda: mifa(wait=True)),
    (rules.ACED(max_age=4), lambda: latest(4)),
    (rules.AREA(), area),
    (rules.FedStaleAsync(beta=0.6, half_life=3.0), lambda: ageing(0.6, 3.0, 1.0)),
    (rules.FedStaleAsync(beta=0.6, half_life=0.1, max_step=0.4), lambda: ageing(0.6, 0.1, 0.4)),  # the origin moves
    (rules.FedStaleAsync(beta=0.6, half_life=3.0, max_step=None), lambda: ageing(0.6, 3.0, np.inf)),
    (rules.AFACD(), lambda: anarchic),  # delays of its own are off: the clock makes them
    (rules.AFACS(), lambda: mifa(wait=False)),
]


class Intervals:
    """p̂ = 1 / mean past interval between two steps with a client, 1 before there is one."""

    def __init__(self) -> None:
        self.gaps = dict.fromkeys(range(N), 0)
        self.past: dict[int, list[int]] = {i: [] for i in range(N)}

    def of(self, clients: list[int]) -> dict[int, float]:
        return {i: 1 / np.mean(self.past[i]) if self.past[i] else 1.0 for i in clients}  # type: ignore[misc]

    def count(self, clients: list[int]) -> None:
        for i in range(N):
            self.gaps[i] += 1
            if i in clients:
                self.past[i].append(self.gaps[i])
                self.gaps[i] = 0


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("rule", "method"), METHODS, ids=[repr(rule) for rule, _ in METHODS])
def test_in_time_against_a_few_lines(rule: fs.Rule, method: Callable[[], Method], size: int) -> None:
    simulation = TimedSimulation(
        trainer=QuadraticTrainer(Quadratic(A, C, ALPHA, START), LR, K),
        rule=rule,
        participation=Participation(Bernoulli(np.ones(N))),
        estimator=FedAUEstimator(cutoff=None),
        federation=fs.Federation(N, D, weights=ALPHA),
        rounds=STEPS,
        memory="ram:float64",
        server=Buffered(size=size),
        devices=LogNormal(spread=1.0),
    )
    speeds, vector = simulation.devices.speeds(0, N, 0), D * 8
    seconds = vector / speeds.down + K / speeds.steps + vector / speeds.up
    step, p, w = method(), Intervals(), START.copy()
    due = {i: (float(seconds[i]), (i, train(i, w), w - train(i, w), 0)) for i in range(N)}
    oldest = 0
    for t in range(STEPS):
        answered = sorted(due, key=lambda i: due[i][0])[:size]
        now = due[answered[-1]][0]
        w = step(t, w, [due[i][1] for i in answered], p.of(answered))
        p.count(answered)
        oldest = max(oldest, *(t - due[i][1][3] for i in answered))
        for i in answered:
            due[i] = (now + float(seconds[i]), (i, train(i, w), w - train(i, w), t + 1))
        record = simulation.step()
        assert record.participants.tolist() == answered
        assert simulation.model == pytest.approx(w, rel=1e-9, abs=1e-9), t
    assert oldest > 4
    assert np.linalg.norm(w - START) > 0.5


def test_an_endless_half_life_is_fedstale() -> None:
    """To rounding: the two differ in nothing but factors of 1."""
    rng = np.random.default_rng(1)
    ageing, plain = rules.FedStaleAsync(half_life=1e15, max_step=None), fs.FedStale()
    one, other = (rule.init(fs.Federation(4, 3), memory="ram:float64") for rule in (ageing, plain))
    for t in range(30):
        who = np.flatnonzero(rng.random(4) < 0.5)
        told = fs.Round(t, who, rng.normal(size=(len(who), 3)), probabilities=0.5)
        assert ageing.combine(one, told) == pytest.approx(plain.combine(other, told), rel=1e-9, abs=1e-12)


def test_area_keeps_the_exact_average_of_the_latest_models() -> None:
    rule = rules.AREA()
    rng = np.random.default_rng(2)
    model = rng.normal(size=3)
    state = rule.init(fs.Federation(4, 3), memory="ram:float64", model=model)
    latest = np.tile(model, (4, 1))
    for t in range(40):
        who = np.flatnonzero(rng.random(4) < [0.9, 0.5, 0.1, 0.1])
        sent = rng.normal(size=(len(who), 3))
        assert state.model is not None
        rule.step(state, fs.Round(t, who, state.model - sent))
        latest[who] = sent
        assert state.model == pytest.approx(latest.mean(axis=0), abs=1e-12)


@pytest.mark.parametrize("rule", [rules.UnbiasedFedBuff(), rules.FedStaleAsync(beta=0.0)], ids=repr)
def test_rare_clients_that_come_in_a_row_do_not_undo_what_everybody_has_learned(rule: fs.Rule) -> None:
    """Two clients with p = 0.1 that come in every step for a while: none of them moves the model by more than 1."""
    clients, model = 10, np.zeros(1)
    state = rule.init(fs.Federation(clients, 1), memory="ram:float64", model=model)
    for t in range(20):
        assert state.model is not None
        before = float(state.model[0])
        rule.step(state, fs.Round(t, [0, 1], np.array([[1.0], [1.0]]), probabilities=0.1))
        assert abs(float(state.model[0]) - before) <= 1.0 + 1e-12  # 2 without a bound


def test_the_staleness_functions_of_fedasync() -> None:
    ages = [0.0, 4.0, 5.0, 9.0]
    for rule, expected in (
        (rules.FedAsync(mixing=1.0, staleness="constant"), [1.0, 1.0, 1.0, 1.0]),
        (rules.FedAsync(mixing=1.0), [1.0, 5**-0.5, 6**-0.5, 10**-0.5]),
        (rules.FedAsync(mixing=1.0, staleness="hinge"), [1.0, 1.0, 1 / 11, 1 / 51]),
    ):
        for age, weight in zip(ages, expected, strict=True):
            state = rule.init(fs.Federation(2, 1))
            assert rule.combine(state, fs.Round(9, [0], [[1.0]], ages=[age])) == pytest.approx([weight])
    with pytest.raises(fs.InvalidInput, match="unknown staleness 'hing': did you mean hinge"):
        rules.FedAsync(staleness="hing")
