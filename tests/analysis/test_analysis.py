"""The tail, the estimate and the curve: a run that diverged has no result, and is never left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedstale.analysis import Estimate, diverged_text, over_seeds, tail
from fedstale.analysis.axes import curve_over, unit
from fedstale.checks import InvalidInput

NAN = float("nan")


def test_the_tail_is_the_last_tenth_of_the_rounds_planned() -> None:
    values = np.arange(20.0)
    assert tail(np.arange(20), values, planned=20, done=20) == 18.5
    assert tail(np.arange(20), values, planned=20, done=20, share=0.5) == 14.5
    evaluated = np.where(np.arange(20) % 5 == 4, values, NAN)
    assert tail(np.arange(20), evaluated, planned=20, done=20) == 19.0
    assert tail([4, 9, 14, 19], [0.1, 0.2, 0.3, 0.4], planned=20, done=20) == 0.4


@pytest.mark.parametrize("done", [1, 5, 19])
def test_a_run_that_diverged_has_no_tail_however_far_it_came(done: int) -> None:
    assert math.isnan(tail(np.arange(done), np.ones(done), planned=20, done=done, diverged_in=done + 1))


def test_a_run_that_was_stopped_or_is_still_going_is_judged_by_the_rounds_it_has() -> None:
    assert tail(np.arange(10), np.arange(10.0), planned=100, done=10) == 9.0
    assert tail([4, 9], [0.1, 0.2], planned=100, done=13) == 0.2


def test_no_evaluation_no_tail_and_infinite_losses_count() -> None:
    assert math.isnan(tail([], [], planned=20, done=20))
    assert math.isnan(tail(np.arange(20), np.full(20, NAN), planned=20, done=20))
    assert math.isnan(tail([0, 1], [0.5, 0.6], planned=20, done=20))
    assert tail([18, 19], [1.0, math.inf], planned=20, done=20) == math.inf


def test_an_estimate_leaves_nothing_out() -> None:
    assert Estimate.of([1.0, 3.0]) == Estimate(2.0, 1.0, 2)
    assert f"{Estimate.of([0.5, 0.7]):.1%}" == "60.0% ± 10.0%"
    assert f"{Estimate.of([0.5]):.1%}" == "50.0%"
    partly = Estimate.of([0.5, NAN, 0.7])
    assert math.isnan(partly.mean)
    assert (partly.count, f"{partly:.1%}") == (2, "–")
    assert f"{Estimate.of([]):.1%}" == Estimate.of([]).points() == "–"
    assert Estimate.of([1.0, math.inf]).mean == math.inf


def test_an_estimate_says_which_seeds_diverged() -> None:
    some = Estimate.of([0.9, NAN, 0.8], [None, 17, None])
    assert math.isnan(some.mean)
    assert (some.count, some.diverged) == (2, (17,))
    assert f"{some:.1%}" == some.points() == "diverged in round 17 (1 of 3 seeds)"
    assert math.isnan(Estimate.of([0.9, 0.1], [None, 3]).mean)  # whatever it had reached before
    assert f"{Estimate.of([NAN], [2]):.1%}" == "diverged in round 2"
    assert diverged_text([5, 1200], 3) == "diverged in rounds 5 to 1,200 (2 of 3 seeds)"


def test_an_estimate_in_a_heat_map() -> None:
    assert Estimate(0.01234, 0.0031).short() == "1.2±0.3"
    assert Estimate(-0.0001, NAN).short() == "0.0"
    assert Estimate(0.01234, NAN).short(sign=True) == "+1.2"
    assert Estimate.of([]).short() == "–"
    assert Estimate.of([NAN], [3]).short() == "diverged"


def test_a_curve_is_the_mean_of_the_seeds_that_were_evaluated() -> None:
    curve = over_seeds([([0, 1, 2], [1.0, NAN, 3.0]), ([0, 2, 4], [3.0, 5.0, 9.0])])
    assert curve.rounds.tolist() == [1, 3, 5]
    assert curve.mean.tolist() == [2.0, 4.0, 9.0]
    np.testing.assert_array_equal(curve.error, [1.0, 1.0, NAN])
    assert (curve.seeds, curve.ending) == (2, "")


def test_a_curve_ends_where_the_first_seed_diverged() -> None:
    curve = over_seeds([(range(10), np.ones(10)), (range(4), np.zeros(4))], [None, 5])
    assert curve.rounds.tolist() == [1, 2, 3, 4]
    assert curve.mean.tolist() == [0.5] * 4
    assert curve.ending == "diverged in round 5 (1 of 2 seeds)"
    nothing = over_seeds([([], []), (range(10), np.ones(10))], [1, None])
    assert not nothing.rounds.size
    assert nothing.ending == "diverged in round 1 (1 of 2 seeds)"


def test_a_curve_against_bytes_and_time() -> None:
    class Recorded:
        def __init__(self, **columns: list[float]) -> None:
            self._columns = columns

        def series(self, metric: str) -> tuple[list[int], list[float]]:
            values = self._columns.get(metric, [])
            return list(range(len(values))), values

    nan = float("nan")
    one = Recorded(accuracy=[nan, 0.5, nan, 0.7], bytes_up=[1, 1, 1, 1], virtual_seconds=[2, 4, 7, 9])
    two = Recorded(accuracy=[nan, 0.3, nan, 0.5], bytes_up=[3, 3, 3, 3], bytes_down=[1, 1, 1, 1])
    assert curve_over([one, two], "accuracy").x.tolist() == [2, 4]
    assert curve_over([one, two], "accuracy", "bytes").x.tolist() == [(2 + 8) / 2, (4 + 16) / 2]
    timed = curve_over([one, two], "accuracy", "virtual_seconds")  # only the first has a clock
    assert (timed.x.tolist(), timed.mean.tolist()) == ([4, 9], [0.5, 0.7])
    assert len(curve_over([two], "accuracy", "virtual_seconds").x) == 0
    with pytest.raises(InvalidInput, match="virtual_seconds"):
        curve_over([one], "accuracy", "virtual")
    assert unit("virtual_seconds", 100.0) == (1.0, "virtual time (seconds)")
    assert unit("virtual_seconds", 5 * 86_400.0) == (86_400.0, "virtual time (days)")
