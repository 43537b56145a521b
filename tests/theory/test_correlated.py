"""Noise of clients that come together: the formula against every set of participants, and who knows the pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale import theory
from fedstale.checks import InvalidInput
from fedstale.participation import (
    Bernoulli,
    Correlated,
    Cyclic,
    Markov,
    Participation,
    Process,
    TimeVarying,
    Trace,
    UniformSample,
)
from tests.enumeration import Array, participation_sets

RNG = np.random.default_rng(0)
D = 3


def together(p: Array, rho: float) -> Iterator[tuple[float, Array]]:
    """All sets of one group of `Correlated`, with their chances: who follows, and where the shared number lies."""
    cuts = np.unique(np.concatenate([[0.0], p, [1.0]]))
    for follows in product([0, 1], repeat=len(p)):
        chance = np.prod([rho**0.5 if f else 1 - rho**0.5 for f in follows])
        for low, high in pairwise(cuts):
            shared = (p >= high).astype(float)  # below its p for everybody whose p is at or above the piece
            own = [i for i, f in enumerate(follows) if not f]
            for draws in product([0, 1], repeat=len(own)):
                x = shared.copy()
                x[own] = draws
                alone = np.prod([p[i] if draw else 1 - p[i] for i, draw in zip(own, draws, strict=True)])
                yield float(chance * (high - low) * alone), x


@pytest.mark.parametrize("theta", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_the_noise_is_that_of_every_set_of_participants(rho: float, theta: float) -> None:
    p, alpha = np.array([0.2, 0.5, 0.5, 0.9]), np.array([0.1, 0.2, 0.3, 0.4])
    fresh, stale = RNG.normal(size=(2, 4, D))
    process = Correlated(p, rho)
    found = list(together(p, rho))
    chances = np.array([chance for chance, _ in found])
    sets = np.array([x for _, x in found])
    assert chances.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(process.pairwise(), (sets * chances[:, None]).T @ sets, atol=1e-12)
    deltas = alpha @ stale + sets @ ((alpha / p**theta)[:, None] * (fresh - stale))
    mean = chances @ deltas
    exact = chances @ np.sum((deltas - mean) ** 2, axis=1)
    assert theory.correlated_noise(fresh, stale, process.pairwise(), alpha, theta) == pytest.approx(exact)
    if rho == 0.0:
        assert exact == pytest.approx(theory.tempered_noise(fresh, stale, p, alpha, theta))


def test_one_common_error_is_the_noise_of_the_total_weight() -> None:
    p, alpha = np.array([0.2, 0.5, 0.5, 0.9]), np.full(4, 0.25)
    both = Correlated(p, 0.7).pairwise()
    error = RNG.normal(size=D)
    found = theory.weight_variance(both, alpha)
    noise = theory.correlated_noise(np.tile(error, (4, 1)), np.zeros((4, D)), both, alpha)
    assert noise == pytest.approx(found.together * (error @ error))
    assert found.independent == pytest.approx(theory.participation_summary(p).absence)
    assert found.together > 1.5 * found.independent


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12))
def test_a_log_says_its_own_noise(rows: list[list[bool]]) -> None:
    trace = Trace.from_matrix(np.array(rows))
    p, alpha = trace.probabilities(), np.array([0.5, 0.3, 0.2])
    weight = np.where(p > 0, alpha / np.where(p > 0, p, 1), 0)
    fresh = np.random.default_rng(1).normal(size=(3, D))
    deltas = np.array(rows) @ (weight[:, None] * fresh)
    exact = np.mean(np.sum((deltas - deltas.mean(axis=0)) ** 2, axis=1))
    found = theory.correlated_noise(fresh, np.zeros((3, D)), trace.pairwise(), alpha)
    assert found == pytest.approx(exact, abs=1e-9)
    assert theory.weight_variance(trace.pairwise(), alpha).together == pytest.approx(np.var(np.array(rows) @ weight))


P = np.array([0.2, 0.7, 1.0])
PROCESSES: list[Process] = [
    Bernoulli(P),
    Markov(P, 0.6),
    Cyclic([0, 1, 2], 4, 0.5, 0.8, 0.1),
    TimeVarying.table([0, 2], [P, P[::-1]], horizon=4),
]


@pytest.mark.parametrize("process", PROCESSES, ids=lambda one: type(one).__name__)
def test_pairs_of_clients_that_are_independent_in_a_round(process: Process) -> None:
    expected = np.zeros((3, 3))
    for t in range(4):
        sets = list(participation_sets(process.probabilities(t)))
        exact = sum(chance * np.outer(np.isin(range(3), who), np.isin(range(3), who)) for chance, who in sets)
        np.testing.assert_allclose(process.pairwise(t), exact, atol=1e-12)
        expected += exact / 4
    np.testing.assert_allclose(process.pairwise(), expected, atol=1e-12)
    np.testing.assert_allclose(np.diag(process.pairwise()), process.probabilities())


def test_sharing_the_day_is_coming_together() -> None:
    """Two clients with the same hours, and one with the others: independent in every round, and not in the long run."""
    both = Cyclic([0, 0, 2], 4, 0.5).pairwise()
    np.testing.assert_allclose(both, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.5]])


def test_pairs_after_a_selection_are_estimated() -> None:
    everybody = Participation(Bernoulli.uniform(4, 1.0), UniformSample(2))
    with pytest.raises(InvalidInput, match="estimate_pairwise"):
        everybody.pairwise()
    found = everybody.estimate_pairwise(4000, seed=1)
    np.testing.assert_allclose(np.diag(found), 0.5, atol=0.04)
    np.testing.assert_allclose(found[np.triu_indices(4, 1)], 1 / 6, atol=0.04)
    np.testing.assert_allclose(Participation(Bernoulli(P)).pairwise(), Bernoulli(P).pairwise())


@pytest.mark.parametrize("bad", [[[0.5, 0.6], [0.6, 0.5]], [[1.5]], [0.5], [[np.nan]], [[0.5, -0.1], [-0.1, 0.5]]])
def test_pairs_that_are_none_are_refused(bad: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="pairwise"):
        theory.weight_variance(bad, np.full(len(bad), 1 / len(bad)))
