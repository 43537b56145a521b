"""Claims are held, not held or not decided by what was measured, and by nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedstale.analysis import HeatMap, tuned, verdicts
from fedstale.analysis.evidence import NONE, Evidence, all_positive, stacked
from fedstale.analysis.heatmap import ratio
from fedstale.analysis.verdicts import AT_EDGE, HELD, NOT_DECIDED, NOT_HELD, Claim, Finding, judged
from fedstale.paper import auto_claims, claims, differences
from fedstale.paper.fig1 import METHODS

from .synthetic import Accuracy, as_the_paper_says, measured

SEEDS = 10


def table(accuracy: Accuracy, **axes: Any) -> HeatMap:
    """A table of runs at one rate, taken as interior."""
    return HeatMap(replace(cell, at_edge=None) for cell in tuned(measured(accuracy, **{"seeds": SEEDS, **axes})))


def judge(found: list[Finding]) -> list[str]:
    return [row.verdict for row in judged(found)]


def test_verdicts() -> None:
    rows = [
        Finding("a", "x", Evidence(0.001, 1.0)),
        Finding("b", "x", Evidence(1.0, 0.001)),
        Finding("c", "x", Evidence(0.03, 0.99)),
        Finding("d", "x", Evidence(0.0001, 1.0), edges=2),
        Finding("e", "x", NONE),
    ]
    assert judge(rows) == [HELD, NOT_HELD, NOT_DECIDED, AT_EDGE, NOT_DECIDED]
    found = judged(rows)
    assert [row.p for row in found[:4]] == pytest.approx([0.002, 0.002, 0.06, 0.0002])
    assert [row.adjusted for row in found[:4]] == pytest.approx([0.006, 0.006, 0.06, 0.0008])
    assert math.isnan(found[4].adjusted)
    assert found[3].measured == "x; best rate at the edge of its grid in 2 cells"


def test_the_number_of_claims_is_paid_for() -> None:
    once = Finding("a", "x", Evidence(0.01, 1.0))
    assert judge([once]) == [HELD]
    assert judge([once] * 4) == [NOT_DECIDED] * 4


def test_a_world_as_the_paper_says() -> None:
    found = claims.fig2_findings(table(as_the_paper_says))
    assert judge(found) == [HELD] * 6
    assert "48 of 48 cells" in found[0].measured


def test_the_opposite_world() -> None:
    def opposite(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return 2.0 - as_the_paper_says(p, swap, beta, seed, lr)

    found = judge(claims.fig2_findings(table(opposite)))
    assert HELD not in found
    assert found[1] == found[2] == found[3] == NOT_HELD


def test_three_seeds_decide_nothing() -> None:
    rows = claims.fig2_findings(table(as_the_paper_says, seeds=3))
    assert judge(rows) == [NOT_DECIDED] * 6
    assert min(row.evidence.p for row in rows) == 0.25


def test_nothing_is_decided_on_half_a_grid() -> None:
    found = claims.fig2_findings(table(as_the_paper_says, p_min=(0.5, 0.1), swaps=(0.0, 0.6)))
    assert judge(found)[:4] == [NOT_DECIDED] * 4
    assert "4 of 48" in found[0].measured
    assert judge(claims.fig2_findings(HeatMap([]))) == [NOT_DECIDED] * 6
    assert judge(claims.fig34_findings(HeatMap([]))) == [NOT_DECIDED] * 2


def test_a_rate_at_the_edge_decides_nothing() -> None:
    found = claims.fig2_findings(HeatMap.of(measured(as_the_paper_says, seeds=SEEDS)))
    assert judge(found) == [AT_EDGE] * 6
    cells = [cell for row in table(as_the_paper_says).cells.values() for cell in row.values()]
    here = [cell.runs[0].settings for cell in cells]
    at = next(k for k, one in enumerate(here) if (one.p_min, one.swap, one.beta) == (0.5, 0.6, 0.2))
    cells[at] = replace(cells[at], at_edge="low")
    one = HeatMap(cells)
    # β = 0.2 at p_min = 0.5 has a part in the count and in the zone of FedVARP, not in the slopes of β = 1 minus β = 0.
    assert [verdict == AT_EDGE for verdict in judge(claims.fig2_findings(one))] == [True, True, *[False] * 4]
    assert judge(claims.fig34_findings(one)) == [HELD, HELD]


def noise(seed: int, slopes: float = 1.0, far_behind: float | None = None) -> Accuracy:
    """Nothing but chance: a seed has a slope in β, the same in all cells of a column, and every run has noise.

    One β may be far behind the others.
    """
    rng = np.random.default_rng(seed)
    slope = slopes * rng.standard_normal((50, 8))
    columns: dict[float, int] = {}

    def accuracy(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        column = columns.setdefault(p, len(columns))
        tilt = 0.0 if isinstance(beta, str) else slope[seed, column] * (beta - 0.5)
        behind = 0.1 if beta == far_behind else 0.0
        return 0.9 - behind + 0.002 * (tilt + 0.5 * float(rng.standard_normal()))

    return accuracy


FIXED: dict[str, Any] = {"p_min": (0.5, 0.1, 0.02), "betas": (0.0, 0.2, 0.5, 0.8, 1.0), "swaps": (0.0, 0.6)}


def test_p_values_are_uniform_where_chance_alone_decides() -> None:
    """In worlds without any effect; guideline B, which must hold with any column left out, errs more rarely."""
    leads, slopes = [], []
    for world in range(100):
        grid = table(noise(world), seeds=7, **FIXED)
        leads.append(claims._prevailing(claims._deviations(grid, list(grid.cells)))[0].in_favour)
        slopes.append(
            differences.trend(grid, list(grid.cells), 1, lambda place: math.log10(ratio(place[0])), -1.0)[2].p
        )
    smooth = (
        np.array(leads) - np.random.default_rng(0).random(100) / 2**7
    )  # from steps of 1/128 to a continuous variable
    assert stats.kstest(smooth, "uniform").pvalue > 0.01
    assert stats.kstest(slopes, "uniform", alternative="greater").pvalue > 0.01  # no smaller than they should be


def test_one_end_that_is_far_behind_makes_no_finding() -> None:
    found = []
    for world in range(100):
        grid = table(noise(world, slopes=0.0, far_behind=1.0), seeds=7, **FIXED)
        found.append(claims._prevailing(claims._deviations(grid, list(grid.cells)))[0].p)
    assert stats.kstest(found, "uniform", alternative="greater").pvalue > 0.01


def test_what_chance_gives_depends_on_the_runs() -> None:
    """Where a seed's accuracies are a slope in β and little else, the ends win: three of five β do not win 60 %."""
    steep, flat = (table(noise(1, slopes=slopes)) for slopes in (5.0, 0.0))
    assert claims._wins_by_chance(claims._deviations(steep, list(steep.cells))) < 0.3
    assert claims._wins_by_chance(claims._deviations(flat, list(flat.cells))) == pytest.approx(0.6, abs=0.07)


