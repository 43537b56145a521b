"""Methods over settings: ranks, differences, gap closed over cells, and how wide good rates are."""

from __future__ import annotations

import numpy as np
import pytest

from fedstale.analysis import (
    Cell,
    Estimate,
    Gap,
    MeasuredRun,
    ahead,
    closed_over_cells,
    decades_of_good_rates,
    mean_ranks,
    ranks,
)
from fedstale.simulation import make_settings

NAN = float("nan")


def test_equal_ones_share_their_rank_and_who_diverged_is_last() -> None:
    assert ranks({"a": 0.3, "b": 0.1, "c": 0.3, "d": NAN}) == {"a": 2.5, "b": 1.0, "c": 2.5, "d": 4.0}
    assert ranks({"a": NAN, "b": NAN}) == {"a": 1.5, "b": 1.5}
    assert ranks({}) == {}


def test_mean_ranks_count_where_a_method_was_run() -> None:
    found = mean_ranks({"x": {"a": 1.0, "b": 2.0}, "y": {"a": 5.0, "b": 4.0}, "z": {"a": 1.0}})
    assert found["a"].mean == pytest.approx(4 / 3)
    assert (found["a"].count, found["b"].count) == (3, 2)
    assert found["b"].mean == 1.5


def test_ahead_counts_what_is_decided_and_flips_whole_settings() -> None:
    found = ahead({str(k): Estimate(1.0, 0.1) for k in range(5)} | {"6": Estimate(0.1, 0.2)})
    assert (found.wins, found.losses) == (5, 0)
    assert found.by.mean == pytest.approx(5.1 / 6)
    assert found.p == pytest.approx(2 / 2**6)
    assert ahead({"a": Estimate(-1.0, 0.1), "b": Estimate(1.0, 0.1)}).p == 1.0
    assert np.isnan(ahead({"a": Estimate(1.0, 0.1)}).p)


def test_gap_closed_over_cells() -> None:
    gaps = [Gap(np.array([2.0, 3.0]), np.array([1.0, 1.0])), Gap(np.array([1.0, 1.0]), np.array([0.0, 0.0]))]
    found = closed_over_cells(gaps, [np.array([1.0, 1.0]), np.array([0.5, 0.5])])
    assert found.mean.mean == pytest.approx(0.75)
    assert found.median == pytest.approx(0.75)
    assert found.least == pytest.approx(0.5)
    assert found.pooled.mean == pytest.approx((1.5 + 0.5) / (1.5 + 1.0))
    uneven = [gaps[0], Gap(np.ones(3), np.zeros(3))]
    other = closed_over_cells(uneven, [np.ones(2), np.ones(3)]).pooled
    assert other.mean == pytest.approx(1.5 / 2.5)
    assert other.error == pytest.approx(abs(2 / 3 - 1 / 2) / 2)  # only the first setting's two seeds differ
    rng = np.random.default_rng(0)
    many = [Gap(2 + rng.normal(size=5), rng.normal(size=5)) for _ in range(3)]
    objectives = [1 + rng.normal(size=5) for _ in many]
    gained = np.sum([gap.plain - own for gap, own in zip(many, objectives, strict=True)], axis=0)
    sizes = np.sum([gap.plain - gap.everybody for gap in many], axis=0)
    without = np.array([np.delete(gained, k).sum() / np.delete(sizes, k).sum() for k in range(5)])
    pooled = closed_over_cells(many, objectives).pooled
    assert pooled.mean == pytest.approx(gained.sum() / sizes.sum())
    assert pooled.error == pytest.approx(np.sqrt(4 / 5 * np.sum((without - without.mean()) ** 2)))


def test_decades_of_good_rates() -> None:
    run = MeasuredRun(make_settings(), -0.1, {})
    cell = Cell((run,), 0.1, {0.01: -0.104, 0.1: -0.1, 1.0: -0.2, 10.0: NAN, None: -0.1})
    assert decades_of_good_rates(cell) == pytest.approx(1.0)
    assert np.isnan(decades_of_good_rates(Cell((run,), 0.1, {0.1: NAN})))
