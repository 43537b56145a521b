"""Bounds on what one client can do (norm and weight): the bias they bring, and what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale import participation, rules
from fedstale.flower import FedStale
from fedstale.rules.guard import _clip_factors, clip
from fedstale.simulation import make_settings
from tests.enumeration import participation_sets

Matrix = NDArray[np.float64]


N, D = 5, 3
P = np.array([1.0, 0.6, 0.3, 0.05, 0.01])
CHANCE = np.random.default_rng(11)
H, UPDATES = CHANCE.normal(size=(N, D)), CHANCE.normal(size=(N, D))
ALPHA = CHANCE.dirichlet(np.ones(N))


def expected(rule: fs.Rule) -> tuple[Matrix, Matrix]:
    """E[Δ] by summing over all 2^N sets of participants, and Σ α_i h_i's rows as the rule stored them."""
    total = np.zeros(D)
    stale = np.zeros((N, D))
    for chance, clients in participation_sets(P):
        state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
        rule.combine(state, fs.Round(0, np.arange(N), H, probabilities=np.ones(N)))
        stale = state.memory.rows(np.arange(N)) if rule.memory else stale
        delta = rule.combine(state, fs.Round(1, clients, UPDATES[clients], probabilities=P[clients]))
        total += chance * np.asarray(delta)
    return total, stale


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("max_weight", [None, 1.0, 4.0, 50.0, 1000.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_bias_of_the_bounds_is_what_the_equation_says(
    beta: float, max_weight: float | None, clip_norm: float | None
) -> None:
    """E[Δ] = Σ α_i Δ_i − Σ α_i (1 − c_i) Δ_i − Σ α_i (1 − p_i w_i)(c_i Δ_i − β h_i), exactly."""
    rule = rules.guard(fs.FedStale(beta=beta), clip_norm, max_weight)
    mean, stale = expected(rule)
    c = np.ones(N) if clip_norm is None else np.minimum(1.0, clip_norm / np.linalg.norm(UPDATES, axis=1))
    w = 1 / P if max_weight is None else np.minimum(1 / P, max_weight)
    clipped = c[:, None] * UPDATES
    bias = -(ALPHA * (1 - c)) @ UPDATES - (ALPHA * (1 - P * w)) @ (clipped - beta * stale)
    np.testing.assert_allclose(mean, ALPHA @ UPDATES + bias, atol=1e-12)
    unbiased = clip_norm is None and (max_weight is None or max_weight >= 100)
    assert (np.linalg.norm(bias) < 1e-12) == unbiased


def test_a_memory_that_knows_the_update_takes_the_bias_of_the_cap_away() -> None:
    """With β = 1 the capped rule moves along Σ α_i Δ_i once h_i = Δ_i; with β = 0 the rare client counts c·p_i."""
    for beta, small in ((1.0, True), (0.0, False)):
        rule = rules.Guarded(fs.FedStale(beta=beta), max_weight=4.0)
        state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
        rule.combine(state, fs.Round(0, np.arange(N), UPDATES, probabilities=np.ones(N)))
        mean = sum(chance * np.asarray(_after(rule, clients)) for chance, clients in participation_sets(P))
        assert (np.linalg.norm(mean - ALPHA @ UPDATES) < 1e-12) == small
        state.close()


def _after(rule: fs.Rule, clients: NDArray[np.int64]) -> Matrix:
    state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
    rule.combine(state, fs.Round(0, np.arange(N), UPDATES, probabilities=np.ones(N)))
    return np.asarray(rule.combine(state, fs.Round(1, clients, UPDATES[clients], probabilities=P[clients])))


def test_a_client_first_seen_after_ten_thousand_rounds_cannot_blow_up_the_model() -> None:
    """Its p̂ is 1/10,002 by then: uncapped, one update of length 1 moves the model by α·10,002."""
    estimator = participation.BetaFrequency()
    counted = estimator.init(2)
    for t in range(10_000):
        estimator.observe(counted, [0], t)
    p = estimator.probabilities(counted, [0, 1])
    assert 1 / p[1] == pytest.approx(10_002)
    moved = {}
    for cap in (None, 100.0):
        rule = rules.guard(fs.FedStale(), None, cap)
        state = rule.init(fs.Federation(2, 3), model=np.zeros(3))
        rule.step(state, fs.Round(10_000, [0, 1], np.eye(3)[:2], probabilities=p))
        assert state.model is not None
        moved[cap] = float(np.linalg.norm(state.model))
    assert moved[None] == pytest.approx(5_001, rel=1e-6)
    assert moved[100.0] == pytest.approx(50, rel=1e-3)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_clipping(dtype: str) -> None:
    rows = [np.array([3, 4], dtype), np.array([0.3, 0.4], dtype), np.zeros(2, dtype)]
    factors = _clip_factors(rows, 1.0)
    np.testing.assert_allclose(factors, [0.2, 1.0, 1.0], rtol=1e-3)
    clipped = clip(rows, factors)
    assert clipped[1] is rows[1]
    np.testing.assert_allclose(clipped[0], [0.6, 0.8], rtol=1e-3)
    assert {row.dtype for row in clipped} == {np.dtype(dtype)}
    assert rows[0].tolist() == [3, 4], "the caller's array is not touched"


def test_clipping_bounds_what_cannot_be_squared_and_hides_no_nan() -> None:
    rows = [np.array([1e200, 1e200]), np.array([np.nan, 1.0]), np.array([np.inf, 1.0])]
    factors = _clip_factors(rows, 2.0)
    np.testing.assert_allclose(np.linalg.norm(clip(rows[:1], factors[:1])[0]), 2.0)
    assert np.isnan(factors[1:]).all()
    rule = rules.Guarded(fs.FedStale(), clip_norm=1.0)
    state = rule.init(fs.Federation(2, 2))
    with pytest.raises(fs.InvalidInput, match="update of client 1"):
        rule.combine(state, fs.Round(0, [0, 1], [np.ones(2), rows[2]], probabilities=1.0))
    assert state.round == 0


def test_what_is_stored_is_clipped_and_what_was_done_is_reported() -> None:
    rule = rules.Guarded(fs.FedStale(beta=1.0), clip_norm=1.0, max_weight=2.0)
    state = rule.init(fs.Federation(2, 2), memory="ram:float64")
    rule.combine(state, fs.Round(0, [0, 1], np.array([[3.0, 4.0], [0.1, 0.0]]), probabilities=[0.5, 0.1]))
    np.testing.assert_allclose(state.memory.rows([0, 1]), [[0.6, 0.8], [0.1, 0.0]])
    assert state.report["clipped"] == 1
    assert state.report["capped"] == 1


def test_bounds_wrap_every_rule_and_leave_its_state_alone() -> None:
    inner = rules.ServerAdam(fs.FedStale(beta=0.5))
    outer = rules.Guarded(inner, clip_norm=1e9, max_weight=1e9)
    updates = np.random.default_rng(0).normal(size=(3, 4))
    states = [rule.init(fs.Federation(3, 4), model=np.zeros(4)) for rule in (inner, outer)]
    for t in range(5):
        for rule, state in zip((inner, outer), states, strict=True):
            rule.step(state, fs.Round(t, [0, 1, 2], updates * (t + 1), probabilities=[1.0, 0.5, 0.1]))
    assert states[0].model is not None
    assert states[1].model is not None
    assert states[0].model.tobytes() == states[1].model.tobytes()
    assert (outer.name, outer.server_lr, outer.memory, outer.unbiased) == (inner.name, 0.01, True, False)
    inner.step(states[1], fs.Round(5, [0], updates[:1], probabilities=1.0))  # the bounds may be taken off


NESTED = rules.ServerMomentum(rules.Guarded(rules.Scaffold(), max_weight=9.0))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rules.Guarded(fs.FedStale(), clip_norm=0.0), "clip_norm = 0.0"),
        (lambda: rules.Guarded(fs.FedStale(), clip_norm=float("nan")), "clip_norm = nan"),
        (lambda: rules.Guarded(fs.FedStale(), max_weight=0.5), "max_weight = 0.5"),
        (lambda: rules.Guarded(rules.Guarded(fs.FedStale())), "not guarded already"),
        (lambda: rules.Guarded(rules.Scaffold(), clip_norm=1.0), "clipping would destroy"),
        (lambda: rules.Guarded(rules.ServerAdam(rules.SVRG()), clip_norm=1.0), "clipping would destroy"),
        (lambda: rules.Guarded(rules.ServerAdam(NESTED), clip_norm=1.0), "clipping would destroy"),
        (lambda: rules.Guarded(rules.FedAU(), max_weight=5.0), "its cutoff is the cap"),
        (lambda: FedStale(clip_norm=-1.0), "clip_norm = -1.0"),
        (lambda: FedStale(max_weight=0.1), "max_weight = 0.1"),
        (lambda: make_settings(clip_norm=0.0), "clip_norm = 0.0"),
        (lambda: make_settings(max_weight=0.5), "max_weight = 0.5"),
        (lambda: make_settings(bad_updates="ignore"), "bad_updates = 'ignore'"),
    ],
)
def test_wrong_bounds_are_named(make: Any, text: str) -> None:
    with pytest.raises(fs.InvalidInput, match=text):
        make()


