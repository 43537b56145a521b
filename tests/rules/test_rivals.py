"""Rivals of the stale family: what is particular to each of them."""

from __future__ import annotations

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules
from fedstale.rules.fedsteer import SteeringState
from tests.enumeration import expectation

N, D = 5, 7


def test_fedawe_with_everybody_in_every_round_is_fedavg() -> None:
    echo, average = rules.FedAWE(), fs.FedAvg()
    one, two = (rule.init(fs.Federation(N, D), model=np.ones(D)) for rule in (echo, average))
    for t in range(6):
        told = fs.Round(t, np.arange(N), np.random.default_rng(t).normal(size=(N, D)))
        assert echo.step(one, told) == pytest.approx(average.step(two, told), abs=1e-12)


def test_fedawe_clients_keep_the_model_they_fetched_last() -> None:
    """Echoes add up to the number of rounds (Proposition 1), and who was away starts where it left off."""
    rule = rules.FedAWE()
    state = rule.init(fs.Federation(3, 1), memory="ram:float64", model=np.zeros(1))
    ones = np.ones((2, 1))
    rule.step(state, fs.Round(0, [0, 1], ones))
    assert state.model == pytest.approx([-1.0])
    rule.step(state, fs.Round(1, [0], ones[:1]))
    assert state.model == pytest.approx([-2.0])
    local = rule.local(state, np.array([0, 1, 2]))
    assert local is not None
    assert local.start is not None
    assert local.start[:, 0] == pytest.approx([-2.0, -1.0, 0.0])  # 1 fetched after round 0, 2 has the first model
    rule.step(state, fs.Round(2, [1, 2], ones))  # −1 − 2·1 and 0 − 3·1: everybody has counted three rounds
    assert state.model == pytest.approx([-3.0])


def test_fedawe_a_client_that_joins_echoes_nothing() -> None:
    rule = rules.FedAWE()
    state = rule.init(fs.Federation(1, 1), model=np.zeros(1))
    for t in range(4):
        rule.step(state, fs.Round(t, [0], np.ones((1, 1))))
    state.grow(2)
    local = rule.local(state, np.array([1]))
    assert local is not None
    assert local.start == pytest.approx(np.array([[-4.0]]))
    assert rule.combine(state, fs.Round(4, [1], np.ones((1, 1)))) == pytest.approx([1.0])


def test_fedawe_needs_the_model() -> None:
    rule = rules.FedAWE()
    state = rule.init(fs.Federation(2, 1))
    rule.combine(state, fs.Round(0, [0], np.ones((1, 1))))
    with pytest.raises(fs.InvalidInput, match="pass model=w to init"):
        rule.combine(state, fs.Round(1, [1], np.ones((1, 1))))


P = np.array([1.0, 0.7, 0.4, 0.2, 0.05])
ALPHA = np.array([0.3, 0.1, 0.2, 0.15, 0.25])
UPDATES = np.random.default_rng(11).normal(size=(N, D))


def steered(rule: rules.FedSteer) -> fs.State:
    """A state in which everybody has come at least once."""
    state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
    rng = np.random.default_rng(3)
    for t in range(6):
        who = np.arange(N) if t == 0 else np.flatnonzero(rng.random(N) < 0.6)
        rule.combine(state, fs.Round(t, who, UPDATES[who] + rng.normal(size=(len(who), D)), probabilities=P[who]))
    return state


@pytest.mark.parametrize("core", [3, N])
def test_fedsteer_is_biased_by_the_fit_in_the_same_round(core: int) -> None:
    """Over all participation sets E[Δ] = Σ α_i Δ_i + Σ α_i (1 − p_i)(x_i before − x_i after); fitted later, no bias."""
    rule, later = rules.FedSteer(core=core), rules.UnbiasedFedSteer(core=core)
    state = steered(rule)
    own = state.own(SteeringState)
    members = np.argsort(own.place)[np.count_nonzero(own.place < 0) :]
    directions = own.directions.rows(members)
    before = own.coordinates @ directions
    rule.combine(state, fs.Round(6, np.arange(N), UPDATES, probabilities=P))
    after = own.coordinates @ directions
    bias = (ALPHA * (1 - P)) @ (before - after)
    assert np.linalg.norm(bias) > 0.05
    target = ALPHA @ UPDATES
    assert expectation(rule, lambda: steered(rule), UPDATES, P) == pytest.approx(target + bias, abs=1e-12)
    assert expectation(later, lambda: steered(later), UPDATES, P) == pytest.approx(target, abs=1e-12)


