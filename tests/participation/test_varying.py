"""Processes whose probabilities change with the round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedstale.checks import InvalidInput
from fedstale.participation import Breakpoints, Cyclic, TimeVarying

from .test_processes import matrix


def test_a_window_opens_and_closes_with_the_clock() -> None:
    process = Cyclic(phases=[0, 2, 4], period=6, open_fraction=0.5)
    assert process.open_rounds == 3
    # Clock of client 1: 2 3 4 5 0 1, open below 3.
    for t, ids in enumerate([[0, 1], [0], [0, 2], [2], [1, 2], [1]]):
        np.testing.assert_array_equal(process.available(0, t), ids)
        np.testing.assert_array_equal(process.available(0, t + 6), ids)
    np.testing.assert_array_equal(process.probabilities(), [0.5, 0.5, 0.5])


def test_cyclic_marginals_inside_and_outside() -> None:
    process = Cyclic.spread(4, period=8, open_fraction=0.25, inside=[0.9, 0.9, 0.5, 1.0], outside=0.1)
    by_round = np.array([process.probabilities(t) for t in range(8)])
    np.testing.assert_allclose(by_round.mean(axis=0), process.probabilities(), rtol=1e-14)
    assert ((by_round != 0.1).sum(axis=0) == 2).all()
    rounds = 24_000
    frequency = matrix(process, 4, rounds).reshape(-1, 8, 4).mean(axis=0)
    deviation = np.sqrt(by_round * (1 - by_round) / (rounds / 8))
    np.testing.assert_array_less(np.abs(frequency - by_round), 4.5 * deviation + 1e-12)


def test_spread_windows_cover_the_period_evenly() -> None:
    process = Cyclic.spread(24, period=24, open_fraction=0.25)
    assert {process.available(0, t).size for t in range(24)} == {6}


def test_at_least_one_round_is_open() -> None:
    assert Cyclic([0], period=10, open_fraction=0.001).open_rounds == 1
    assert Cyclic([0], period=10, open_fraction=0.3).open_rounds == 3
    assert Cyclic([0], period=10, open_fraction=0.25).open_rounds == 3


def test_table_constant_and_linear() -> None:
    values = [[0.2, 1.0], [0.6, 0.5], [0.4, 0.1]]
    constant, linear = Breakpoints([0, 10, 20], values), Breakpoints([0, 10, 20], values, "linear")
    for t, row in [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (10_000, 2)]:
        np.testing.assert_array_equal(constant(t), values[row])
    np.testing.assert_allclose(linear(5), [0.4, 0.75], rtol=1e-15)
    np.testing.assert_allclose(linear(15), [0.5, 0.3], rtol=1e-15)
    for t, row in [(0, 0), (10, 1), (20, 2), (99, 2)]:
        np.testing.assert_array_equal(linear(t), values[row])


def test_time_varying_follows_its_schedule() -> None:
    process = TimeVarying.table([0, 2000], [[0.8, 0.3], [0.1, 0.9]])
    before, after = matrix(process, 1, 2000), matrix(process, 1, 2000, first=2000)
    np.testing.assert_allclose(before.mean(axis=0), [0.8, 0.3], atol=4 * np.sqrt(0.25 / 2000))
    np.testing.assert_allclose(after.mean(axis=0), [0.1, 0.9], atol=4 * np.sqrt(0.25 / 2000))


def test_the_long_run_of_a_schedule() -> None:
    np.testing.assert_array_equal(TimeVarying.table([0, 5], [[0.8], [0.2]]).probabilities(), [0.2])
    with_horizon = TimeVarying.table([0, 5], [[0.8], [0.2]], horizon=10)
    np.testing.assert_allclose(with_horizon.probabilities(), [0.5], rtol=1e-14)
    function = TimeVarying(lambda t: [0.5 + 0.5 * (t % 2)], horizon=4)
    np.testing.assert_allclose(function.probabilities(), [0.75], rtol=1e-14)
    np.testing.assert_array_equal(function.probabilities(3), [1.0])
    with pytest.raises(InvalidInput, match="horizon"):
        TimeVarying(lambda t: [0.5]).probabilities()


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Cyclic([0], 0), "period = 0"),
        (lambda: Cyclic([-1], 5), "phases"),
        (lambda: Cyclic([0.5], 5), "phases"),
        (lambda: Cyclic([], 5), "phases"),
        (lambda: Cyclic([0], 5, open_fraction=0.0), "open_fraction = 0"),
        (lambda: Cyclic([0], 5, inside=0.0), "inside = 0"),
        (lambda: Cyclic([0], 5, inside=[0.5, 0.5]), "inside"),
        (lambda: Cyclic([0], 5, outside=1.5), "outside"),
        (lambda: Cyclic([0], 5, outside=float("nan")), "outside"),
        (lambda: Breakpoints([1, 2], [[0.5], [0.5]]), "rounds"),
        (lambda: Breakpoints([0, 2, 2], [[0.5], [0.5], [0.5]]), "rounds"),
        (lambda: Breakpoints([0, 1], [[0.5]]), "values"),
        (lambda: Breakpoints([0], [[1.5]]), "values"),
        (lambda: Breakpoints([0], [[float("nan")]]), "values"),
        (lambda: Breakpoints([0, 1], [[0.5], [0.5, 0.5]]), "values"),
        (lambda: Breakpoints([0], [[0.5]], "cubic"), "kind = 'cubic'"),  # type: ignore[arg-type]
        (lambda: TimeVarying.table([0], [0.5]), "values"),
        (lambda: TimeVarying.table([0], [[0.5, 0.5]], num_clients=3), "num_clients = 3"),
        (lambda: TimeVarying.table([0, 9], [[0.5], [0.0]]), "long run"),
        (lambda: TimeVarying([0.5]), "schedule"),  # type: ignore[arg-type]
        (lambda: TimeVarying(lambda t: [0.5], horizon=0), "horizon = 0"),
        (lambda: TimeVarying(lambda t: []), "schedule"),
        (lambda: TimeVarying(lambda t: [0.5 + t]).probabilities(1), r"schedule\(1\)\[0\] = 1.5"),
        (lambda: TimeVarying(lambda t: [0.5] * (1 + t)).available(0, 1), r"schedule\(1\)"),
        (lambda: Cyclic([0], 5).probabilities(-1), "round = -1"),
    ],
)
def test_bad_input_names_the_argument(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidInput, match=argument):
        make()
