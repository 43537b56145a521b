"""Whom the server asks, and the probabilities of availability and selection together."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedstale.participation.inclusion as inclusion
from fedstale.checks import InvalidInput
from fedstale.participation import (
    All,
    Bernoulli,
    Correlated,
    Cyclic,
    Fraction,
    LeastRecent,
    Markov,
    Participation,
    Process,
    Selection,
    TimeVarying,
    Trace,
    UniformSample,
)

AVAILABLE = np.array([2, 3, 5, 7, 11, 13], dtype=np.int64)


def enumerate_inclusion(p: NDArray[np.float64], selection: Selection) -> NDArray[np.float64]:
    """p_i of every client, from all 2^N outcomes of availability."""
    total = np.zeros(p.size)
    for outcome in itertools.product((0, 1), repeat=p.size):
        x = np.array(outcome, dtype=bool)
        if x.any():
            total[x] += np.prod(np.where(x, p, 1 - p)) * float(selection.inclusion(int(x.sum())))
    return total


def test_all_asks_everybody() -> None:
    np.testing.assert_array_equal(All().select(AVAILABLE, 0, 0), AVAILABLE)
    np.testing.assert_array_equal(All().inclusion([1, 5]), [1.0, 1.0])


@pytest.mark.parametrize("selection", [UniformSample(2), Fraction(1 / 3)])
def test_a_sample_is_uniform_over_subsets(selection: Selection) -> None:
    draws = 15_000
    counts: dict[tuple[int, ...], int] = {}
    for t in range(draws):
        chosen = tuple(selection.select(AVAILABLE, 1, t).tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
    assert set(counts) == set(itertools.combinations(AVAILABLE.tolist(), 2))
    deviation = np.sqrt(draws / 15 * (14 / 15))
    assert max(abs(count - draws / 15) for count in counts.values()) < 4 * deviation


def test_a_sample_takes_all_when_there_are_few() -> None:
    np.testing.assert_array_equal(UniformSample(6).select(AVAILABLE, 0, 0), AVAILABLE)
    np.testing.assert_array_equal(UniformSample(60).select(AVAILABLE, 0, 0), AVAILABLE)
    nobody = np.empty(0, dtype=np.int64)
    for selection in (All(), UniformSample(3), Fraction(0.5), LeastRecent(2)):
        assert selection.select(nobody, 0, 0, np.zeros(3, dtype=np.int64)).size == 0


def test_fraction_rounds_to_the_nearest_and_asks_at_least_one() -> None:
    sizes = Fraction(0.3).size([1, 2, 5, 10, 100])
    np.testing.assert_array_equal(sizes, [1, 1, 2, 3, 30])
    np.testing.assert_array_equal(Fraction(1.0).size([0, 1, 7]), [0, 1, 7])
    np.testing.assert_allclose(Fraction(0.3).inclusion([1, 5]), [1.0, 0.4])


def test_selection_is_a_function_of_seed_and_round() -> None:
    participation = Participation(Bernoulli.uniform(40, 0.6), UniformSample(5))
    run = [participation.participants(3, t) for t in range(710)]
    for t in (700, 0, 709, 700):
        np.testing.assert_array_equal(participation.participants(3, t), run[t])
    assert all(set(ids) <= set(participation.availability.available(3, t)) for t, ids in enumerate(run))
    assert any((participation.participants(4, t) != run[t]).any() for t in range(5))


def test_least_recent_asks_those_who_waited_longest() -> None:
    last_seen = np.full(14, 100)
    last_seen[[2, 5, 11]] = [7, -1, 3]
    np.testing.assert_array_equal(LeastRecent(2).select(AVAILABLE, 0, 0, last_seen), [5, 11])
    np.testing.assert_array_equal(LeastRecent(3).select(AVAILABLE, 0, 0, last_seen), [2, 5, 11])
    np.testing.assert_array_equal(LeastRecent(9).select(AVAILABLE, 0, 0, last_seen), AVAILABLE)


def test_least_recent_draws_among_equals() -> None:
    never = np.full(14, -1)
    counts = np.zeros(14)
    for t in range(3000):
        counts[LeastRecent(2).select(AVAILABLE, 0, t, never)] += 1
    np.testing.assert_array_less(np.abs(counts[AVAILABLE] - 1000), 4 * np.sqrt(3000 * 2 / 9))
    np.testing.assert_array_equal(
        LeastRecent(2).select(AVAILABLE, 0, 5, never), LeastRecent(2).select(AVAILABLE, 0, 5, never)
    )


@given(
    p=st.lists(st.one_of(st.floats(0.001, 1.0), st.sampled_from([0.5, 1.0, 1e-9])), min_size=1, max_size=8),
    m=st.integers(1, 9),
    f=st.floats(0.01, 1.0),
)
def test_probabilities_of_samples_by_enumeration(p: list[float], m: int, f: float) -> None:
    for selection in (UniformSample(m), Fraction(f)):
        computed = Participation(Bernoulli(p), selection).probabilities()
        np.testing.assert_allclose(computed, enumerate_inclusion(np.array(p), selection), rtol=1e-9, atol=1e-15)


def leave_one_out(p: NDArray[np.float64], m: int) -> NDArray[np.float64]:
    """p_i E[min(1, m/(1+A_i))] with the law of A_i built up factor by factor."""
    result = np.empty(p.size)
    for i in range(p.size):
        law = np.ones(1)
        for q in np.delete(p, i):
            law = np.convolve(law, [1 - q, q])
        result[i] = p[i] * law @ np.minimum(1.0, m / np.arange(1, p.size + 1))
    return result


@pytest.mark.parametrize("m", [1, 40, 100, 150])
def test_probabilities_of_samples_for_hundreds_of_clients(m: int) -> None:
    rng = np.random.default_rng(m)
    p = np.concatenate([rng.random(150), np.ones(30), np.full(40, 0.5), np.full(20, 1e-3)])
    computed = Participation(Bernoulli(p), UniformSample(m)).probabilities()
    np.testing.assert_allclose(computed, leave_one_out(p, m), rtol=1e-10)


def test_expected_number_asked_for_a_million_clients() -> None:
    participation = Participation(Bernoulli.two_groups(1_000_000, 0.01), UniformSample(100))
    p = participation.probabilities()
    # Far more than 100 clients are available, so exactly 100 are asked.
    assert p.sum() == pytest.approx(100.0, rel=1e-9)
    # Same availability, same chance to be asked; to first order p_i = 100 · availability / E[A].
    assert p[0] / p[-1] == pytest.approx(100.0, rel=1e-5)


def test_binned_probabilities_are_close_to_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for p, m in [(rng.random(3000) ** 2, 1000), (1e-3 * rng.random(3000), 2)]:
        exact = Participation(Bernoulli(p), UniformSample(m)).probabilities()
        monkeypatch.setattr(inclusion, "_EXACT_WORK", 0)
        binned = Participation(Bernoulli(p), UniformSample(m)).probabilities()
        monkeypatch.undo()
        assert (binned != exact).any()
        np.testing.assert_allclose(binned, exact, rtol=1e-6)


@pytest.mark.parametrize(
    "process",
    [
        Bernoulli([1.0, 0.6, 0.3, 0.2]),
        Markov([1.0, 0.6, 0.3, 0.2], 0.5),
        Cyclic([0, 1, 2, 3], period=4, open_fraction=0.5, inside=0.8, outside=0.1),
        TimeVarying(lambda t: [1.0, 0.5, 0.2 + 0.3 * (t % 2), 0.4], horizon=2),
    ],
)
@pytest.mark.parametrize("selection", [All(), UniformSample(2), Fraction(0.5)])
@pytest.mark.parametrize("rounds", [1_000, pytest.param(4_000, marks=pytest.mark.slow)])
def test_probabilities_match_the_frequencies_of_a_run(process: Process, selection: Selection, rounds: int) -> None:
    participation = Participation(process, selection)
    # With ρ = 0.5 the variance of a frequency is at most three times that of independent rounds.
    deviation = np.sqrt(3 * 0.25 / rounds)
    frequency = participation.estimate(rounds, seed=2)
    np.testing.assert_allclose(frequency.probabilities, participation.probabilities(), atol=4 * deviation)


def test_probabilities_at_one_round() -> None:
    process = Cyclic([0, 1, 2, 3], period=4, open_fraction=0.5)
    participation = Participation(process, UniformSample(1))
    np.testing.assert_allclose(participation.probabilities(0), [0.5, 0.5, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(participation.probabilities(), [0.25] * 4, rtol=1e-12)


def test_probabilities_of_a_sampled_trace() -> None:
    trace = Trace(4, 3, [0, 0, 0, 2], [0, 1, 2, 0])
    participation = Participation(trace, UniformSample(2))
    np.testing.assert_allclose(participation.probabilities(), [(2 / 3 + 1) / 3, 2 / 9, 2 / 9, 0.0], rtol=1e-14)
    np.testing.assert_allclose(participation.probabilities(0), [2 / 3, 2 / 3, 2 / 3, 0.0], rtol=1e-14)
    np.testing.assert_array_equal(participation.probabilities(1), np.zeros(4))
    np.testing.assert_array_equal(Participation(Trace(2, 3, [], []), UniformSample(1)).probabilities(), [0, 0])


def test_what_cannot_be_computed_is_refused_and_can_be_estimated() -> None:
    correlated = Participation(Correlated(np.full(6, 0.5), 0.8), UniformSample(2))
    with pytest.raises(InvalidInput, match="estimate"):
        correlated.probabilities()
    np.testing.assert_array_equal(Participation(correlated.availability).probabilities(), np.full(6, 0.5))
    independent = Participation(Correlated(np.full(6, 0.5), 0.0), UniformSample(2))
    np.testing.assert_array_equal(
        independent.probabilities(), Participation(Bernoulli.uniform(6, 0.5), UniformSample(2)).probabilities()
    )
    in_turn = Participation(Bernoulli.uniform(6, 1.0), LeastRecent(2))
    with pytest.raises(InvalidInput, match="estimate"):
        in_turn.probabilities()
    np.testing.assert_allclose(in_turn.estimate(30).probabilities, np.full(6, 1 / 3))
    low, high = in_turn.estimate(30).low, in_turn.estimate(30).high
    assert (low < 1 / 3).all()
    assert (high > 1 / 3).all()


def test_participation_of_a_process_asks_everybody() -> None:
    process = Bernoulli.two_groups(4, 0.5)
    participation = Participation.of(process)
    assert Participation.of(participation) is participation
    np.testing.assert_array_equal(participation.participants(0, 3), process.available(0, 3))
    np.testing.assert_array_equal(participation.participation_groups(), [0, 0, 1, 1])
    assert participation.num_clients == 4


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: UniformSample(0), "m = 0"),
        (lambda: UniformSample(2.5), "m = 2.5"),  # type: ignore[arg-type]
        (lambda: LeastRecent(0), "m = 0"),
        (lambda: Fraction(0.0), "f = 0"),
        (lambda: Fraction(1.5), "f = 1.5"),
        (lambda: LeastRecent(2).select(AVAILABLE, 0, 0), "last_seen = None"),
        (lambda: LeastRecent(2).select(AVAILABLE, 0, 0, [1, 2]), "last_seen"),
        (lambda: LeastRecent(2).select(AVAILABLE, 0, 0, np.zeros(14)), "last_seen"),
        (lambda: Participation([0.5]), "availability"),  # type: ignore[arg-type]
        (lambda: Participation(Bernoulli([0.5]), "all"), "selection"),  # type: ignore[arg-type]
        (lambda: Participation(Bernoulli([0.5])).estimate(0), "num_rounds = 0"),
        (lambda: Participation(Bernoulli([0.5]), UniformSample(1)).probabilities(-1), "round = -1"),
    ],
)
def test_bad_input_names_the_argument(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidInput, match=argument):
        make()


def test_asking_everybody_is_certain_to_the_last_bit() -> None:
    p = Participation(Bernoulli(np.ones(24)), UniformSample(24)).probabilities()
    assert (p <= 1.0).all()
    assert p == pytest.approx(1.0, abs=1e-12)
