"""How much of the gap a method closes: the ends of the scale, and the error of a ratio."""

from __future__ import annotations

import numpy as np
import pytest

from fedstale.analysis import Gap, ratio_of_means

PLAIN, EVERYBODY = np.array([1.0, 1.2, 1.1]), np.array([0.4, 0.5, 0.6])


def test_u_fedavg_closes_nothing_and_everybody_all_of_it() -> None:
    gap = Gap(PLAIN, EVERYBODY)
    assert gap.there
    assert gap.closed(PLAIN).mean == 0.0
    assert gap.closed(EVERYBODY).mean == pytest.approx(1.0)
    assert gap.closed(EVERYBODY).error == pytest.approx(0.0)
    assert gap.closed((PLAIN + EVERYBODY) / 2).mean == pytest.approx(0.5)
    assert gap.closed(PLAIN + 1).mean < -1


def test_a_gap_within_its_error_is_none() -> None:
    assert not Gap(PLAIN, PLAIN).there
    assert not Gap(PLAIN, PLAIN[::-1]).there
    assert not Gap(EVERYBODY, PLAIN).there


def test_the_error_of_a_ratio_is_that_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    draws = [rng.normal([0.5, 1.0], [0.2, 0.1], size=(20, 2)).T for _ in range(2000)]
    ratios = [ratio_of_means(part, whole) for part, whole in draws]
    spread = float(np.std([ratio.mean for ratio in ratios]))
    assert np.mean([ratio.error for ratio in ratios]) == pytest.approx(spread, rel=0.05)


def test_one_seed_has_no_error() -> None:
    assert np.isnan(ratio_of_means(np.array([1.0]), np.array([2.0])).error)


def test_a_run_that_diverged_closes_nothing_that_can_be_told() -> None:
    assert np.isnan(Gap(PLAIN, EVERYBODY).closed([0.5, float("nan"), 0.5]).mean)