def test_bounds_are_settings_and_do_what_the_rule_does() -> None:
    options: Any = {"rounds": 30, "num_clients": 6, "p_min": 0.2, "memory": "ram:float64"}
    bounded = fs.simulate("quadratic", clip_norm=0.01, max_weight=2.0, beta=0.5, **options)
    given = fs.simulate(
        "quadratic", rule=rules.Guarded(fs.FedStale(beta=0.5), clip_norm=0.01, max_weight=2.0), **options
    )
    free = fs.simulate("quadratic", beta=0.5, **options)
    assert bounded.model.tobytes() == given.model.tobytes()
    assert bounded.model.tobytes() != free.model.tobytes()
    assert np.nansum(bounded.metrics["clipped"]) > 0
    assert np.nansum(bounded.metrics["capped"]) > 0


def test_bounded_runs_are_not_taken_for_runs_without_bounds() -> None:
    """Lock-step batches know no bounds: such runs go alone."""
    from fedstale.sweeps.lockstep import eligible

    plain = make_settings(task="digits-mlp")
    assert eligible(plain)
    for change in ({"clip_norm": 1.0}, {"max_weight": 5.0}, {"bad_updates": "leave-out"}):
        assert not eligible(plain.replace(**change))


def test_bounds_and_the_rule_inside_both_report() -> None:
    rule = rules.Guarded(fs.rules.TemperedFedStale(), clip_norm=1.0, max_weight=2.0)
    state = rule.init(fs.Federation(2, 1))
    rule.combine(state, fs.Round(0, [0, 1], np.array([[3.0], [0.5]]), probabilities=[0.1, 1.0]))
    assert state.report.keys() >= {"clipped", "capped", "beta", "theta"}
    assert (state.report["clipped"], state.report["capped"]) == (1.0, 1.0)
