"""Lower bound: the Example with p = 1/4, k^(t), the hard instance, and rules that cannot beat the bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.theory import (
    HardInstance,
    expected_reach_bound,
    lower_bound,
    reach,
    reach_bound,
    simulate_reach,
)
from tests.combinations import combinations

Array = NDArray[np.float64]
EXAMPLE = [1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7]


def test_the_example_number_by_number() -> None:
    """p = 1/4, client i₁ active at t = 1, 5, 9: the underlined k^(0) … k^(10)."""
    second = np.isin(np.arange(11), [1, 5, 9])
    k = reach(np.ones(11, dtype=bool), second)
    assert k.tolist() == EXAMPLE
    assert [reach_bound(0.25, t) for t in range(11)] == EXAMPLE
    for t in range(10):  # Eq. `kt_increment`
        assert k[t + 1] == k[t] + (t % 4 in (0, 1))


@pytest.mark.parametrize("tau", [2, 3, 4, 10])
def test_the_lemma_bounds_every_start_and_both_orders(tau: int) -> None:
    """The two observations after the Example: i₁ may start anywhere, and the objectives may be swapped."""
    rounds = np.arange(60)
    bound = [reach_bound(1 / tau, t) for t in range(60)]
    always = np.ones(60, dtype=bool)
    touched = False
    for start in range(tau):
        rare = rounds % tau == start
        for k in (reach(always, rare), reach(rare, always)):
            assert np.all(k <= bound)
            touched |= bool(np.all(k == bound))
    assert touched


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1, 0.02])
def test_random_participation_stays_below_the_lemma(p: float) -> None:
    k = simulate_reach(p, 200, 2000, seed=3)
    mean, error = k.mean(0), k.std(0) / np.sqrt(2000)
    lemma = np.array([reach_bound(p, t) for t in range(200)])
    sharper = np.array([expected_reach_bound(p, t) for t in range(200)])
    assert np.all(mean <= lemma + 4 * error)
    assert np.all(mean <= sharper + 4 * error)
    assert np.all(lemma <= 3 * (1 - p) + 2 * p * np.arange(200) + 1e-9)
    assert mean[-1] > 0.5 * sharper[-1]  # neither bound is idle
    assert p == 0.5 or (k > lemma).any()  # single draws may be luckier than the lemma's fixed period


def test_simulated_reach_belongs_to_its_seed() -> None:
    one = simulate_reach(0.3, 20, 5, seed=1)
    assert np.array_equal(one[:3], simulate_reach(0.3, 20, 3, seed=1))
    assert not np.array_equal(one, simulate_reach(0.3, 20, 5, seed=2))
    assert simulate_reach(1.0, 9, 1).tolist() == [list(range(1, 10))]


@pytest.mark.parametrize("num_clients", [2, 5])
def test_the_split_objective(num_clients: int) -> None:
    task = HardInstance(4, num_clients, L=3.0)
    rng = np.random.default_rng(0)
    w = rng.normal(size=task.dim)
    matrix = 2 * np.eye(9) - np.eye(9, k=1) - np.eye(9, k=-1)
    assert task.value(w) == pytest.approx(3 / 8 * (w @ matrix @ w - 2 * w[0]))
    assert np.mean([task.value(w, i) for i in range(num_clients)]) == pytest.approx(task.value(w))
    for client in (None, *range(num_clients)):
        numeric = [(task.value(w + e, client) - task.value(w - e, client)) / 2e-5 for e in 1e-5 * np.eye(9)]
        assert task.gradient(w, client) == pytest.approx(np.array(numeric), abs=1e-6)
    assert np.abs(task.gradient(task.minimiser)).max() < 1e-14
    assert task.value(task.minimiser) == pytest.approx(task.optimal_value)
    assert task.initial_gap == pytest.approx(task.value(np.zeros(9)) - task.optimal_value)
    assert task.initial_gap == pytest.approx(3.0 * (2 * 4 + 1) / (16 * (4 + 1)))  # as printed


def test_smoothness_of_the_parts() -> None:
    """F is L-smooth; its two parts are NL/2-smooth, against Assumption 1 for N > 2."""
    task = HardInstance(6, num_clients=5, L=2.0)
    zero = np.zeros(task.dim)
    largest = []
    for client in (None, 0, 1):
        columns = [task.gradient(e, client) - task.gradient(zero, client) for e in np.eye(task.dim)]
        largest.append(np.linalg.eigvalsh(np.array(columns))[-1])
    assert 1.9 < largest[0] <= 2.0
    assert largest[1:] == pytest.approx([5.0, 5.0])


def test_least_gradient_in_the_span() -> None:
    """The closed forms of the proof against least squares."""
    task = HardInstance(5, L=0.2)
    zero = np.zeros(task.dim)
    columns = np.array([task.gradient(e) - task.gradient(zero) for e in np.eye(task.dim)]).T
    for k in range(task.dim):
        solution = np.linalg.lstsq(columns[:, :k], -task.gradient(zero), rcond=None)[0]
        assert task.best_point(k)[:k] == pytest.approx(solution)
        assert np.all(task.best_point(k)[k:] == 0)
        norm = np.sum(task.gradient(task.best_point(k)) ** 2)
        assert task.least_squared_gradient(k) == pytest.approx(norm)
    assert task.least_squared_gradient(task.dim) == 0.0


def test_lower_bound_by_hand_and_its_proof() -> None:
    assert lower_bound(0.2, 0.1, 0.25, 8) == pytest.approx(3 * 0.2 * 0.1 / (4 * 17**2))
    assert expected_reach_bound(0.25, 8) == pytest.approx(5.0)
    # the proof's own inequality for fixed k is too strong by up to (2k+4)/(2k+3) …
    task = HardInstance(1000)
    for k in (0, 1, 5, 50):
        claimed = 6 * task.initial_gap / ((k + 1) * (2 * k + 3) ** 2)
        assert 1 < claimed / task.least_squared_gradient(k) < (2 * k + 4) / (2 * k + 3)
    # … and with E[k] ≤ 1 + 2pt and the exact minimum the theorem holds all the same
    for p in (1.0, 0.5, 0.1, 0.003):
        for t in (1, 2, 10, 100, 3000):
            mean_k = expected_reach_bound(p, t)
            exact = 3 / (8 * (mean_k + 1) * (mean_k + 2) * (2 * mean_k + 3))
            assert lower_bound(1.0, HardInstance(t).initial_gap, p, t) < exact


def test_the_bound_is_of_the_right_size() -> None:
    """The best that any method could do, E of the least gradient in the reachable span, is within 10×."""
    t, p = 100, 0.1
    task = HardInstance(t)
    k = simulate_reach(p, t, 2000)[:, -1]
    best = np.mean([task.least_squared_gradient(int(x)) for x in k])
    bound = lower_bound(1.0, task.initial_gap, p, t)
    assert bound <= best <= 10 * bound


RULES: dict[str, Callable[[], fs.Rule]] = {
    "U-FedAvg": fs.UnbiasedFedAvg,
    "U-FedVARP": fs.UnbiasedFedVARP,
    "FedStale": lambda: fs.FedStale(beta=0.5),
    "FedAvg": fs.FedAvg,
}


@pytest.mark.parametrize(("name", "steps", "lr_client"), combinations(list(RULES), [1, 5], [0.3, 1.0, 1.8]))
def test_no_rule_beats_the_lower_bound(name: str, steps: int, lr_client: float) -> None:
    """30 iterates, i₁ with p = 0.2, 20 draws of participation; rates up to near the stable limit 2/(NL/2)."""
    t, p = 30, np.array([1.0, 0.2])
    task = HardInstance(t)
    rule = RULES[name]()
    norms = []
    for seed in range(20):
        active = np.random.default_rng(seed).random((t - 1, 2)) < p
        state = rule.init(fs.Federation(2, task.dim))

        def combine(index: int, clients: NDArray[np.int64], updates: Array, state: fs.State = state) -> Array:
            return np.asarray(rule.combine(state, fs.Round(index, clients, updates, p[clients])))

        run = task.run(combine, active, lr_client, steps, lr_server=0.3)
        k = np.concatenate([[0], reach(active[:, 0], active[:, 1])])
        assert np.all(run.reach <= k)
        floor = np.array([task.least_squared_gradient(int(x)) for x in k])
        assert np.all(run.squared_gradients >= floor * (1 - 1e-12))
        norms.append(run.squared_gradients)
    mean = np.mean(norms, axis=0)
    bound = lower_bound(1.0, task.initial_gap, 0.2, t)
    assert mean.min() >= bound
    assert mean.min() < 0.5 * mean[0]  # the rules do work on the problem
    # the bound is not trivial: there are points below it, out of reach
    assert np.sum(task.gradient(task.best_point(2 * t)) ** 2) < bound


def test_everything_reachable_is_reached() -> None:
    """Eq. `k_it_increment` is an equality for U-FedAvg: the simulated k^(t) is the real one."""
    task = HardInstance(20)
    active = np.random.default_rng(4).random((19, 2)) < np.array([0.8, 0.4])
    run = task.run(lambda _t, _s, updates: updates.sum(0) / 2, active, 0.3, 3, 1.0)
    assert run.reach[1:].tolist() == reach(active[:, 0], active[:, 1]).tolist()
    assert run.reach[-1] > 5


def test_idle_clients_change_nothing() -> None:
    task, small = HardInstance(6, num_clients=4), HardInstance(6)
    assert np.all(task.update(np.ones(13), 3, 0.1, 5) == 0)
    assert task.update(np.ones(13), 1, 0.1, 2) == pytest.approx(small.update(np.ones(13), 1, 0.2, 2))


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="p_min = 0"):
        lower_bound(1, 1, 0, 5)
    with pytest.raises(InvalidInput, match="t = 0"):
        lower_bound(1, 1, 0.5, 0)
    for p in (0.8, 1.0, 0.3):  # τ below 2, or not whole
        with pytest.raises(InvalidInput, match=f"p = {p}"):
            reach_bound(p, 3)
    with pytest.raises(InvalidInput, match="t = -1"):
        reach_bound(0.5, -1)
    with pytest.raises(InvalidInput, match="active_second"):
        reach(np.ones(3, dtype=bool), np.ones(4, dtype=bool))
    with pytest.raises(InvalidInput, match="active_first"):
        reach([0, 1], [1, 0])
    with pytest.raises(InvalidInput, match="num_clients = 1"):
        HardInstance(3, 1)
    task = HardInstance(3)
    with pytest.raises(InvalidInput, match="client = 2"):
        task.gradient(np.zeros(7), 2)
    with pytest.raises(InvalidInput, match="w = "):
        task.value(np.zeros(6))
    with pytest.raises(InvalidInput, match="k = 7"):
        task.best_point(7)
    with pytest.raises(InvalidInput, match="active"):
        task.run(lambda _t, _s, u: u.sum(0), np.ones((4, 3), dtype=bool), 0.1, 1, 1.0)
