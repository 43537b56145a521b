"""σ², σ_g² and L from a run: recovered on quadratics where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstale.checks import InvalidInput
from fedstale.theory import MomentEstimator, Moments, Observation, noise_and_heterogeneity

from .quadratics import Quadratics

Array = NDArray[np.float64]
N, D, K, RATE = 12, 20, 3, 0.01


def observed(
    task: Quadratics,
    p: Array,
    rounds: int,
    *,
    tell_moves: bool = True,
    weighted: bool = False,
    estimator: MomentEstimator | None = None,
    step: float = 1.0,
    seed: int = 0,
) -> Moments:
    """Run U-FedAvg from the optimum plus noise and estimate from what the server sees."""
    rng = np.random.default_rng(seed)
    estimator = estimator or MomentEstimator()
    n = len(p)
    state, w = estimator.init(), task.centres.mean(0) + rng.normal(size=D)
    stale, stored, models = np.zeros((n, D)), np.full(n, -1), []
    for t in range(rounds):
        models.append(w)
        came = np.flatnonzero(rng.random(n) < p)
        fresh = task.updates(w[None], RATE, K, rng)[0][came]
        gap = np.where(stored[came] < 0, 0, t - stored[came])
        moved = np.array([np.sum((w - models[t - g]) ** 2) for g in gap])
        seen = Observation.of(
            fresh,
            stale[came],
            gap,
            moved_sq=moved if tell_moves else None,
            weights=1 / p[came] if weighted else None,
        )
        state = estimator.update(state, seen)
        w = w - step * np.sum(fresh / p[came, None], axis=0) / n
        stale[came], stored[came] = fresh, t
    return estimator.estimate(state, num_clients=n)


def quadratics(sigma2: float, spread: float = 1.0, seed: int = 1) -> Quadratics:
    centres = spread * np.random.default_rng(seed).normal(size=(N, D))
    return Quadratics(centres, np.full(D, 2.0), sigma2)


@pytest.mark.parametrize("sigma2", [1.0, 50.0])
@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_noise_and_heterogeneity_are_recovered(sigma2: float, spread: float) -> None:
    """Within 10 % of σ², and within 10 % of the mean ‖∇F_i − ∇F‖² plus 5 % of σ²/K (which is taken off)."""
    task = quadratics(sigma2, spread)
    moments = observed(task, np.full(N, 0.5), 600)
    found_sigma2, found_sigma_g2, _ = moments.gradient_scale(RATE, K)
    true = task.deviations.mean()
    assert found_sigma2 == pytest.approx(sigma2, rel=0.1)
    assert found_sigma_g2 == pytest.approx(true, rel=0.1, abs=0.05 * sigma2 / K)


@pytest.mark.parametrize("sigma2", [0.0, 0.1])
def test_smoothness_is_recovered(sigma2: float) -> None:
    """Within 5 %, of which 1−(1−η_c L)^K against η_c K L takes 2 %."""
    moments = observed(quadratics(sigma2), np.full(N, 0.3), 400)
    assert moments.gradient_scale(RATE, K)[2] == pytest.approx(2.0, rel=0.05)
    assert moments.curvature == pytest.approx(RATE * K * 2.0, rel=0.05)
    assert moments.drift(K) == pytest.approx((RATE * 2.0) ** 2 * K * (K - 1), rel=0.1)


def test_smoothness_is_never_above_the_largest_curvature() -> None:
    task = Quadratics(quadratics(0.0).centres, np.linspace(0.2, 2.0, D), 0.0)
    found = observed(task, np.full(N, 0.3), 400).gradient_scale(RATE, K)[2]
    assert 0.2 < found < 2.0


def test_moves_of_the_model_are_taken_off_the_noise() -> None:
    """No noise at all: what is left between h_i and Δ_i is the model's move, and it is told."""
    task = quadratics(0.0)
    untold = observed(task, np.full(N, 0.5), 50, tell_moves=False)
    told = observed(task, np.full(N, 0.5), 50)
    assert untold.sigma2_over_K > 0
    assert told.sigma2_over_K < 0.02 * untold.sigma2_over_K
    assert np.isnan(untold.curvature)


def test_old_memory_is_not_noise() -> None:
    """A large `max_gap` lets the moves in; untold, they raise the estimate."""
    task, p = quadratics(0.01), np.full(N, 0.2)
    recent = observed(task, p, 300, tell_moves=False)
    old = observed(task, p, 300, tell_moves=False, estimator=MomentEstimator(max_gap=100))
    assert old.sigma2_over_K > 1.5 * recent.sigma2_over_K


