"""The estimator with a daily profile: by hand, against counting, and against the frequency that knows no day."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.checks import InvalidInput
from fedstale.participation import BetaFrequency, DailyFrequency, Estimator, Process, make
from tests.shared_data import shared_file


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 2)), st.sets(st.integers(0, 2))), max_size=40),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_it_is_what_its_first_lines_say(rounds: list[tuple[set[int], set[int]]], period: int, bins: int) -> None:
    bins = min(bins, period)
    estimator = DailyFrequency(period, bins, own=3.0, prior_a=0.5, prior_b=2.0)
    state = estimator.init(3)
    came, seen = np.zeros((3, bins)), np.zeros((3, bins))
    for t, (present, skipped) in enumerate(rounds):
        b = (t % period) * bins // period
        p = (0.5 + came.sum(axis=1)) / (2.5 + seen.sum(axis=1))
        more = (1 + came[:, b].sum()) / (1 + p @ seen[:, b])
        expected = np.minimum((3.0 * p * more + came[:, b]) / (3.0 + seen[:, b]), 1.0)
        np.testing.assert_allclose(estimator.probabilities(state, [0, 1, 2]), expected, rtol=1e-12)
        out = sorted(skipped - present)
        estimator.observe(state, np.array(sorted(present), dtype=np.int64), t, np.array(out, dtype=np.int64))
        came[sorted(present), b] += 1
        counted = [i for i in range(3) if i not in out]
        seen[counted, b] += 1


def error(estimator: Estimator, process: Process, seed: int, rounds: int) -> float:
    """Root mean square error of p̂ in the second half."""
    state, everyone, found = estimator.init(process.num_clients), np.arange(process.num_clients), []
    for t in range(rounds):
        if t >= rounds // 2 and t % 7 == 0:
            found.append(np.mean((estimator.probabilities(state, everyone) - process.probabilities(t)) ** 2))
        estimator.observe(state, process.available(seed, t), t)
    return float(np.sqrt(np.mean(found)))


def test_a_shared_day_is_learned() -> None:
    process = make("phones", kind="model", num_clients=200)
    for seed in (1, 2):
        assert error(DailyFrequency(), process, seed, 480) < 0.95 * error(BetaFrequency(), process, seed, 480)


def test_own_hours_of_the_phones_are_learned() -> None:
    process = make("phones", path=shared_file("availability-phones.txt"), num_clients=200)
    assert error(DailyFrequency(), process, 1, 480) < 0.9 * error(BetaFrequency(), process, 1, 480)


def test_clients_that_join_profit_from_the_shared_day(tmp_path: Path) -> None:
    estimator = DailyFrequency(period=2, bins=2)
    state = estimator.init(20)
    for t in range(40):
        estimator.observe(state, np.arange(20) if t % 2 == 0 else [], t)
    estimator.grow(state, 21)
    day = estimator.probabilities(state, [20])[0]
    estimator.observe(state, [], 40)
    assert estimator.probabilities(state, [20])[0] < 0.2 * day
    estimator.forget(state, [0])
    assert estimator.probabilities(state, [0])[0] > 0.0


@pytest.mark.parametrize("bad", [{"bins": 49}, {"bins": 0}, {"own": 0.0}, {"period": 0}, {"prior_a": 0.0}])
def test_bad_options(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        DailyFrequency(**bad)  # type: ignore[arg-type]
