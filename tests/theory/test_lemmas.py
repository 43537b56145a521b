"""Lemmas 5–7 and 10 on quadratics: participation by enumeration, stochastic gradients by Monte Carlo, any weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstale import theory
from fedstale.checks import InvalidInput
from fedstale.theory import Problem
from tests.combinations import combinations
from tests.enumeration import participation_sets

Array = NDArray[np.float64]
N, D, SAMPLES = 5, 3, 3000


@dataclass(frozen=True, eq=False)
class Situation:
    """A round of FedStale in the middle of a run: the model, the one before, an arbitrary memory."""

    curvature: Array
    centres: Array
    alpha: Array
    p: Array
    w: Array
    before: Array
    h: Array
    problem: Problem
    seed: int

    def gradients(self, w: Array) -> Array:
        """∇F_i at w of shape (…, N, d) or (d,)."""
        return np.asarray(self.curvature * (w - self.centres))

    def value(self, w: Array) -> Array:
        """F at w of shape (…, d)."""
        local = 0.5 * np.sum(self.curvature * (w[..., None, :] - self.centres) ** 2, axis=-1)
        return np.asarray(local @ self.alpha)

    @cached_property
    def gradient(self) -> Array:
        return np.asarray(self.alpha @ self.gradients(self.w))

    @property
    def squared_gradient(self) -> float:
        return float(self.gradient @ self.gradient)

    @cached_property
    def last_update(self) -> Array:
        return (self.before - self.w) / self.problem.lr

    @property
    def squared_last_update(self) -> float:
        return float(self.last_update @ self.last_update)

    @property
    def memory_error(self) -> float:
        """H^(t)."""
        return float(self.alpha @ np.sum((self.gradients(self.before) - self.h) ** 2, axis=-1))

    @cached_property
    def pseudo_gradients(self) -> tuple[Array, Array]:
        """g_i and ḡ_i of every client, shape (samples, N, d)."""
        rng = np.random.default_rng(self.seed)
        local = np.broadcast_to(self.w, (SAMPLES, N, D)).copy()
        noisy, exact = np.zeros_like(local), np.zeros_like(local)
        scale = np.sqrt(self.problem.sigma2 / D)
        for _ in range(self.problem.K):
            here = self.gradients(local)
            seen = here + scale * rng.standard_normal(local.shape)
            noisy += seen / self.problem.K
            exact += here / self.problem.K
            local -= self.problem.lr_client * seen
        return noisy, exact

    @cached_property
    def drift(self) -> Array:
        """E‖ḡ_i − ∇F_i(w)‖², shape (N,)."""
        return np.asarray(np.mean(np.sum((self.pseudo_gradients[1] - self.gradients(self.w)) ** 2, axis=-1), axis=0))

    def outcomes(self) -> list[tuple[float, Array, Array]]:
        """Chance, Δ of shape (samples, d) and new memory of shape (samples, N, d), for every set of participants."""
        fresh, beta, found = self.pseudo_gradients[0], self.problem.beta, []
        for chance, clients in participation_sets(self.p):
            came = np.zeros(N)
            came[clients] = 1.0
            weight = (self.alpha * came / self.p)[:, None]
            delta = beta * self.alpha @ self.h + np.sum(weight * (fresh - beta * self.h), axis=1)
            found.append((chance, delta, np.where(came[:, None] > 0, fresh, self.h)))
        return found

    def next_memory_error(self) -> float:
        """E[H^(t+1)]."""
        local = self.gradients(self.w)
        each = [(chance, np.sum((local - h) ** 2, axis=-1) @ self.alpha) for chance, _, h in self.outcomes()]
        return float(sum(chance * error.mean() for chance, error in each))


def situation(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    curvature = rng.uniform(0.1, 1.0, D)
    centres = rng.normal(size=(N, D)) * rng.uniform(0.1, 2)
    alpha = np.full(N, 1 / N) if seed % 2 else rng.dirichlet(np.ones(N))
    p = np.minimum(1.0, rng.uniform(0.05, 1.3, N))
    steps, beta = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.3, 0.8, 1.0]))
    gradients = curvature * (rng.normal(size=D) - centres)
    spread = float(np.sum((gradients - alpha @ gradients) ** 2, axis=1).max())  # the same at every w
    L = float(curvature.max())
    limits = theory.step_size_limits(L, p, steps, beta, alpha=alpha)
    rate = float(min(limits.server_proof, 5.0)) * rng.uniform(0.3, 1.0)
    problem = Problem(
        L=L, sigma2=float(rng.choice([0.0, 0.5])), sigma_g2=spread, initial_gap=1.0, memory_gap=1.0, p=p, K=steps, T=10,
        lr_client=limits.client * 1.0, lr_server=rate, beta=beta, alpha=alpha,
    )  # fmt: skip
    w = rng.normal(size=D)
    before = w + 0.3 * problem.lr * rng.normal(size=D)
    return Situation(curvature, centres, alpha, p, w, before, rng.normal(size=(N, D)), problem, seed)


SITUATIONS = [situation(seed) for seed in range(12)]


@pytest.mark.parametrize("here", SITUATIONS, ids=lambda here: str(here.seed))
def test_drift(here: Situation) -> None:
    bound = theory.drift_bound(here.problem, here.squared_gradient)
    assert here.drift.max() <= bound.total
    for drift, gradient in zip(here.drift, here.gradients(here.w), strict=True):
        own = theory.local_drift_bound(here.problem, float(gradient @ gradient))
        assert drift <= own.total
        assert own.heterogeneity == 0.0
    if here.problem.K == 1:
        assert bound.total == 0.0
    else:
        assert here.drift.max() > 0.002 * bound.total  # it bounds something


@pytest.mark.parametrize("here", SITUATIONS, ids=lambda here: str(here.seed))
def test_variance_of_the_update(here: Situation) -> None:
    mean = np.einsum("snd,n->sd", here.pseudo_gradients[1], here.alpha)
    variance = sum(chance * np.mean(np.sum((delta - mean) ** 2, axis=-1)) for chance, delta, _ in here.outcomes())
    for drift in (here.drift, theory.drift_bound(here.problem, here.squared_gradient).total):
        bound = theory.update_variance_bound(
            here.problem, drift, here.squared_gradient, here.squared_last_update, here.memory_error
        )
        assert (
            0.005 * bound.total < variance <= 1.02 * bound.total
        )  # Monte Carlo: where only the noise is left, it is equal
    if here.problem.beta == 1.0:
        assert bound.fresh_drift == bound.fresh_gradient == bound.fresh_heterogeneity == 0.0
    if here.problem.beta == 0.0:
        assert bound.stale_drift == bound.stale_step == bound.stale_memory == 0.0


@pytest.mark.parametrize(
    ("here", "C"),
    combinations(SITUATIONS, [None, 0.01, 3.0]),
    ids=lambda value: str(value.seed) if isinstance(value, Situation) else str(value),
)
def test_memory_error(here: Situation, C: float | None) -> None:
    bound = theory.memory_error_bound(here.problem, here.drift, here.squared_last_update, here.memory_error, C)
    assert 0.02 * bound.total < here.next_memory_error() <= 1.02 * bound.total


@pytest.mark.parametrize("here", SITUATIONS, ids=lambda here: str(here.seed))
def test_progress(here: Situation) -> None:
    problem = here.problem
    theory.check_step_sizes(problem)
    now = theory.lyapunov(problem, float(here.value(here.w)), here.squared_last_update, here.memory_error)
    later = 0.0
    for chance, delta, h in here.outcomes():
        error = np.sum((here.gradients(here.w) - h) ** 2, axis=-1) @ here.alpha
        values = here.value(here.w - problem.lr * delta)
        squares = np.sum(delta**2, axis=-1)
        later += chance * theory.lyapunov(problem, values.mean(), squares.mean(), error.mean()).total
    bound = theory.progress_bound(problem, now.total, here.squared_gradient)
    assert later <= bound.total
    assert bound.descent < 0.0


def test_everybody_there_all_the_time() -> None:
    here = SITUATIONS[0]
    problem = replace(here.problem, p=np.ones(N))
    variance = theory.update_variance_bound(problem, 1.0, 1.0, 1.0, 1.0)
    assert variance.total == variance.noise == float(np.sum(here.alpha**2)) * problem.sigma2 / problem.K
    memory = theory.memory_error_bound(problem, 0.25, 1.0, 1.0)
    assert memory.step == memory.memory == 0.0
    assert memory.drift == pytest.approx(0.25)


def test_equal_weights_are_the_papers() -> None:
    here = SITUATIONS[0]
    equal = replace(here.problem, alpha=np.full(N, 1 / N))
    assert theory.upper_bound(equal).total == pytest.approx(
        theory.upper_bound(replace(equal, alpha=None)).total, rel=1e-12
    )
    assert theory.optimal_beta(equal) == pytest.approx(theory.optimal_beta(replace(equal, alpha=None)), rel=1e-12)


def test_weights_decide_whose_absence_matters() -> None:
    """β* looks at the weight of those who are absent: Σ α²ω/Σ αω in the place of 1/N."""
    p = np.array([1.0, 1.0, 0.1, 0.1])
    heavy, light = np.array([0.1, 0.1, 0.4, 0.4]), np.array([0.4, 0.4, 0.1, 0.1])
    stars = []
    for alpha in (heavy, light):
        r = float(alpha @ p) / 0.1
        expected = alpha[2] / (alpha[2] + 2 * r * 1.0)
        stars.append(theory.optimal_beta_from_moments(1.0, 1.0, p, alpha=alpha, drift=0.0))
        assert stars[-1] == pytest.approx(expected)
    assert stars[0] > stars[1]


def test_clients_without_weight_do_not_matter() -> None:
    here = SITUATIONS[0].problem
    p, alpha = np.asarray(here.p), np.asarray(here.alpha)
    more = replace(here, p=np.append(p, 1e-3), alpha=np.append(alpha, 0.0))
    assert theory.upper_bound(more).total == pytest.approx(theory.upper_bound(here).total)


def test_what_is_refused() -> None:
    here = SITUATIONS[0].problem
    with pytest.raises(InvalidInput, match="must sum to 1"):
        replace(here, alpha=np.full(N, 1.0))
    with pytest.raises(InvalidInput, match="alpha"):
        theory.participation_summary([0.5, 0.5], [-1.0, 2.0])
    with pytest.raises(InvalidInput, match="lr_client"):
        theory.drift_bound(replace(here, lr_client=1.0 / here.L), 1.0)
    with pytest.raises(InvalidInput, match="C = 0"):
        theory.memory_error_bound(here, 0.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(("p_min", "ceiling"), [(0.5, 0.1), (0.05, 0.0156), (0.002, 0.00066)])
def test_beta_of_the_theory_is_small_in_the_papers_settings(p_min: float, ceiling: float) -> None:
    p = np.where(np.arange(24) < 12, 1.0, p_min)
    assert theory.optimal_beta_from_moments(0.0, 1.0, p) == pytest.approx(ceiling, rel=0.02)
