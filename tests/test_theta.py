"""θ that chooses itself: its terms are exact in expectation, and it takes the side that theory takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fedstale as fs
from fedstale import theory, theta
from fedstale.rules.tempered import TemperedState
from tests.enumeration import participation_sets

N, D = 4, 6
P = np.array([0.8, 0.5, 0.3, 0.1])
ALPHA = np.array([0.1, 0.2, 0.3, 0.4])
rng = np.random.default_rng(2)
RESIDUALS = rng.normal(size=(N, D))


def test_terms_have_the_exact_bias_and_noise_as_expectation() -> None:
    lasting = rng.normal(size=(1, len(theta.CANDIDATES), D))
    bias = np.zeros(len(theta.CANDIDATES))
    noise, moved = np.zeros_like(bias), np.zeros_like(lasting)
    for chance, who in participation_sets(P):
        got = theta.costs(0, ALPHA[who], P[None, who], RESIDUALS[None, who], lasting, np.array([[4.0, 1.0]]))
        bias += chance * got[0][0]
        noise += chance * got[1][0]
        kept = 1.0 - got[3][0, 1] / got[3][0, 0]
        moved += chance * (got[2] - kept * lasting)
    zero = np.zeros((N, D))
    for k, value in enumerate(theta.CANDIDATES):
        exact = -theory.tempered_bias(RESIDUALS, zero, P, ALPHA, float(value))
        assert moved[0, k] == pytest.approx(exact)
        assert bias[k] == pytest.approx(2 * exact @ lasting[0, k])
        assert noise[k] == pytest.approx(theory.tempered_noise(RESIDUALS, zero, P, ALPHA, float(value)))


def test_absence_lasts_as_long_as_the_rare_are_away() -> None:
    """With two groups, one of which always comes, L is 1/p of the other."""
    absence = np.zeros((1, 2))
    for _ in range(3):
        terms = theta.costs(0, np.ones(2), np.full((1, 2), 0.05), np.ones((1, 2, D)), np.zeros((1, 5, D)), absence)
        absence = terms[3]
    assert absence[0, 0] / absence[0, 1] == pytest.approx(20.0)


def run(drift: float, noise: float, rounds: int = 400) -> float:
    """θ after rounds in which everybody's update is a common walk (a bias that all share) plus noise of its own."""
    rule, p = fs.TemperedFedStale(), np.where(np.arange(12) < 6, 1.0, 0.1)
    state, draw, common = rule.init(fs.Federation(12, 20)), np.random.default_rng(0), np.zeros(20)
    for t in range(rounds):
        common = common + drift * np.cos(t / 40)
        who = np.flatnonzero(draw.random(12) < p)
        updates = common + noise * draw.normal(size=(len(who), 20))
        rule.combine(state, fs.Round(t, who, updates, probabilities=p[who]))
    return theta.AutoTheta().value(state.inside(state.own(TemperedState).theta))


def test_noise_alone_asks_for_no_correction_and_a_shared_lasting_bias_for_all_of_it() -> None:
    assert run(drift=0.0, noise=1.0) == 0.0
    assert run(drift=1.0, noise=0.0) >= 0.75


def test_starts_in_the_middle_and_looks_only_at_clients_that_return() -> None:
    rule = fs.TemperedFedStale()
    state = rule.init(fs.Federation(4, D))
    for t in range(4):
        rule.combine(state, fs.Round(t, [t], RESIDUALS[[t]] * 9, probabilities=[0.1]))
        assert state.report["theta"] == 0.5
    rule.combine(state, fs.Round(4, [0], RESIDUALS[[0]], probabilities=[0.1]))
    rule.combine(state, fs.Round(5, [], np.empty((0, D))))
    assert state.report["theta"] == 0.0


def test_a_sample_of_the_parameters_is_the_same_in_every_round() -> None:
    columns = theta.AutoTheta(sample=10).columns(1000)
    assert len(columns) == len(set(columns.tolist())) == 10
    assert (columns == theta.AutoTheta(sample=10).columns(1000)).all()
    assert theta.AutoTheta(sample=10).columns(7).tolist() == list(range(7))


def test_a_term_that_overflows_says_nothing() -> None:
    rule = fs.TemperedFedStale(refresh=1.0)
    state = rule.init(fs.Federation(2, D), memory="ram:float64")
    for t, scale in enumerate([1.0, 1e200, 1.0, 2.0]):
        rule.combine(state, fs.Round(t, [0], scale * RESIDUALS[[0]], probabilities=[0.5]))
        own = state.own(TemperedState).theta
        assert all(np.isfinite(array).all() for array in own.arrays().values())


def test_a_bias_or_an_absence_alone_that_overflows_says_nothing() -> None:
    auto = theta.AutoTheta()
    state = fs.TemperedFedStale().init(fs.Federation(3, 1))
    inner = state.inside(state.own(TemperedState).theta)
    own = inner.own(theta.AutoThetaState)
    own.lasting = np.full((5, 1), 1e250)
    with np.errstate(over="raise", invalid="raise"):
        auto.observe(
            inner, 0, np.ones(1), np.full(1, 0.5), np.full((1, 1), 1e100)
        )  # the bias is not finite, the noise is
        auto.observe(inner, 0, np.ones(3), np.full(3, 1e-154), np.zeros((3, 1)))  # the absence alone is not
    assert not own.noise.any()
    assert not own.absence.any()


@pytest.mark.parametrize(("p", "left"), [(1.0, 0.0), (0.9, 0.1)])
def test_a_bias_is_remembered_as_long_as_an_absence_lasts(p: float, left: float) -> None:
    lasting = np.ones((1, 5, D))
    moved = theta.costs(0, np.ones(1), np.full((1, 1), p), np.zeros((1, 1, D)), lasting, np.zeros((1, 2)))[2]
    assert moved == pytest.approx(left * lasting)


def test_every_run_has_a_choice_of_its_own() -> None:
    bias = np.array([[4.0, 3.0, 2.0, 1.0, 0.0], [0.0] * 5, [0.0] * 5])
    noise = np.array([[0.1] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5])
    assert theta.least_cost_theta(bias, noise, 0.5).tolist() == [1.0, 0.0, 0.5]


def test_a_constant_looks_at_no_parameter() -> None:
    columns = theta.make("0.25").columns(7)
    assert columns.size == 0
    assert columns.dtype == np.int64  # so that it can be an index


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: theta.ConstantTheta(2.0), "theta = 2.0"),
        (lambda: theta.AutoTheta(start=-1.0), "start = -1.0"),
        (lambda: theta.AutoTheta(sample=0), "sample = 0"),
        (lambda: theta.make(1.5), "theta = 1.5"),
        (lambda: theta.make("often"), "unknown theta 'often'.* auto"),
    ],
)
def test_a_wrong_setting_is_named(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(fs.InvalidInput, match=f"^{says}"):
        wrong()
