"""Processes with fixed marginals: purity, marginals, dependence in time and space, bad input."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstale.checks import InvalidInput
from fedstale.participation import (
    Bernoulli,
    Correlated,
    Cyclic,
    Markov,
    Process,
    TimeVarying,
    Trace,
    two_groups,
)

P = np.array([1.0, 0.9, 0.5, 0.3, 0.1, 0.02])
MAKERS: dict[str, Callable[[], Process]] = {
    "bernoulli": lambda: Bernoulli(P),
    "two-groups": lambda: Bernoulli.two_groups(6, 0.2),
    "markov": lambda: Markov(P, 0.9),
    "markov-per-client": lambda: Markov(P, [0.0, 0.2, 0.5, 0.9, 0.99, 0.5]),
    "correlated": lambda: Correlated(P, 0.6, [0, 0, 0, 1, 1, 1]),
    "cyclic": lambda: Cyclic.spread(6, 24, 0.4, inside=0.8, outside=0.1),
    "time-varying": lambda: TimeVarying.table([0, 300, 900], [0.9, 0.1, 0.5], num_clients=6, kind="linear"),
    "trace": lambda: Trace.record(Bernoulli(P), seed=3, num_rounds=750),
}


def matrix(process: Process, seed: int, rounds: int, first: int = 0) -> NDArray[np.float64]:
    """0/1 of shape (rounds, N)."""
    present = np.zeros((rounds, process.num_clients))
    for t in range(rounds):
        present[t, process.available(seed, first + t)] = 1.0
    return present


@pytest.mark.parametrize("name", MAKERS)
def test_round_700_asked_directly_is_what_a_run_has(name: str) -> None:
    run = MAKERS[name]()
    in_sequence = [run.available(7, t) for t in range(710)]
    for t in (700, 0, 709, 3, 700, 699):
        np.testing.assert_array_equal(MAKERS[name]().available(7, t), in_sequence[t])
    out_of_order = MAKERS[name]()
    for t in np.random.default_rng(0).permutation(710)[:100]:
        np.testing.assert_array_equal(out_of_order.available(7, int(t)), in_sequence[t])


@pytest.mark.parametrize("process", [Bernoulli(np.ones(5)), Markov(np.ones(5), 0.5)])
def test_who_always_comes_is_there_in_every_round(process: Process) -> None:
    for t in range(20):
        ids = process.available(0, t)
        np.testing.assert_array_equal(ids, np.arange(5))
        assert ids.dtype == np.int64


@pytest.mark.parametrize("name", MAKERS)
def test_answers_are_sorted_int64_and_the_seed_and_round_matter(name: str) -> None:
    process = MAKERS[name]()
    for t in range(20):
        ids = process.available(1, t)
        assert ids.dtype == np.int64
        assert (np.diff(ids) > 0).all()
    assert process.num_clients == 6
    assert (matrix(process, 1, 50) != matrix(process, 1, 50, first=50)).any()
    if name != "trace":
        assert (matrix(process, 1, 50) != matrix(process, 2, 50)).any()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=25))
def test_what_markov_remembers_never_changes_its_answer(calls: list[tuple[int, int]]) -> None:
    remembering = Markov(P, 0.8)
    for seed, t in calls:
        np.testing.assert_array_equal(remembering.available(seed, t), Markov(P, 0.8).available(seed, t))


def test_markov_forgets_old_seeds_but_stays_right() -> None:
    process = Markov(P, 0.8)
    answers = [process.available(seed, 40) for seed in range(100)]
    assert len(process._memo) <= 32
    for seed in (0, 50, 99):
        np.testing.assert_array_equal(process.available(seed, 40), answers[seed])


@pytest.mark.parametrize("process", [Bernoulli(P), Correlated(P, 0.6, [0, 0, 0, 1, 1, 1])])
@pytest.mark.parametrize("rounds", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_marginals_of_independent_rounds(process: Process, rounds: int) -> None:
    frequency = matrix(process, 11, rounds).mean(axis=0)
    np.testing.assert_array_less(np.abs(frequency - P), 4.0 * np.sqrt(P * (1 - P) / rounds) + 1e-12)
    np.testing.assert_array_equal(process.probabilities(), P)
    np.testing.assert_array_equal(process.probabilities(5), P)


@pytest.mark.parametrize("rounds", [10_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_markov_marginals_and_autocorrelation(rounds: int) -> None:
    rho, p, error = 0.7, 0.3, np.sqrt(40_000 / rounds)
    present = matrix(Markov(np.full(8, p), rho), 5, rounds)
    # The variance of a mean of correlated rounds is (1+ρ)/(1−ρ) times that of independent ones.
    deviation = np.sqrt(p * (1 - p) / rounds * (1 + rho) / (1 - rho))
    np.testing.assert_array_less(np.abs(present.mean(axis=0) - p), 4 * deviation)
    for lag in (1, 2, 5):
        centred = present - p
        correlation = (centred[lag:] * centred[:-lag]).mean() / (p * (1 - p))
        assert correlation == pytest.approx(rho**lag, abs=0.012 * error)
    across = np.asarray(np.corrcoef(present.T))[np.triu_indices(8, 1)]
    assert np.abs(across).max() < 0.05 * error


def test_markov_is_stationary_from_the_first_round() -> None:
    process = Markov(np.full(20_000, 0.3), 0.95)
    for t in (0, 1, 10):
        assert process.available(3, t).size / 20_000 == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 20_000))


def test_markov_without_correlation_draws_like_bernoulli() -> None:
    markov, bernoulli = Markov(P, 0.0), Bernoulli(P)
    for t in range(50):
        np.testing.assert_array_equal(markov.available(2, t), bernoulli.available(2, t))


@pytest.mark.parametrize("rounds", [10_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_correlated_pairs_have_the_stated_covariance(rounds: int) -> None:
    p = np.array([0.5, 0.5, 0.2, 0.8, 0.5])
    rho, error = 0.6, np.sqrt(40_000 / rounds)
    present = matrix(Correlated(p, rho, [0, 0, 0, 0, 1]), 9, rounds)
    covariance = np.cov(present.T)
    for i in range(4):
        for j in range(i):
            expected = rho * (min(p[i], p[j]) - p[i] * p[j])
            assert covariance[i, j] == pytest.approx(expected, abs=0.006 * error)
        assert covariance[i, 4] == pytest.approx(0.0, abs=0.006 * error)
    assert np.corrcoef(present[:, 0], present[:, 1])[0, 1] == pytest.approx(rho, abs=0.02 * error)
    assert np.corrcoef(present[1:, 0], present[:-1, 0])[0, 1] == pytest.approx(0.0, abs=0.02 * error)


def test_fully_correlated_clients_come_all_or_none() -> None:
    process = Correlated(np.full(10, 0.4), 1.0)
    sizes = {process.available(0, t).size for t in range(60)}
    assert sizes == {0, 10}


def test_two_groups_are_those_of_the_paper() -> None:
    process = Bernoulli.two_groups(24, p_min=0.1)
    np.testing.assert_array_equal(process.probabilities(), [1.0] * 12 + [0.1] * 12)
    np.testing.assert_array_equal(process.participation_groups(), [0] * 12 + [1] * 12)
    for t in range(20):
        assert set(range(12)) <= set(process.available(0, t).tolist())
    p, group = two_groups(10, 0.5, share=0.3)
    assert (p == 0.5).sum() == (group == 1).sum() == 3
    # The groups survive p_min = 1, where they cannot be read off the probabilities.
    assert Bernoulli.two_groups(24, p_min=1.0).participation_groups().sum() == 12


def test_groups_follow_the_probabilities_where_none_are_given() -> None:
    np.testing.assert_array_equal(Bernoulli([0.1, 0.9, 0.1, 0.5]).participation_groups(), [1, 0, 1, 0])
    np.testing.assert_array_equal(Bernoulli.uniform(3, 0.2).participation_groups(), [0, 0, 0])
    labelled = Markov([0.5, 0.5], 0.5, labels=[1, 0])
    np.testing.assert_array_equal(labelled.participation_groups(), [1, 0])


def test_clients_that_join_do_not_disturb_the_others() -> None:
    few, many = Bernoulli.uniform(10, 0.4), Bernoulli.uniform(15, 0.4)
    for t in range(30):
        ids = many.available(0, t)
        np.testing.assert_array_equal(ids[ids < 10], few.available(0, t))


def test_processes_cannot_be_changed_from_outside() -> None:
    p = P.copy()
    process = Bernoulli(p)
    p[:] = 0.5
    process.probabilities()[:] = 0.5
    np.testing.assert_array_equal(process.probabilities(), P)


def test_a_million_clients_take_milliseconds() -> None:
    process = Bernoulli.two_groups(1_000_000, 0.01)
    best = np.inf
    for t in range(5):
        start = time.perf_counter()
        ids = process.available(0, t)
        best = min(best, time.perf_counter() - start)
    assert ids.size == pytest.approx(505_000, abs=500)
    assert best < 0.25


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Bernoulli([0.5, 0.0]), r"p\[1\] = 0.0"),
        (lambda: Bernoulli([0.5, 1.5]), r"p\[1\] = 1.5"),
        (lambda: Bernoulli([float("nan")]), r"p\[0\] = nan"),
        (lambda: Bernoulli([[0.5]]), r"p = 'array of shape \(1, 1\)'"),
        (lambda: Bernoulli(0.5), "p = "),
        (lambda: Bernoulli([]), "number of clients in p = 0"),
        (lambda: Bernoulli([0.5], labels=[0, 1]), "labels"),
        (lambda: Bernoulli.uniform(0, 0.5), "num_clients = 0"),
        (lambda: Bernoulli.uniform(3, 0.0), "p = 0"),
        (lambda: Bernoulli.two_groups(4, 0.0), "p_min = 0"),
        (lambda: Bernoulli.two_groups(4, 0.5, share=1.5), "share = 1.5"),
        (lambda: Markov([0.5], 1.0), "correlation = 1.0"),
        (lambda: Markov([0.5], -0.1), "correlation = -0.1"),
        (lambda: Markov([0.5], float("nan")), "correlation"),
        (lambda: Markov([0.5, 0.5], [0.1, 0.1, 0.1]), "correlation"),
        (lambda: Correlated([0.5], 1.1), "correlation = 1.1"),
        (lambda: Correlated([0.5, 0.5], 0.5, [0]), "groups"),
        (lambda: Correlated([0.5, 0.5], 0.5, [0, -1]), "groups"),
        (lambda: Correlated([0.5, 0.5], 0.5, [0.0, 1.0]), "groups"),
        (lambda: Bernoulli(P).available(0, -1), "round = -1"),
        (lambda: Bernoulli(P).available(-1, 0), "seed = -1"),
        (lambda: Markov(P, 0.5).available(0, -1), "round = -1"),
        (lambda: Bernoulli(P).probabilities(-2), "round = -2"),
    ],
)
def test_bad_input_names_the_argument(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidInput, match=argument):
        make()
