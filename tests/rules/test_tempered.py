"""The tempered family: its special cases to the bit, its bias and noise by enumeration, where it comes to rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules, theory
from fedstale.checks import InvalidInput
from fedstale.rules.tempered import TemperedState
from tests.combinations import combinations
from tests.enumeration import Array, outcomes

N, D = 5, 7
P = np.array([1.0, 0.7, 0.4, 0.2, 0.05])
ALPHA = np.array([0.3, 0.1, 0.2, 0.15, 0.25])
UPDATES = np.random.default_rng(11).normal(size=(N, D))
MEMORIES = ["ram", "ram:float64", "ram:bfloat16", "disk", "clustered:2", "lowrank:3"]


def history(t: int) -> fs.Round:
    rng = np.random.default_rng([4, t])
    who = np.flatnonzero(rng.random(N) < P) if t != 6 else np.empty(0, dtype=np.int64)
    return fs.Round(t, who, rng.normal(size=(len(who), D)).astype(np.float32) + np.float32(1), probabilities=P[who])


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"theta": 1.0, "beta": 0.3}, fs.FedStale(beta=0.3)),
        ({"theta": 1.0, "beta": "auto"}, fs.FedStale(beta="auto")),
        ({"theta": 1.0, "beta": {0: 0.0, 9: 1.0}}, fs.FedStale(beta={0: 0.0, 9: 1.0})),
        ({"theta": 1.0, "beta": 0.0}, fs.UnbiasedFedAvg()),
        ({"theta": 1.0, "beta": 1.0}, fs.UnbiasedFedVARP()),
        ({"theta": 0.0, "beta": 1.0}, rules.MIFA()),
    ],
    ids=repr,
)
def test_special_cases_to_the_bit(options: dict[str, object], other: fs.Rule, memory: str, tmp_path: object) -> None:
    if memory == "disk":
        memory = f"disk:{tmp_path}/{{}}"
    made = fs.Federation(N, D, weights=ALPHA)
    rule = rules.TemperedFedStale(refresh=1.0, stand_in=False, **options)  # type: ignore[arg-type]
    one, two = rule.init(made, memory=memory.format("a")), other.init(made, memory=memory.format("b"))
    for t in range(20):
        assert np.array_equal(rule.combine(one, history(t)), other.combine(two, history(t))), t
    one.close()
    two.close()


def prepared(rule: fs.Rule, memory: str = "ram:float64") -> Callable[[], fs.State]:
    def prepare() -> fs.State:
        state = rule.init(fs.Federation(N, D, weights=ALPHA), memory=memory)
        for t in range(9):
            rule.combine(state, history(t))
        return state

    return prepare


@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(("beta", "refresh"), combinations([0.6, 0.0, 1.0], [0.5, 1.0, 0.0]))
def test_bias_and_noise_are_those_of_the_theory(theta: float, beta: float, refresh: float) -> None:
    rule = rules.TemperedFedStale(theta=theta, beta=beta, refresh=refresh, stand_in=False)
    prepare = prepared(rule)
    predicted = beta * prepare().memory.rows(np.arange(N))
    found = list(outcomes(rule, prepare, UPDATES, P))
    mean: Array = np.sum([chance * delta for chance, delta in found], axis=0)
    noise = sum(chance * float(np.sum((delta - mean) ** 2)) for chance, delta in found)
    given = (UPDATES, predicted, P, ALPHA, theta)
    assert mean - ALPHA @ UPDATES == pytest.approx(theory.tempered_bias(*given), abs=1e-12)
    assert noise == pytest.approx(theory.tempered_noise(*given), rel=1e-10)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"shapes \(5, 7\), \(4, 7\), \(5,\)"):
        theory.tempered_bias(UPDATES, UPDATES[:4], P, ALPHA, 0.5)


def test_bias_vanishes_where_the_memory_is_right() -> None:
    assert theory.tempered_bias(UPDATES, UPDATES, P, ALPHA, 0.2) == pytest.approx(np.zeros(D))
    assert theory.tempered_noise(UPDATES, UPDATES, P, ALPHA, 0.2) == 0.0


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_comes_to_rest_at_the_optimum_and_fedavg_does_not(theta: float) -> None:
    """Quadratics F_i = ½‖w − x_i‖² with exact gradients: only a rule without lasting bias stops at Σ α_i x_i."""
    rng = np.random.default_rng(0)
    optima, p = rng.normal(size=(N, 2)), np.array([1.0, 0.9, 0.5, 0.3, 0.2])

    def end(rule: fs.Rule) -> float:
        state, w = rule.init(fs.Federation(N, 2)), np.zeros(2)
        for t in range(1000):
            who = np.flatnonzero(np.random.default_rng([t, 1]).random(N) < p)
            w = w - rule.combine(state, fs.Round(t, who, 0.05 * (w - optima[who]), probabilities=p[who]))
        return float(np.linalg.norm(w - optima.mean(0)))

    assert end(rules.TemperedFedStale(theta=theta)) < 1e-6
    assert end(fs.FedAvg()) > 0.05


@pytest.mark.parametrize("memory", ["ram:float64", "ram", "ram:bfloat16", "lowrank:5:float64"])
def test_memory_is_the_running_mean(memory: str) -> None:
    rule = rules.TemperedFedStale(theta=0.5, refresh=0.3)
    state, expected, visits = rule.init(fs.Federation(N, D), memory=memory), np.zeros((N, D)), np.zeros(N)
    for t in range(30):
        round = history(t)
        rule.combine(state, round)
        for client, update in zip(np.asarray(round.clients), round.updates, strict=True):
            visits[client] += 1
            expected[client] += max(1 / visits[client], 0.3) * (update - expected[client])
    tolerance = {"ram:float64": 1e-12, "ram": 1e-5, "ram:bfloat16": 0.1, "lowrank:5:float64": 1e-6}[memory]
    assert state.memory.rows(np.arange(N)) == pytest.approx(expected, abs=tolerance)
    assert state.memory.total == pytest.approx(state.memory.exact_total(), abs=1e-12)


def test_self_normalised_weights_sum_to_one() -> None:
    rule = rules.TemperedFedStale(theta=1.0, beta=0.0, self_normalised=True)
    state = rule.init(fs.Federation(N, D))
    round = history(0)
    weights = 1 / P[np.asarray(round.clients)]
    expected = weights / weights.sum() @ np.asarray(round.updates)
    assert rule.combine(state, round) == pytest.approx(expected, rel=1e-6)


def test_self_normalised_weights_of_clients_that_count_nothing_stay_nothing() -> None:
    rule = rules.TemperedFedStale(theta=1.0, self_normalised=True)
    state = rule.init(fs.Federation(2, D, weights=[0.0, 1.0]))
    assert (rule.combine(state, fs.Round(0, [0], np.ones((1, D)), probabilities=[0.5])) == 0.0).all()


def test_reports_its_choices_and_counts_visits() -> None:
    rule = rules.TemperedFedStale(theta=0.25, beta=0.75)
    state = rule.init(fs.Federation(N, D))
    for t in range(2):
        rule.combine(state, history(t))
    assert state.report == {"beta": 0.75, "theta": 0.25}
    visits = state.own(TemperedState).visits
    assert visits.dtype == np.int64
    assert visits.sum() == sum(len(np.asarray(history(t).clients)) for t in range(2))


@pytest.mark.parametrize("theta", [0.0, 0.5, "auto"])
def test_steps_are_whole_from_the_first_round_on_where_the_server_asks_few(theta: float | str) -> None:
    """m of N clients a round, so that p = m/N, who all say the same: so does every update."""
    rule, n, m = rules.TemperedFedStale(theta=theta), 40, 4
    state = rule.init(fs.Federation(n, D))
    for t in range(40):
        who = np.sort(np.random.default_rng([8, t]).choice(n, m, replace=False)) if t != 5 else np.empty(0, int)
        delta = rule.combine(state, fs.Round(t, who, np.ones((len(who), D)), probabilities=m / n))
        assert delta == pytest.approx(np.ones(D), rel=1e-6), t


def test_newcomers_stand_in_for_all_who_have_not_come_and_the_mean_of_the_others_where_there_are_none() -> None:
    rule = rules.TemperedFedStale(theta=0.5)
    state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
    rule.combine(state, fs.Round(0, [0, 1], UPDATES[:2], probabilities=P[:2]))
    mean = ALPHA[:2] @ UPDATES[:2] / ALPHA[:2].sum()
    assert rule.combine(state, fs.Round(1, [], np.empty((0, D)))) == pytest.approx(mean)
    fresh, rare = 2 * UPDATES[1], UPDATES[3:]
    again = ALPHA[1] / P[1] ** 0.5 * (fresh - UPDATES[1])
    weights = ALPHA[3:] / P[3:]
    newcomers = ALPHA[2:].sum() * (weights / weights.sum() @ rare)
    found = rule.combine(state, fs.Round(2, [1, 3, 4], np.array([fresh, *rare]), probabilities=P[[1, 3, 4]]))
    assert found == pytest.approx(ALPHA[:2] @ UPDATES[:2] + again + newcomers)


def test_where_everybody_came_before_nobody_stands_in() -> None:
    stood, plain = rules.TemperedFedStale(), rules.TemperedFedStale(stand_in=False)
    states = [rule.init(fs.Federation(N, D, weights=ALPHA)) for rule in (stood, plain)]
    everybody = fs.Round(0, np.arange(N), UPDATES.astype(np.float32), probabilities=1.0)
    for t in range(12):
        round = everybody if t == 0 else history(t)
        assert np.array_equal(stood.combine(states[0], round), plain.combine(states[1], round)), t


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"theta": 1.5}, "theta = 1.5: "),
        ({"theta": "best"}, "unknown theta 'best': "),
        ({"theta": True}, "theta = True: "),
        ({"refresh": -0.1}, "refresh = -0.1: "),
        ({"refresh": 2.0}, "refresh = 2.0: "),
        ({"beta": "auto-per-client"}, "beta = 'auto-per-client': the tempered family has one β for all clients$"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{says}"):
        rules.TemperedFedStale(**options)  # type: ignore[arg-type]