def test_fedsteer_moves_those_who_stay_away_with_those_who_come() -> None:
    """Client 1 has always sent twice what client 0 sends: away, it is predicted to go on so."""
    rule = rules.UnbiasedFedSteer(core=1, ridge=1e-9)
    state = rule.init(fs.Federation(2, 3), memory="ram:float64")
    old, new = np.array([1.0, 2.0, 3.0]), np.array([-3.0, 0.5, 1.0])
    rule.combine(state, fs.Round(0, [0], [old], probabilities=1.0))
    rule.combine(state, fs.Round(1, [0, 1], [old, 2 * old], probabilities=[1.0, 0.5]))
    rule.combine(state, fs.Round(2, [0], [new], probabilities=1.0))
    assert rule.combine(state, fs.Round(3, [0], [new], probabilities=1.0)) == pytest.approx((new + 2 * new) / 2)


def test_fedsteer_clients_may_join_and_leave() -> None:
    rule = rules.UnbiasedFedSteer(core=4)
    state = rule.init(fs.Federation(4, D), memory="ram:float64")
    rule.combine(state, fs.Round(0, np.arange(4), UPDATES[:4], probabilities=0.5))
    rule.combine(state, fs.Round(1, np.arange(4), UPDATES[:4], probabilities=0.5))
    state.grow(5)
    state.forget(np.array([1]))
    assert np.isfinite(rule.combine(state, fs.Round(2, [4], UPDATES[4:], probabilities=0.5))).all()


def test_cafed_leaves_out_who_comes_in_long_runs_first() -> None:
    """Two clients with the same availability and the same large updates; to be without one of them is worth it."""
    rule = rules.CAFed(bias_weight=5.0)
    state = rule.init(fs.Federation(10, 1))
    for t in range(32):
        runs, mixed = t % 16 < 8, t % 4 < 2  # both come to half of the rounds: autocorrelation 3/4, and 0
        who = np.flatnonzero(np.array([runs, mixed] + [True] * 8))
        updates = np.where(who < 2, np.sqrt(3.0), 1.0)[:, None]
        delta = rule.combine(state, fs.Round(t, who, updates, probabilities=np.where(who < 2, 0.5, 1.0)))
    assert list(who) == list(range(2, 10))
    assert delta == pytest.approx([0.8])
    everyone = fs.Round(32, np.arange(10), np.sqrt([[3.0]] * 2 + [[1.0]] * 8), probabilities=[0.5] * 2 + [1.0] * 8)
    assert rule.combine(state, everyone) == pytest.approx([0.8 + 0.1 / 0.5 * np.sqrt(3.0)])  # one of the two counts
    assert state.of_rule.arrays()["again"][:2].tolist() == [14, 8]


def test_cafed_with_equal_errors_or_much_weight_on_bias_is_unbiased_fedavg() -> None:
    for rule, size in ((rules.CAFed(), np.ones(N)), (rules.CAFed(bias_weight=1e9), np.arange(1.0, N + 1))):
        state = rule.init(fs.Federation(N, 1, weights=ALPHA))
        plain = fs.UnbiasedFedAvg().init(fs.Federation(N, 1, weights=ALPHA))
        for t in range(20):
            who = np.flatnonzero(np.random.default_rng(t).random(N) < P)
            told = fs.Round(t, who, size[who, None], probabilities=P[who])
            assert np.array_equal(rule.combine(state, told), fs.UnbiasedFedAvg().combine(plain, told))


@pytest.mark.parametrize("kappa", [0.1, 1.0, 30.0])
def test_cafed_chooses_as_if_one_client_were_looked_at_after_the_other(kappa: float) -> None:
    n, rng = 300, np.random.default_rng(int(10 * kappa))
    alpha, size = rng.dirichlet(np.ones(n)), rng.lognormal(sigma=1.5, size=n)
    rule = rules.CAFed(bias_weight=kappa)
    state = rule.init(fs.Federation(n, n, weights=alpha))
    delta = rule.combine(state, fs.Round(0, np.arange(n), np.diag(size), probabilities=1.0))
    kept, mass, risk = np.ones(n, dtype=bool), 1.0, float(alpha @ size**2)

    def bound(mass: float, risk: float) -> float:
        return risk / mass + kappa * (1.0 - mass) ** 2 * float(np.max(size**2))

    for i in [*range(n), *range(n)]:  # everybody came once: both orders are those of the indices
        without = mass - alpha[i], risk - alpha[i] * size[i] ** 2
        if kept[i] and bound(*without) < bound(mass, risk):
            kept[i], (mass, risk) = False, without
    assert 0 < kept.sum() < n
    assert delta == pytest.approx(np.where(kept, alpha * size, 0.0), abs=1e-12)
