"""Numbers at their limits: long runs, low precision, p̂ near 0, β at its ends, one client, one step, nobody at all."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale import participation, rules
from fedstale.checks import InvalidInput
from fedstale.memory import precision
from fedstale.participation import BetaFrequency, FedAUEstimator, Forgetting, Trace
from fedstale.tasks.quadratic import Quadratic
from tests.everything import everything
from tests.rules.test_every_rule import MEMORIES, RULES, memories

Array = NDArray[Any]


# Long runs


def long_run(rounds: int) -> dict[str, float]:
    """FedStale with β auto on noisy quadratics, beside the same recursion in 80-bit numbers with all sums done anew.

    F_i(w) = c_i/2 ‖w − z_i‖², one local step, noise of the gradient: neither the model nor the memory comes to rest.
    """
    n, d, lr = 4, 3, 0.05
    rng = np.random.default_rng(2)
    curvature, optimum = np.array([1.0, 0.5, 2.0, 1.5]), rng.normal(size=(n, d))
    p = np.array([1.0, 0.5, 0.2, 0.02])
    came = rng.random((rounds, n)) < p
    noise = rng.normal(size=(rounds, n, d)) * 0.3
    rule = fs.FedStale(beta="auto")
    state = rule.init(fs.Federation(n, d, probabilities=p), memory="ram:float64", model=np.zeros(d))
    long: Any = np.longdouble
    model, rows = np.zeros(d, long), np.zeros((n, d), long)
    inner, norm = long(0), long(0)
    alpha, omega = long(1) / n, ((1 - p.astype(long)) / p.astype(long) ** 2) / n**2
    beta = 0.0
    worst = {"model": 0.0, "beta": 0.0}
    for t in range(rounds):
        who = np.flatnonzero(came[t])
        updates = lr * (curvature[who, None] * (np.asarray(state.model) - optimum[who]) + noise[t, who])
        rule.step(state, fs.Round(t, who, updates))
        # The reference is given the same updates: what is compared is the server's arithmetic, not the noise's.
        exact = updates.astype(long)
        beta = float(np.clip(inner / norm, 0, 1)) if norm > 0 else 0.0
        delta = beta * alpha * rows.sum(0) + (alpha / p[who, None].astype(long) * (exact - beta * rows[who])).sum(0)
        inner += ((t + 1) * omega[who] * (exact * rows[who]).sum(1)).sum()
        known = np.where(rows[who].any(axis=1, keepdims=True), rows[who], exact)
        norm += ((t + 1) * omega[who] * (known**2).sum(1)).sum()
        rows[who] = exact
        model = model - delta
        worst["beta"] = max(worst["beta"], abs(state.report["beta"] - beta))
    scale = float(np.abs(model).max())
    worst["model"] = float(np.abs(state.model - model).max()) / scale
    total = rows.sum(0)
    worst["sum"] = float(np.abs(state.memory.total - total).max() / np.abs(total).max())
    worst["inner"] = abs(float((state.of_rule.arrays()["beta/sums"][0] - inner) / inner))
    worst["norm"] = abs(float((state.of_rule.arrays()["beta/sums"][1] - norm) / norm))
    return worst


@pytest.mark.parametrize("rounds", [1_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_long_run_does_not_drift(rounds: int) -> None:
    """After 10⁶ rounds: running sum and β's sums to 1e-11, the model (a sum of 10⁶ steps) to 1e-9."""
    seen = long_run(rounds)
    print(rounds, seen)
    assert seen["sum"] < 1e-11
    assert seen["inner"] < 1e-11
    assert seen["norm"] < 1e-11
    assert seen["beta"] < 1e-11
    assert seen["model"] < 1e-9


