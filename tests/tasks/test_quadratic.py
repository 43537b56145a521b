"""Quadratic clients against finite differences, a plain loop and what is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstale.checks import InvalidInput
from fedstale.randomness import generator
from fedstale.tasks.quadratic import Quadratic

Float = NDArray[np.float64]
PROBLEMS = [Quadratic.figure1(), Quadratic.random(5, 3, seed=1), Quadratic.random(2, 7, seed=2, condition=1.0)]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_are_the_slope_of_the_loss(problem: Quadratic) -> None:
    w = generator(0, "test").standard_normal(problem.num_params)
    step = 1e-5
    for client in range(problem.num_clients):
        slope = [
            (problem.client_loss(client, w + step * e) - problem.client_loss(client, w - step * e)) / (2 * step)
            for e in np.eye(problem.num_params)
        ]
        np.testing.assert_allclose(problem.gradient(client, w), slope, rtol=1e-6, atol=1e-8)


def plain_loop(problem: Quadratic, w: Float, clients: list[int], steps: int, lr: float, noise: Float) -> Float:
    rows = []
    for row, client in enumerate(clients):
        local = w.copy()
        for k in range(steps):
            local = local - lr * (problem.matrices[client] @ (local - problem.optima[client]) + noise[k, row])
        rows.append(w - local)
    return np.array(rows)


@given(seed=st.integers(0, 1000), steps=st.integers(1, 8), lr=st.floats(1e-4, 0.5))
def test_local_updates_are_those_of_a_plain_loop(seed: int, steps: int, lr: float) -> None:
    problem = Quadratic.random(6, 4, seed=seed)
    w = generator(seed, "w").standard_normal(4)
    clients = [4, 0, 3]
    exact = problem.local_updates(w, clients, steps, lr)
    assert exact.shape == (3, 4)
    np.testing.assert_allclose(exact, plain_loop(problem, w, clients, steps, lr, np.zeros((steps, 3, 4))), atol=1e-12)
    noise = 0.3 * generator(seed, "noise").standard_normal((steps, 3, 4))
    noisy = problem.local_updates(w, clients, steps, lr, 0.3, generator(seed, "noise"))
    np.testing.assert_allclose(noisy, plain_loop(problem, w, clients, steps, lr, noise), atol=1e-12)


def test_nobody_takes_part() -> None:
    assert Quadratic.figure1().local_updates([0.0, 0.0], [], 5, 0.1).shape == (0, 2)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_optimum_has_no_slope_and_excess_is_measured_from_it(problem: Quadratic) -> None:
    slope = sum(a * problem.gradient(i, problem.optimum) for i, a in enumerate(problem.alpha))
    np.testing.assert_allclose(slope, 0, atol=1e-12)
    points = generator(1, "test").standard_normal((3, 4, problem.num_params))
    excess = problem.excess(points)
    assert excess.shape == (3, 4)
    np.testing.assert_allclose(excess, problem.loss(points) - problem.loss(problem.optimum), atol=1e-12)
    assert excess.min() > 0
    assert problem.excess(problem.optimum) == 0
    assert problem.loss(points[0, 0]).shape == ()


def test_figure_1_is_as_stated() -> None:
    problem = Quadratic.figure1()
    assert (problem.num_clients, problem.num_params) == (2, 2)
    np.testing.assert_allclose(problem.optimum, [38 / 13, 70 / 13])
    np.testing.assert_allclose(problem.optima.mean(axis=0), [2, 2])
    assert problem.start is not None
    assert problem.start.tolist() == [-10, -10]
    assert problem.loss(problem.start) == pytest.approx(137.6)


def test_full_participation_descends_to_the_optimum() -> None:
    problem = Quadratic.figure1()
    w = np.asarray(problem.start)
    for _ in range(3000):
        w = w - problem.local_updates(w, [0, 1], K=1, lr=0.1).mean(axis=0)
    np.testing.assert_allclose(w, problem.optimum, atol=1e-9)


def test_weights_move_the_optimum() -> None:
    base = Quadratic.random(2, 3, seed=0)
    only_first = Quadratic(base.matrices, base.optima, weights=np.array([1.0, 0.0]))
    np.testing.assert_allclose(only_first.optimum, base.optima[0])


@given(n=st.integers(1, 6), d=st.integers(1, 6), condition=st.floats(1, 100), seed=st.integers(0, 99))
def test_random_problems_have_the_promised_curvature(n: int, d: int, condition: float, seed: int) -> None:
    problem = Quadratic.random(n, d, seed, condition=condition)
    eigenvalues = np.linalg.eigvalsh(problem.matrices)
    assert eigenvalues.shape == (n, d)
    assert eigenvalues.min() >= 1 / condition - 1e-9
    assert eigenvalues.max() <= 1 + 1e-9
    again = Quadratic.random(n, d, seed, condition=condition)
    np.testing.assert_array_equal(problem.matrices, again.matrices)
    assert not np.array_equal(problem.optima, Quadratic.random(n, d, seed + 1).optima)
    assert not Quadratic.random(n, d, seed, spread=0.0).optima.any()


@pytest.mark.parametrize(
    ("matrices", "optima", "told"),
    [
        (np.eye(2)[None], np.zeros((2, 2)), r"matrices = .*shape \(2, 2, 2\)"),
        (np.eye(2)[None], np.zeros(2), r"optima = .*shape \(N, d\)"),
        (np.array([[[1.0, 1.0], [0.0, 1.0]]]), np.zeros((1, 2)), r"matrices\[0\].*symmetric"),
        (-np.eye(2)[None], np.zeros((1, 2)), r"matrices\[0\].*positive"),
        (np.zeros((1, 2, 2)), np.zeros((1, 2)), "positive definite"),
        (np.full((1, 2, 2), np.nan), np.zeros((1, 2)), "finite"),
    ],
)
def test_wrong_problems_are_refused(matrices: Float, optima: Float, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Quadratic(matrices, optima)


def test_wrong_calls_are_refused() -> None:
    problem = Quadratic.figure1()
    with pytest.raises(InvalidInput, match="rng = None"):
        problem.local_updates([0, 0], [0], noise=1.0)
    with pytest.raises(InvalidInput, match=r"clients\[0\] = 2"):
        problem.local_updates([0, 0], [2])
    with pytest.raises(InvalidInput, match="w = "):
        problem.local_updates([0, 0, 0], [1])
    with pytest.raises(InvalidInput, match="weights"):
        Quadratic(problem.matrices, problem.optima, weights=np.array([0.5, 0.6]))
