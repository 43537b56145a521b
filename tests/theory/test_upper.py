"""Theorem `thm:fedhist`: its constants against the lemmas, its truth against runs, its step sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedstale.checks import InvalidInput
from fedstale.theory import (
    Problem,
    check_step_sizes,
    participation_summary,
    step_size_limits,
    upper_bound,
)
from tests.combinations import combinations

from .quadratics import Quadratics, fedstale_run


def random_problem(rng: np.random.Generator, **fixed: Any) -> Problem:
    values: dict[str, Any] = {
        "L": rng.uniform(0.1, 5),
        "sigma2": rng.exponential(2),
        "sigma_g2": rng.exponential(2),
        "initial_gap": rng.exponential(2),
        "memory_gap": rng.exponential(2),
        "p": rng.uniform(0.01, 1, rng.integers(2, 30)),
        "K": int(rng.integers(1, 10)),
        "T": int(rng.integers(1, 500)),
        "lr_client": rng.uniform(0.001, 0.1),
        "lr_server": rng.uniform(0.01, 2),
        "beta": rng.uniform(0, 1),
    }
    return Problem(**(values | fixed))


def test_summary_by_hand() -> None:
    summary = participation_summary([1.0, 0.5, 0.25, 0.25])
    assert summary.num_clients == 4
    assert summary.p_avg == pytest.approx(0.5)
    assert summary.p_min == pytest.approx(0.25)
    assert summary.inverse_p_var == pytest.approx((0 + 1 + 3 + 3) / 4)
    assert summary.absence == pytest.approx((0 + 1 + 3 + 3) / 16)
    assert summary.sampling == pytest.approx((1 + 2 + 4 + 4) / 16)
    assert summary.ratio == pytest.approx(2.0)


def test_the_theorem_is_the_sum_of_its_lemmas() -> None:
    """Lemmas `lem:round_progress` and `lem:initial_progress`, typed from the paper, summed over T rounds.

    The theorem is looser in two places only: the (1−β)² term is counted in the first round too, and the first
    round's drift with 6 in the place of 3.
    """
    rng = np.random.default_rng(0)
    for _ in range(200):
        problem = random_problem(rng)
        p, n, k, t = np.asarray(problem.p), np.size(problem.p), problem.K, problem.T
        eta, big_l, beta = problem.lr_server * problem.lr_client * k, problem.L, problem.beta
        v, r = np.mean((1 - p) / p), p.mean() / p.min()
        drift = problem.lr_client**2 * big_l**2 * k * (k - 1)
        noise = problem.sigma2 / k
        stale = 12 * beta**2 * eta**2 * big_l * v * r
        sampled = eta**2 * big_l / n * v
        noise_terms = (eta**2 * big_l / n * np.mean(1 / p) + stale) * noise
        noise_terms += (eta / 2 + 6 * sampled + stale) * 2 * drift * noise
        later = noise_terms + 6 * sampled * (1 - beta) ** 2 * problem.sigma_g2
        later += (eta / 2 + 6 * sampled + stale) * 8 * drift * problem.sigma_g2
        first = noise_terms + 3 * sampled * problem.sigma_g2
        first += (eta / 2 + 3 * sampled + stale) * 8 * drift * problem.sigma_g2
        memory = 12 * beta**2 * eta**2 * big_l * v * (1 - p.min()) / p.min() * problem.memory_gap
        from_lemmas = 4 / (eta * t) * (problem.initial_gap + first + memory + (t - 1) * later)
        slack = (24 * (1 - beta) ** 2 + 96 * drift) * sampled / eta * problem.sigma_g2 / t
        assert upper_bound(problem).total == pytest.approx(from_lemmas + slack, rel=1e-12)


def test_the_terms_add_up_and_belong_to_their_cause() -> None:
    rng = np.random.default_rng(1)
    problem = random_problem(rng, K=4)
    bound = upper_bound(problem)
    assert sum(dataclasses.astuple(bound)) == pytest.approx(bound.total)
    assert min(dataclasses.astuple(bound)) > 0
    parts = {
        "initial_gap": bound.initialisation,
        "memory_gap": bound.memory,
        "sigma2": bound.stochastic_gradient,
        "sigma_g2": bound.data_heterogeneity,
    }
    for name, part in parts.items():
        without = upper_bound(dataclasses.replace(problem, **{name: 0.0}))  # type: ignore[arg-type]
        assert without.total == pytest.approx(bound.total - part)


TASK = Quadratics(
    centres=np.random.default_rng(5).normal(size=(6, 4)),
    curvature=np.array([0.3, 0.5, 0.8, 1.0]),
    sigma2=0.5,
)
START = np.full(4, 3.0)


def quadratic_problem(task: Quadratics, p: np.ndarray[Any, Any], beta: float, rounds: int, steps: int) -> Problem:
    limits = step_size_limits(task.L, p, steps, beta)
    gradients = task.curvature * (START - task.centres)
    return Problem(
        L=task.L,
        sigma2=task.sigma2,
        sigma_g2=float(task.deviations.max()),
        initial_gap=task.gap(START),
        memory_gap=float(np.sum(gradients**2, axis=1).mean()),
        p=p,
        K=steps,
        T=rounds,
        lr_client=limits.client,
        lr_server=limits.server_proof,
        beta=beta,
    )


@pytest.mark.parametrize(("beta", "steps"), combinations([0.0, 0.3, 0.7, 1.0], [4, 1]))
def test_the_bound_holds_on_quadratics(beta: float, steps: int) -> None:
    """Largest allowed rates, 300 repetitions, at several horizons; without its first term it would not hold."""
    p = np.array([1.0, 1.0, 1.0, 0.3, 0.2, 0.1])
    longest = quadratic_problem(TASK, p, beta, 400, steps)
    check_step_sizes(longest)
    norms = fedstale_run(
        TASK,
        START,
        p,
        beta=beta,
        rounds=400,
        steps=steps,
        lr_client=longest.lr_client,
        lr_server=longest.lr_server,
        repetitions=300,
        seed=7,
    )
    assert norms[-1] < 0.5 * norms[0]  # the run does learn
    for rounds in (1, 10, 100, 400):
        bound = upper_bound(dataclasses.replace(longest, T=rounds))
        assert norms[:rounds].min() <= bound.total
    short = upper_bound(dataclasses.replace(longest, T=1, memory_gap=0.0))
    assert norms[0] > short.total - short.initialisation


def test_the_printed_step_sizes_admit_a_run_that_breaks_the_bound() -> None:
    """Every p_i = 1: Eq. `lem_progress_lr` allows any server rate; the proof (η ≤ 1/(2L)) does not."""
    task = dataclasses.replace(TASK, centres=np.zeros((6, 4)), sigma2=0.0)
    p = np.ones(6)
    problem = dataclasses.replace(quadratic_problem(task, p, 1.0, 50, 1), lr_server=20.0)
    check_step_sizes(problem, printed=True)
    with pytest.raises(InvalidInput, match=r"lr_server = 20\.0"):
        check_step_sizes(problem)
    norms = fedstale_run(
        task,
        START,
        p,
        beta=1.0,
        rounds=50,
        steps=1,
        lr_client=problem.lr_client,
        lr_server=20.0,
        repetitions=1,
        seed=0,
    )
    assert norms.min() > upper_bound(problem).total
    check_step_sizes(dataclasses.replace(problem, lr_server=4.0))


def test_step_size_limits_by_hand() -> None:
    limits = step_size_limits(0.4, [0.5, 0.5, 0.25, 0.25], 5, 0.5)  # v = 2, r = 1.5, N = 4
    assert limits.client == pytest.approx(1 / 16)
    assert limits.server_fresh == pytest.approx(4 / (12 * 0.25 * 2))
    assert limits.server_sampling == pytest.approx(2 * 4 / (3 * 2))
    assert limits.server_stale == pytest.approx(1 / (3 * 0.25 * 2 * 1.5))
    assert limits.server == pytest.approx(4 / 9)
    eta = 5 / 16  # η_c K at the largest η_c
    assert limits.proof_descent == pytest.approx(1 / 0.8 / eta)
    assert limits.proof_stale_step == pytest.approx(np.sqrt(4 / (24 * 0.25 * 0.16 * 2)) / eta)
    memory = 0.25**2 / (48 * 0.25 * 0.16 * 2 * (1 - 0.375) * 1.75)
    assert limits.proof_stale_memory == pytest.approx(np.sqrt(memory) / eta)
    smaller = step_size_limits(0.4, [0.5, 0.5, 0.25, 0.25], 5, 0.5, lr_client=1 / 160)
    assert smaller.server == limits.server
    assert smaller.proof_descent == pytest.approx(10 * limits.proof_descent)


def test_limits_meet_the_conditions_of_the_proof() -> None:
    """Eqs. `lem_progress_lr_3` to `lr_6`: four parts of at most 1/8 each, and each limit is as large as can be.

    The first round's part is at most 1/2 under `server_proof`, and reaches it.
    """
    rng = np.random.default_rng(2)
    parts, first_round = [], []
    for _ in range(4000):
        p, beta, k = rng.uniform(0.05, 1, rng.integers(1, 8)), rng.uniform(0, 1), int(rng.integers(2, 30))
        limits = step_size_limits(1.0, p, k, beta)
        s = participation_summary(p)
        eight_drift = 8 * limits.client**2 * k * (k - 1)
        x = limits.server * limits.client * k * s.inverse_p_var
        stale = 24 * beta**2 * x * s.ratio
        fresh = 12 * (1 - beta) ** 2 * x / s.num_clients
        parts.append([eight_drift, fresh, eight_drift * 12 * x / s.num_clients, eight_drift * stale])
        x = limits.server_proof * limits.client * k * s.inverse_p_var
        stale = 24 * beta**2 * x * s.ratio
        first_round.append(6 * x / s.num_clients * (1 + eight_drift) + eight_drift * (1 + stale))
    largest = np.max(parts, axis=0)
    assert np.all(largest <= 1 / 8 + 1e-12)
    assert np.all(largest > 0.95 / 8)
    assert max(first_round) == pytest.approx(0.5)


def test_the_printed_limit_misses_conditions_of_its_own_proof() -> None:
    """Eq. `lem_progress_lr_2` for small equal p, and the first round for N = 2: neither follows."""
    rare = step_size_limits(1.0, np.full(50, 0.02), 5, 1.0)
    assert rare.proof_stale_memory < rare.server
    two = step_size_limits(1.0, [0.5, 0.5], 5, 0.586)
    assert two.proof_first_round < two.server


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("L", 0.0),
        ("sigma2", -1.0),
        ("sigma_g2", float("nan")),
        ("initial_gap", -0.1),
        ("memory_gap", float("inf")),
        ("p", [0.5, 0.0]),
        ("p", []),
        ("p", 0.5),
        ("K", 0),
        ("T", 1.5),
        ("lr_client", 0.0),
        ("lr_server", -1.0),
        ("beta", 1.1),
    ],
)
def test_bad_problems_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        random_problem(np.random.default_rng(0), **{name: value})


def test_rates_above_the_limits_are_refused() -> None:
    fine = quadratic_problem(TASK, np.full(6, 0.5), 0.5, 10, 2)
    check_step_sizes(fine)
    with pytest.raises(InvalidInput, match="lr_client"):
        check_step_sizes(dataclasses.replace(fine, lr_client=fine.lr_client * 1.01))
    with pytest.raises(InvalidInput, match="lr_server"):
        check_step_sizes(dataclasses.replace(fine, lr_server=fine.lr_server * 1.01))