# Low precision

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Largest relative error of a stored number (float16: above 6.1e-5; below that 2⁻²⁵ absolute)."""


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_low_precision_stays_within_its_bound(kind: str) -> None:
    """|Δ̃ − Δ| ≤ β u (Σ α_i |h_i| + Σ_S (α_i/p_i) |h_i|) in every coordinate, u the unit of the stored format."""
    n, d, beta = 10, 200, 0.7
    rng = np.random.default_rng(0)
    p = np.linspace(0.1, 1.0, n)
    rule = fs.FedStale(beta=beta)
    federation = fs.Federation(n, d, probabilities=p)
    exact, rough = (rule.init(federation, memory=f"ram:{name}") for name in ("float64", kind))
    alpha, tiny = 1.0 / n, 2.0**-25 if kind == "float16" else 0.0
    largest = 0.0
    for t in range(300):
        who = np.flatnonzero(rng.random(n) < p)
        updates = rng.normal(size=(len(who), d)) * 10.0 ** rng.integers(-3, 2)
        h = np.abs(exact.memory.rows(np.arange(n)))
        error = np.maximum(UNIT[kind] * h, tiny)
        bound = beta * (alpha * error.sum(0) + (alpha / p[who]) @ error[who])
        one = fs.Round(t, who, updates)
        off = np.abs(np.asarray(rule.combine(exact, one)) - np.asarray(rule.combine(rough, one)))
        assert (off <= bound * (1 + 1e-9) + 1e-12).all()
        largest = max(largest, float((off / (bound + 1e-300)).max()))
    assert largest > 0.2  # the bound is not idle


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_number_that_a_format_cannot_hold_is_clipped_never_infinite(kind: str) -> None:
    rule = fs.FedStale(beta=1.0)
    state = rule.init(fs.Federation(2, 3), memory=f"ram:{kind}", model=np.zeros(3))
    for t in range(3):
        rule.step(state, fs.Round(t, [0], np.full((1, 3), 1e30), probabilities=0.5))
        assert np.isfinite(state.memory.rows([0, 1])).all()
        assert np.isfinite(np.asarray(state.model)).all()
    assert precision(kind).dtype.itemsize == 2


# p̂ near 0 and clients that come late


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, "auto", "auto-per-client", "theory"])
@pytest.mark.parametrize("p", [1e-3, 1e-9, 1e-15, 1e-100, 1e-300, 5e-324])
def test_p_near_zero_is_the_equation_or_a_refusal(p: float, beta: Any) -> None:
    """α Δ/p as it stands, or, where that overflows, a round refused whole: nothing in between, and never a NaN."""
    rule = fs.FedStale(beta=beta)
    state = rule.init(fs.Federation(3, 2), model=np.zeros(2))
    rule.step(state, fs.Round(0, [0, 1], np.ones((2, 2)), probabilities=[1.0, 0.5]))
    rule.step(state, fs.Round(1, [0, 1], np.ones((2, 2)), probabilities=[1.0, 0.5]))
    before = copy.deepcopy(state)
    held = 0.0 if beta == 0.0 else None
    update = np.array([[0.25, -3.0]])
    try:
        delta = np.asarray(rule.combine(state, fs.Round(2, [2], update, probabilities=[p])))
    except InvalidInput:  # NonFinite, or a p whose inverse is not finite
        assert p < 1e-290
        assert state.round == before.round
        assert everything(state) == everything(before)
        return
    assert np.isfinite(delta).all()
    if held is not None or p < 1e-6:
        for k in range(2):
            exact = Fraction(update[0, k]) / 3 / Fraction(p)
            assert abs(Fraction(delta[k]) - exact) <= abs(exact) * Fraction(1, 10**5) + (held is None)
    assert all(np.isfinite(value).all() for value in state.of_rule.arrays().values())
    after = np.asarray(rule.combine(state, fs.Round(3, [], np.empty((0, 2)))))
    assert np.isfinite(after).all()
    assert 0.0 <= state.report["beta"] <= 1.0


@pytest.mark.parametrize(
    ("estimator", "first", "second"),
    [
        (FedAUEstimator(cutoff=50), Fraction(50), Fraction(200 * 50 + 1, 201)),  # 200 cutoffs; then one interval of 1
        (FedAUEstimator(cutoff=None), Fraction(1), Fraction(10_001)),  # nothing known; then one interval of 10⁴ + 1
        (BetaFrequency(), Fraction(10_002), Fraction(10_003, 2)),
        (Forgetting(), Fraction(102), None),  # bounded by (a + b + 1/(1 − λ))/a
    ],
)
def test_a_first_participation_in_round_ten_thousand(estimator: Any, first: Fraction, second: Fraction | None) -> None:
    """1/p̂ is what the estimator's equation says, uncapped and finite, and so is the update that it weighs."""
    late, n, d = 10_000, 3, 4
    rule = fs.FedStale(beta="auto")
    state = rule.init(fs.Federation(n, d), model=np.zeros(d))
    guesses = estimator.init(n)
    rng = np.random.default_rng(0)
    for t in range(late):
        if t >= late - 5:  # what the rule did before makes no difference to who is new
            p = estimator.probabilities(guesses, [0, 1])
            rule.step(state, fs.Round(t, [0, 1], rng.normal(size=(2, d)) * 1e-3, probabilities=0.9 * p))
        estimator.observe(guesses, [0, 1], t)
    update = np.full((1, d), 0.5)
    p = estimator.probabilities(guesses, [2])
    assert 1 / p[0] == pytest.approx(float(first), rel=1e-6)
    delta = np.asarray(rule.step(state, fs.Round(late, [2], update, probabilities=p)))
    stale = state.report["beta"] * (state.memory.total - update[0]) / n  # of the two others
    np.testing.assert_allclose(delta, stale + 0.5 / n / p[0], rtol=1e-9)
    assert np.isfinite(np.asarray(state.model)).all()
    estimator.observe(guesses, [2], late)
    if second is not None:
        assert 1 / estimator.probabilities(guesses, [2])[0] == pytest.approx(float(second), rel=1e-12)


