"""β*: the minimiser of the bound, and the two guidelines that the paper draws from it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedstale.checks import InvalidInput
from fedstale.theory import (
    LARGEST_DRIFT,
    Problem,
    beta_coefficients,
    largest_drift,
    optimal_beta,
    optimal_beta_from_moments,
    participation_summary,
    step_size_limits,
    upper_bound,
)

from .test_upper import random_problem


def test_the_bound_is_the_polynomial() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        problem = random_problem(rng)
        polynomial = beta_coefficients(problem)
        for beta in (0.0, 0.25, 0.6, 1.0):
            assert upper_bound(problem.with_beta(beta)).total == pytest.approx(polynomial.at(beta), rel=1e-12)


def test_beta_is_the_numeric_minimiser() -> None:
    rng = np.random.default_rng(1)
    betas = []
    for _ in range(100):
        problem = random_problem(rng)
        # C is the same for all β: without it the minimum is sharp enough for the optimiser
        base = beta_coefficients(problem).C

        def excess(beta: float, problem: Problem = problem, base: float = base) -> float:
            return upper_bound(problem.with_beta(beta)).total - base

        found = minimize_scalar(excess, bounds=(0, 1), method="bounded", options={"xatol": 1e-9})
        betas.append(optimal_beta(problem))
        assert betas[-1] == pytest.approx(found.x, abs=1e-5)
    assert max(betas) > 0.1  # not all at the border


def test_moments_give_the_same_beta_as_the_theorem() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        problem = random_problem(rng)
        scale = rng.uniform(0.01, 100)  # updates instead of gradients
        from_moments = optimal_beta_from_moments(
            scale * problem.sigma2 / problem.K,
            scale * problem.sigma_g2,
            problem.p,
            drift=problem.drift,
            memory_gap=scale * problem.memory_gap,
            horizon=problem.T,
        )
        assert from_moments == pytest.approx(optimal_beta(problem), rel=1e-12)
        without = optimal_beta_from_moments(
            problem.sigma2 / problem.K, problem.sigma_g2, problem.p, drift=problem.drift
        )
        endless = optimal_beta(dataclasses.replace(problem, memory_gap=0.0))
        assert without == pytest.approx(endless, rel=1e-12)
        assert without > from_moments
        exact_memory = optimal_beta_from_moments(
            problem.sigma2 / problem.K, problem.sigma_g2, problem.p, drift=problem.drift, horizon=problem.T
        )
        assert exact_memory == without


def test_the_constants_of_eq_beta_opt() -> None:
    """a₁ = 2(1+2D) and a₂ = 16."""
    p, noise, spread, drift = np.array([1.0, 1.0, 0.2, 0.2]), 0.3, 2.0, 0.01
    ratio = participation_summary(p).ratio
    a1, a2 = 2 * (1 + 2 * drift), 16
    expected = spread / 4 / (a1 * ratio * noise + (1 / 4 + a2 * ratio * drift) * spread)
    assert optimal_beta_from_moments(noise, spread, p, drift=drift) == pytest.approx(expected)


@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("drift", [0.0, LARGEST_DRIFT])
def test_guideline_a_beta_grows_with_heterogeneity(noise: float, drift: float) -> None:
    for p_min, n in itertools.product([0.5, 0.1, 0.01], [2, 24, 1000]):
        p = np.where(np.arange(n) < n // 2, 1.0, p_min)
        betas = [optimal_beta_from_moments(noise, g, p, drift=drift) for g in np.geomspace(1e-3, 1e3, 13)]
        assert np.all(np.diff(betas) > 0)
        assert optimal_beta_from_moments(noise, 0.0, p, drift=drift) == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("spread", [0.01, 1.0, 100.0])
def test_guideline_b_beta_falls_with_the_ratio(noise: float, spread: float) -> None:
    for n in (2, 24, 1000):
        betas = []
        ratios = []
        for p_min in (0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.002):
            p = np.where(np.arange(n) < n // 2, 1.0, p_min)
            ratios.append(participation_summary(p).ratio)
            betas.append(optimal_beta_from_moments(noise, spread, p))
        assert np.all(np.diff(ratios) > 0)
        assert np.all(np.diff(betas) < 0)


def test_edges() -> None:
    assert optimal_beta_from_moments(0.0, 1.0, [0.5, 0.5], drift=0.0) == 1.0  # no noise, one step: trust all
    assert optimal_beta_from_moments(0.0, 0.0, [0.5, 0.5]) == 0.0  # A = B = 0
    assert optimal_beta_from_moments(1.0, 1.0, [1.0, 1.0]) == 0.0  # everybody is there: no memory needed
    everybody = random_problem(np.random.default_rng(0), p=np.ones(5))
    coefficients = beta_coefficients(everybody)
    assert (coefficients.A, coefficients.B, coefficients.minimiser) == (0.0, 0.0, 0.0)


def test_more_clients_than_probabilities() -> None:
    few = optimal_beta_from_moments(1.0, 1.0, [0.5, 0.1])
    many = optimal_beta_from_moments(1.0, 1.0, [0.5, 0.1], 20)
    same = optimal_beta_from_moments(1.0, 1.0, np.tile([0.5, 0.1], 10))
    assert many == pytest.approx(same)
    assert many < few


def test_largest_drift() -> None:
    for k in (1, 2, 5, 100):
        rate = step_size_limits(3.0, [0.5], k, 0.5).client
        assert largest_drift(k) == pytest.approx((rate * 3.0) ** 2 * k * (k - 1))
        assert largest_drift(k) < LARGEST_DRIFT
    assert largest_drift(10**9) == pytest.approx(LARGEST_DRIFT)


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="sigma2_over_K = -1"):
        optimal_beta_from_moments(-1, 1, [0.5])
    with pytest.raises(InvalidInput, match="sigma_g2 = nan"):
        optimal_beta_from_moments(1, float("nan"), [0.5])
    with pytest.raises(InvalidInput, match=r"p\[1\] = 0"):
        optimal_beta_from_moments(1, 1, [0.5, 0.0])
    with pytest.raises(InvalidInput, match="drift"):
        optimal_beta_from_moments(1, 1, [0.5], drift=-0.1)
    with pytest.raises(InvalidInput, match="horizon = 0"):
        optimal_beta_from_moments(1, 1, [0.5], horizon=0)
    with pytest.raises(InvalidInput, match="num_clients = 0"):
        optimal_beta_from_moments(1, 1, [0.5], 0)
    with pytest.raises(InvalidInput, match="K = 0"):
        largest_drift(0)
