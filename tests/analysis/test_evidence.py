"""p-values that are what they say where there is nothing to find, and small where there is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedstale.analysis.evidence import _EXACT, NONE, Evidence, all_positive, any_of, by_flips, holm, signs


def test_all_signs_are_listed_once_and_the_data_come_first() -> None:
    assert signs(3).tolist()[0] == [1.0, 1.0, 1.0]
    assert len({tuple(row) for row in signs(3).tolist()}) == 8
    many = signs(_EXACT + 5)
    assert (many[0] == 1.0).all()
    assert len(many) == 2**_EXACT


@pytest.mark.parametrize("seeds", [3, 6, 9])
def test_one_quantity_is_what_scipy_says(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    values = rng.standard_normal(seeds) + 0.5
    wanted = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="greater", n_resamples=9999
    )
    found = all_positive(values[:, None])
    assert found.in_favour == pytest.approx(wanted.pvalue)
    assert all_positive(-values[:, None]) == Evidence(found.against, found.in_favour)


def test_few_seeds_decide_nothing() -> None:
    assert all_positive(np.ones((3, 1))) == Evidence(1 / 8, 1.0)
    assert all_positive(np.ones((3, 1))).p == 0.25
    assert not all_positive(np.ones((1, 1)))
    assert not all_positive(np.ones((0, 1)))
    assert not all_positive(np.array([[1.0], [np.nan], [1.0]]))
    assert all_positive(np.zeros((9, 2))) == Evidence(1.0, 1.0)
    assert np.isnan(NONE.p)


def test_p_values_are_uniform_where_there_is_nothing_to_find() -> None:
    """Cells and β depend on each other, as in a sweep: a seed has one slope in β for all its cells, and more noise."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        slopes = rng.standard_normal((8, 1)) * np.linspace(0.5, 1.0, 6)
        found.append(all_positive((slopes + 0.3 * rng.standard_normal((8, 6))).mean(axis=1, keepdims=True)).in_favour)
    spread = np.array(found) - rng.random(400) / 2**8  # from steps of 1/256 to a continuous variable
    assert stats.kstest(spread, "uniform").pvalue > 0.01


def test_several_quantities_err_no_more_often_than_they_say() -> None:
    rng = np.random.default_rng(2)
    wrong_for, wrong_against = 0, 0
    for _ in range(300):
        values = rng.standard_normal((8, 1)) + rng.standard_normal((8, 10))
        values[:, 5:] += 5.0  # five of the ten really are positive, five are nothing
        found = all_positive(values)
        wrong_for += found.in_favour <= 0.05
        wrong_against += found.against <= 0.05
    assert wrong_for <= 0.05 * 300
    assert wrong_against <= 25  # 15 expected at most


def test_what_is_there_is_found() -> None:
    rng = np.random.default_rng(3)
    values = 1.0 + 0.5 * rng.standard_normal((10, 4))
    assert all_positive(values).p <= 0.01
    values[:, 2] -= 2.0
    found = all_positive(values)
    assert found.against <= 0.01
    assert found.in_favour > 0.9


def test_the_mean_over_flips_is_what_chance_gives() -> None:
    rng = np.random.default_rng(4)
    profiles = rng.standard_normal((8, 1)) * np.linspace(-0.5, 0.5, 5)  # a random slope in β, the same in all cells

    def middle_wins(
        flips: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.isin((flips @ profiles).argmax(axis=1), (1, 2, 3)).astype(float)

    _, chance = by_flips(8, middle_wins)
    assert chance == 0.0  # with slopes alone, the ends win always; three of five labels would say 60 %


def test_any_of() -> None:
    assert any_of([Evidence(0.01, 0.9), Evidence(0.5, 0.5), Evidence(0.8, 0.1)]) == Evidence(0.03, 0.9)
    assert any_of([Evidence(0.5, 0.5), Evidence(0.6, 0.2)]) == Evidence(1.0, 0.5)
    assert not any_of([Evidence(0.5, 0.5), NONE])
    assert not any_of([])


def test_holm() -> None:
    found = holm([0.01, 0.04, float("nan"), 0.03, 0.005])
    assert found[:2] == pytest.approx([0.03, 0.06])
    assert np.isnan(found[2])
    assert found[3:] == pytest.approx([0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