def test_a_lead_that_is_more_than_chance() -> None:
    quiet = noise(2)

    def accuracy(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return quiet(p, swap, beta, seed, lr) - 0.02 * (0.0 if isinstance(beta, str) else (beta - 0.5) ** 2)

    grid = table(accuracy)
    evidence, _ = claims._prevailing(claims._deviations(grid, list(grid.cells)))
    assert evidence.p < 0.01
    grid = table(lambda *at: 1.8 - accuracy(*at))
    assert claims._prevailing(claims._deviations(grid, list(grid.cells)))[0].against < 0.01


def test_guideline_b_does_not_rest_on_one_column() -> None:
    def one_column(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        fall = 0.03 if p == 0.002 and beta == 1.0 else 0.0
        return 0.9 - fall + 0.001 * math.sin(7 * seed + 50 * p + 11 * swap + (0 if isinstance(beta, str) else 3 * beta))

    row = claims.fig2_findings(table(one_column))[5]
    assert "guideline B" in row.claim
    assert row.evidence.p > 0.1
    assert "to -0.00 with one p_min or σ̂²_g left out" in row.measured
    whole = differences.slope(
        table(one_column), [[(p, 0.0) for p in (0.5, 0.05, 0.002)]], lambda place: -math.log10(place[0])
    )
    assert all_positive(-stacked([whole])).p < 0.01  # what the old judgement went by


def test_figures_3_and_4() -> None:
    assert judge(claims.fig34_findings(table(as_the_paper_says))) == [HELD, HELD]


@pytest.mark.parametrize(("harm", "verdict"), [(0.05, HELD), (-0.05, NOT_HELD)])
def test_estimated_probabilities(harm: float, verdict: str) -> None:
    def estimated(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        lost = harm if beta == 1.0 else 0.001 * seed
        return as_the_paper_says(p, swap, beta, seed, lr) - lost

    known = table(as_the_paper_says, swaps=(0.6,))
    other = table(estimated, swaps=(0.6,), probabilities="fedau")
    assert judge(claims.fig5_findings(known, other))[0] == verdict
    assert judge(claims.fig5_findings(known, HeatMap([]))) == [NOT_DECIDED, NOT_DECIDED]


def test_a_lower_optimum_with_estimated_probabilities() -> None:
    def bowl(best: float) -> Accuracy:
        return lambda p, swap, beta, seed, lr: (
            0.9 - 0.1 * ((0.5 if isinstance(beta, str) else beta) - best) ** 2 + 0.0001 * math.sin(seed * 9 + 7 * p)
        )

    known, other = (table(bowl(best), swaps=(0.6,)) for best in (0.8, 0.2))
    row = claims.fig5_findings(known, other)[1]
    assert "mean β_opt 0.80 with exact, 0.20 with estimated p, over 8 p_min: lower by 0.60" in row.measured
    assert row.evidence.in_favour < 0.06  # an optimum on five β takes many seeds to tell
    assert claims.fig5_findings(other, known)[1].evidence.against < 0.06
    assert claims.fig5_findings(known, known)[1].evidence == Evidence(1.0, 1.0)


def test_auto_is_judged_in_its_worst_cell() -> None:
    good = table(as_the_paper_says)
    assert judge(auto_claims.auto_findings(good))[0] == HELD

    def slips(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        fallen = 0.2 if beta == "auto" and (p, swap) == (0.02, 0.4) else 0.0
        return as_the_paper_says(p, swap, beta, seed, lr) - fallen

    first, second = auto_claims.auto_findings(table(slips))
    assert judge([first, second]) == [NOT_HELD, NOT_HELD]
    assert "p_min 0.02, swap 0.4; more than 0.5 below in 1" in first.measured
    assert auto_claims.auto_findings(table(as_the_paper_says, betas=(0.0, 1.0))) == []
    part = auto_claims.auto_findings(table(as_the_paper_says, p_min=(0.5,)))
    assert judge(part) == [NOT_DECIDED] * 2


def test_figure_1() -> None:
    rounds = np.arange(10.0)
    draws = np.random.default_rng(1).random((10, 10))
    curves = {label: (rounds, k + 0.01 * draws) for label, k in zip(METHODS, (2.0, 3.0, 1.0, 1.5), strict=True)}
    assert judge([claims.fig1_finding(curves)]) == [HELD]
    curves["FedStale β=0.8"] = (rounds, 9 + 0.01 * draws)
    assert judge([claims.fig1_finding(curves)]) == [NOT_HELD]
    assert judge([claims.fig1_finding({})]) == [NOT_DECIDED]


def test_markdown() -> None:
    text = verdicts.markdown([Claim("a", "b", 0.012, math.nan, HELD)])
    assert "| a | b | 0.012 | – | **held** |" in text.splitlines()
    assert "flipping the signs of whole seeds" in text


def test_auto_against_the_beta_that_other_seeds_chose() -> None:
    def flat(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return 0.8 + (0.01 if beta == "auto" else 0.0) + 0.0001 * seed

    chosen, fresh = table(as_the_paper_says, seeds=3), table(flat)
    row = auto_claims.fresh_findings(fresh, chosen)[0]
    assert judge([row]) == [HELD]
    assert "+1.00 ± 0.00" in row.measured
    assert auto_claims.fresh_findings(HeatMap([]), chosen) == []