def test_weights_make_the_heterogeneity_that_of_all_clients() -> None:
    """Frequent clients agree, rare ones do not: unweighted pairs hide it, weights 1/p_i show it."""
    centres = np.zeros((N, D))
    centres[N // 2 :] = np.random.default_rng(3).normal(size=(N // 2, D))
    task = Quadratics(centres, np.full(D, 2.0), 0.5)
    p = np.where(np.arange(N) < N // 2, 0.9, 0.1)
    scale = (RATE * K) ** 2
    plain = observed(task, p, 1500, step=0.2).sigma_g2 / scale
    weighted = observed(task, p, 1500, step=0.2, weighted=True).sigma_g2 / scale
    true = task.deviations.mean()
    assert plain < 0.6 * true
    assert weighted == pytest.approx(true, rel=0.15)


def test_equal_clients_have_no_heterogeneity() -> None:
    task = Quadratics(np.zeros((N, D)), np.full(D, 2.0), 4.0)
    moments = observed(task, np.full(N, 0.5), 600)
    assert moments.sigma_g2 < 0.05 * moments.sigma2_over_K


def test_forgetting_follows_a_change() -> None:
    rng = np.random.default_rng(0)
    estimator = MomentEstimator(forget=0.4)
    state = estimator.init()
    for scale in [10.0] * 100 + [1.0] * 100:
        fresh, stale = scale * rng.normal(size=(2, 5, D))
        state = estimator.update(state, Observation.of(fresh, stale, np.ones(5)))
    noise, _ = noise_and_heterogeneity(state)
    assert noise == pytest.approx(D, rel=0.4)


def test_state_is_not_changed_in_place_and_nothing_seen_is_nan() -> None:
    estimator = MomentEstimator()
    empty = estimator.init()
    assert np.isnan(noise_and_heterogeneity(empty)).all()
    assert np.isnan(estimator.estimate(empty).curvature)
    nobody = Observation.of(np.zeros((0, 3)), np.zeros((0, 3)), [])
    assert np.all(estimator.update(empty, nobody) == 0)
    alone = Observation.of(np.ones((1, 3)), np.zeros((1, 3)), [1])
    after = estimator.update(empty, alone)
    assert np.all(empty == 0)
    noise, spread = noise_and_heterogeneity(after)
    assert noise == pytest.approx(1.5)
    assert np.isnan(spread)
    assert after[0] == 1.0
    for gap in (0, 2):  # no memory yet, or an old one
        seen = Observation.of(np.ones((1, 3)), np.zeros((1, 3)), [gap])
        assert np.isnan(noise_and_heterogeneity(estimator.update(empty, seen))).all()


def test_scalars_are_those_of_the_vectors() -> None:
    rng = np.random.default_rng(0)
    fresh, stale = rng.normal(size=(2, 4, 7))
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    estimator = MomentEstimator(max_gap=3)
    state = estimator.update(estimator.init(), Observation.of(fresh, stale, [1, 2, 3, 4], weights=weights))
    noise, spread = noise_and_heterogeneity(state)
    assert noise == pytest.approx(np.sum((fresh - stale)[:3] ** 2) / 6)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    mass = sum(weights[i] * weights[j] for i, j in pairs)
    apart = sum(weights[i] * weights[j] * np.sum((fresh[i] - fresh[j]) ** 2) / 2 for i, j in pairs)
    assert spread == pytest.approx(max(apart / mass - noise, 0.0))
    assert noise_and_heterogeneity(state, 2)[1] == pytest.approx(spread / 2)


def test_bad_input() -> None:
    estimator = MomentEstimator()
    good = Observation.of(np.ones((2, 3)), np.ones((2, 3)), [1, 1])
    with pytest.raises(InvalidInput, match="max_gap = 0"):
        MomentEstimator(max_gap=0)
    for forget in (0, 1.5):
        with pytest.raises(InvalidInput, match=f"forget = {forget}"):
            MomentEstimator(forget=forget)
    with pytest.raises(InvalidInput, match="state"):
        estimator.update(np.zeros(3), good)
    with pytest.raises(InvalidInput, match="gap"):
        estimator.update(estimator.init(), Observation.of(np.ones((2, 3)), np.ones((2, 3)), [1, -1]))
    with pytest.raises(InvalidInput, match="gap"):
        estimator.update(estimator.init(), Observation.of(np.ones((2, 3)), np.ones((2, 3)), [1]))
    with pytest.raises(InvalidInput, match="weights"):
        estimator.update(estimator.init(), Observation.of(np.ones((2, 3)), np.ones((2, 3)), [1, 1], weights=[1, 0]))
    with pytest.raises(InvalidInput, match="stale"):
        Observation.of(np.ones((2, 3)), np.ones((2, 4)), [1, 1])
    with pytest.raises(InvalidInput, match=r"fresh_sq\[0\]"):
        estimator.update(estimator.init(), Observation.of(np.full((2, 3), np.nan), np.ones((2, 3)), [1, 1]))
    with pytest.raises(InvalidInput, match="num_clients = 1"):
        noise_and_heterogeneity(estimator.update(estimator.init(), good), 1)
    with pytest.raises(InvalidInput, match="lr_client = 0"):
        Moments(1.0, 1.0, 1.0).gradient_scale(0, 5)


def test_the_line_needs_moves_that_differ() -> None:
    """‖Δ_i − h_i‖² = 2 + 9·move: slope 9 from two close moves; nothing from equal ones."""
    estimator = MomentEstimator()
    for moves, curvature in (([1.0, 1.1], 3.0), ([0.7, 0.7], np.nan)):
        change = 2 + 9 * np.array(moves)
        seen = Observation(change, np.zeros(2), np.zeros(2), [1, 1], 0.0, moved_sq=moves)
        found = estimator.estimate(estimator.update(estimator.init(), seen))
        assert found.curvature == pytest.approx(curvature, nan_ok=True)
        expected = 1.0 if curvature == 3.0 else np.mean(change) / 2
        assert found.sigma2_over_K == pytest.approx(expected)
