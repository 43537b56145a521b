"""Which deadline: on hand-made logs, and that the formula is what is minimised."""

from __future__ import annotations

import numpy as np
import pytest

import fedstale as fs
from fedstale.clock import advise_deadline


def log(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Everybody asked in every round: seconds of shape (rounds, clients)."""
    rounds, clients = np.indices(seconds.shape)
    return rounds.ravel(), clients.ravel(), seconds.ravel()


def test_equal_devices_need_no_deadline() -> None:
    found = advise_deadline(*log(np.full((20, 5), 3.0)))
    assert (found.deadline, found.in_time, found.never) == (3.0, 1.0, 0)
    assert found.times_faster == pytest.approx(1.0)


def test_one_device_that_is_sometimes_very_slow_is_not_waited_for() -> None:
    seconds = np.full((40, 6), 2.0)
    seconds[::2, 5] = 100.0
    found = advise_deadline(*log(seconds))
    assert found.deadline == 2.0
    assert found.never == 0
    assert found.in_time == pytest.approx(1 - 20 / 240)
    assert found.seconds == 2.0
    assert found.seconds_without == pytest.approx(51.0)
    assert found.times_faster > 20


def test_a_device_that_is_always_a_little_slower_is_waited_for() -> None:
    seconds = np.full((40, 6), 2.0)
    seconds[:, 5] = 3.0
    assert advise_deadline(*log(seconds)).deadline == 3.0


def test_of_deadlines_that_cost_the_same_the_one_that_waits_is_taken() -> None:
    """Three rounds, in which 1.2 s cost exactly as much as to wait: a client would have been left out for nothing."""
    found = advise_deadline([0, 0, 1, 1, 2, 2], [0, 1] * 3, [1.5, 4.0, 1.2, np.inf, 1.4, 5.0])
    assert (found.deadline, found.never, found.rounds) == (5.0, 0, 3)
    assert found.times_faster == pytest.approx(1.0)
    assert not found.worthwhile


def test_it_is_the_minimum_of_the_cost() -> None:
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.normal(size=(60, 8)) + rng.normal(size=8))
    seconds[rng.random(seconds.shape) < 0.1] = np.inf
    found = advise_deadline(*log(seconds))

    def cost(d: float) -> float:
        lengths = [d if np.isinf(row).any() else min(d, row.max()) for row in seconds]
        p = [((column <= d).sum() + 0.5) / 61 for column in seconds.T]
        return float(np.mean(lengths) * np.mean([1 / x for x in p]))

    every = np.unique(seconds[np.isfinite(seconds)])
    assert cost(found.deadline) <= min(cost(d) for d in every) * 1.01  # 200 candidates of some hundred


@pytest.mark.parametrize("bad", [[np.nan, np.inf], [1.0, 0.0], [1.0]])
def test_nonsense(bad: list[float]) -> None:
    with pytest.raises(fs.InvalidInput):
        advise_deadline([0, 0], [0, 1], bad)