# β at its ends


def same_bits(a: Array, b: Array) -> bool:
    return np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize("memory", ["ram", "ram:float64", "ram:bfloat16", "disk"])
@pytest.mark.parametrize(("beta", "other"), [(0.0, fs.UnbiasedFedAvg()), (1.0, fs.UnbiasedFedVARP())])
def test_beta_at_its_ends_is_the_other_rule_bit_for_bit(
    beta: float, other: fs.Rule, memory: str, tmp_path: Path
) -> None:
    n, d = 7, 10_000
    rule = fs.FedStale(beta=beta)
    p = np.linspace(0.05, 1.0, n)
    federation = fs.Federation(n, d, probabilities=p)
    where = [f"disk:{tmp_path / name}" if memory == "disk" else memory for name in "ab"]
    states = [one.init(federation, memory=w, model=np.zeros(d)) for one, w in zip((rule, other), where, strict=True)]
    rng = np.random.default_rng(1)
    for t in range(60):
        who = np.flatnonzero(rng.random(n) < p)
        who = who[:0] if t % 13 == 5 else who
        updates = rng.normal(size=(len(who), d)).astype(np.float32)
        deltas = [one.step(state, fs.Round(t, who, updates)) for one, state in zip((rule, other), states, strict=True)]
        assert same_bits(*deltas)
    assert same_bits(states[0].model, states[1].model)  # type: ignore[arg-type]
    for state in states:
        state.close()


# One client, one step, one cluster


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_one_client(rule: fs.Rule, tmp_path: Path) -> None:
    """N = 1, |S| ∈ {0, 1}: every rule, every memory that it can have; finite, and the client's update where p = 1."""
    for k, memory in enumerate(memories(rule, [*MEMORIES, "clustered:1", "lowrank:1"])):
        state = rule.init(fs.Federation(1, 5), memory=memory.format(tmp_path / str(k)), model=np.zeros(5, np.float32))
        for t in range(12):
            who = np.array([], dtype=np.int64) if t % 4 == 2 else np.array([0])
            updates = np.random.default_rng(t).normal(size=(len(who), 5)).astype(np.float32)
            given = fs.Round(
                t, who, updates, probabilities=np.full(len(who), 0.75), steps=1, lr=0.1, second_pass=updates
            )
            assert np.isfinite(np.asarray(rule.step(state, given))).all()
        assert np.isfinite(np.asarray(state.model)).all()
        state.close()


@pytest.mark.parametrize("rule", sorted(rules.RULES))
@pytest.mark.parametrize("clients", [1, 3])
def test_one_local_step(rule: str, clients: int) -> None:
    """K = 1, with one client and with three, through the round loop."""
    problem = Quadratic.random(clients, 4, 0)
    process = participation.Bernoulli(np.full(clients, 0.7))
    result = fs.simulate(problem, rule, process, rounds=30, local_steps=1, lr=0.01, seed=1)
    assert result.reason == "finished"
    assert np.isfinite(result.model).all()
    assert np.isfinite(result.final("excess_loss"))


