"""The heat map: errors in its squares, and pale ones where the seeds decide nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedstale.analysis import Estimate, HeatMap, MeasuredRun
from fedstale.analysis.palette import DIVERGING, SEQUENTIAL, blend
from fedstale.simulation import make_settings

POINT = (0.1, 0.6)


def heat(**by_beta: Sequence[float]) -> HeatMap:
    """A map of one point: accuracies by seed, for β = 0 (`b0`), 0.5 (`b5`), 1 (`b1`) and auto."""
    betas = {"b0": 0.0, "b5": 0.5, "b1": 1.0, "auto": "auto"}
    return HeatMap.of(
        MeasuredRun(make_settings(p_min=0.1, swap=0.6, beta=betas[name], lr=0.1, seed=seed), accuracy, {})
        for name, accuracies in by_beta.items()
        for seed, accuracy in enumerate(accuracies)
    )


def test_a_difference_beyond_two_errors_is_decided() -> None:
    decided = heat(b0=[0.90, 0.91, 0.90], b5=[0.93, 0.94, 0.935], b1=[0.91, 0.92, 0.91])
    square = decided.squares()[POINT]
    assert (square.text, square.decided, square.colour) == ("0.5*", True, blend(SEQUENTIAL, 0.5))
    assert square.notes == ("Δ₀ 3.2±0.2", "Δ₁ 2.2±0.2")
    assert "not decided" not in square.description


@pytest.mark.parametrize("b5", [[0.93, 0.90, 0.92], [0.93]])
def test_noise_and_a_single_seed_decide_nothing(b5: list[float]) -> None:
    square = heat(b0=[0.90, 0.91, 0.915][: len(b5)], b5=b5, b1=[0.91, 0.92, 0.90][: len(b5)]).squares()[POINT]
    assert not square.decided
    assert square.colour == blend((blend(SEQUENTIAL, 0.5), "#ffffff"), 0.75)
    assert not square.on_dark
    assert "not decided by these seeds" in square.description


def test_an_end_of_the_range_is_compared_with_the_other_end() -> None:
    assert heat(b0=[0.95, 0.96, 0.95], b1=[0.90, 0.91, 0.90]).squares()[POINT].decided
    assert not heat(b0=[0.95, 0.90, 0.95], b1=[0.90, 0.94, 0.90]).squares()[POINT].decided


def test_the_difference_of_auto_is_pale_within_its_error() -> None:
    table = heat(b0=[0.90, 0.91, 0.90], b1=[0.80, 0.80, 0.80], auto=[0.91, 0.90, 0.90])
    square = table.squares("auto")[POINT]
    assert (square.text, square.decided) == ("+0.0±0.6", False)
    better = heat(b0=[0.90, 0.91, 0.90], b1=[0.80, 0.80, 0.80], auto=[0.92, 0.93, 0.92]).squares("auto")[POINT]
    assert (better.decided, better.colour) == (True, blend(DIVERGING, 1.0))


def test_decided_is_two_standard_errors() -> None:
    assert Estimate(0.03, 0.01, 3).decided
    assert Estimate(-0.03, 0.01, 3).decided
    assert not Estimate(0.02, 0.01, 3).decided
    assert not Estimate(0.02, float("nan"), 1).decided
    assert not Estimate(float("nan"), float("nan")).decided