def test_one_client_on_digits() -> None:
    result = fs.simulate("digits-mlp", num_clients=1, rounds=4, local_steps=1, p_min=1.0, participation=None)
    assert result.reason == "finished"
    assert 0.0 <= result.final("accuracy") <= 1.0


# Nobody ever comes


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_nobody_ever_comes_to_a_rule(rule: fs.Rule, tmp_path: Path) -> None:
    """Every rule, every memory: the model does not move, and nothing is NaN."""
    for k, memory in enumerate(memories(rule, MEMORIES)):
        start = np.array([1.0, -2.0, 3.0], dtype=np.float32)
        state = rule.init(fs.Federation(4, 3), memory=memory.format(tmp_path / str(k)), model=start)
        for t in range(8):
            delta = rule.step(state, fs.Round(t, [], np.empty((0, 3), np.float32), lr=0.1))
            assert np.array_equal(np.asarray(delta), np.zeros(3))
        assert np.array_equal(np.asarray(state.model), start)
        assert all(np.isfinite(value).all() for value in state.of_rule.arrays().values())
        for held in state.of_rule.memories().values():
            assert held.seen.tolist() == []
            assert not held.total.any()
        state.save(tmp_path / f"c{k}")
        state.close()
        fs.State.load(tmp_path / f"c{k}").close()


@pytest.mark.parametrize("rule", sorted(rules.RULES))
@pytest.mark.parametrize("probabilities", ["fedau", "fedau-nocutoff", "beta", "forgetting"])
def test_nobody_ever_comes_to_a_run(rule: str, probabilities: str) -> None:
    problem = Quadratic.random(3, 4, 0)
    nobody = Trace(num_clients=3, num_rounds=12, rounds=np.array([], dtype=int), clients=np.array([], dtype=int))
    result = fs.simulate(problem, rule, nobody, rounds=12, probabilities=probabilities, lr=0.01)
    assert result.reason == "finished"
    np.testing.assert_array_equal(result.model, problem.start)
    for name, values in result.metrics.items():
        measured = values[~np.isnan(values)] if name in ("excess_loss", "server_bytes", "p_error") else values
        assert np.isfinite(measured).all(), name
    assert result.metrics["participants"].sum() == 0.0


@pytest.mark.parametrize("memory", ["ram", "ram:bfloat16", "disk"])
@pytest.mark.parametrize("silent", [True, False], ids=["silent nodes", "no nodes"])
def test_nobody_ever_comes_to_a_flower_server(memory: str, silent: bool, tmp_path: Path) -> None:
    """The run ends with an error of its own, because an untrained model is no success; the model has not moved."""
    pytest.importorskip("flwr")
    from flwr.supercore.task_identity import TaskIdentity

    from fedstale.flower import FedStale, NobodyAnswered
    from tests.flower.grid import MemoryGrid, first_model, flat, record

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    where = f"disk:{tmp_path / 'rows'}" if memory == "disk" else memory
    options: Any = {"min_available_nodes": 0, "min_train_nodes": 0, "min_evaluate_nodes": 0, "max_wait": 0.0}
    options["late_for"] = 0  # or the second round waits for silent nodes until the timeout
    strategy = FedStale(memory=where, checkpoint=tmp_path / "c", store=tmp_path / "s", **options)
    grid = MemoryGrid({k: lambda message: None for k in range(3)} if silent else {})
    with pytest.raises(NobodyAnswered):
        strategy.start(grid, record(first_model()), num_rounds=6)
    np.testing.assert_array_equal(flat(strategy.current_arrays()), flat(record(first_model())))
    assert strategy.aggregator is not None
    strategy.aggregator.state.close()
    state = fs.State.load(tmp_path / "c")
    assert state.round == 6
    assert np.isfinite(np.asarray(state.model)).all()
    assert all(np.isfinite(value).all() for value in state.of_rule.arrays().values())
    state.close()
