"""Tuning and the numbers of the heat map."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedstale.analysis import Estimate, HeatMap, tuned
from fedstale.analysis.heatmap import ratio
from fedstale.paper import curves, heatmaps
from fedstale.paper.grids import BETAS, Extent

from .synthetic import as_the_paper_says, measured


def test_the_best_rate_is_chosen_by_the_mean_over_seeds() -> None:
    def value(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return {0.1: (0.9, 0.5, 0.5), 0.3: (0.7, 0.7, 0.7), 1.0: (0.99, 0.99, math.nan)}[lr][seed]

    (cell,) = tuned(measured(value, p_min=(0.5,), swaps=(0.0,), betas=(0.5,), rates=(0.1, 0.3, 1.0)))
    assert cell.lr == 0.3
    assert cell.mean == pytest.approx(0.7)
    assert cell.rates[0.1] == pytest.approx(1.9 / 3)
    assert math.isnan(cell.rates[1.0])


def test_every_rate_diverges() -> None:
    (cell,) = tuned(measured(lambda *_: math.nan, p_min=(0.5,), swaps=(0.0,), betas=(0.5,)))
    assert math.isnan(cell.mean)
    table = HeatMap.of(measured(lambda p, s, b, seed, lr: math.nan if b == 1.0 else 0.5, p_min=(0.5,), swaps=(0.0,)))
    assert table.best((0.5, 0.0)) == 0.0


def test_a_rate_with_fewer_seeds_is_not_compared() -> None:
    rows = measured(lambda p, s, b, seed, lr: lr, p_min=(0.5,), swaps=(0.0,), betas=(0.5,), rates=(0.1, 0.3))
    (cell,) = tuned(rows[:-1])
    assert cell.lr == 0.1


def test_gains_are_paired() -> None:
    noise = (0.0, 0.3, -0.2)
    table = HeatMap.of(measured(lambda p, s, b, seed, lr: noise[seed] + (0.0 if isinstance(b, str) else 0.1 * b)))
    gain = table.gain((0.1, 0.4), 1.0, 0.5)
    assert gain.mean == pytest.approx(0.05)
    assert gain.error == pytest.approx(0.0, abs=1e-12)
    assert table.best((0.1, 0.4)) == 1.0
    assert math.isnan(table.gain((0.1, 0.4), 1.0, "auto-per-client").mean)


def test_csv(tmp_path: Path) -> None:
    HeatMap.of(measured(as_the_paper_says, p_min=(0.5, 0.1), swaps=(0.0,))).write(tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert len(rows) == 2 * 6
    assert {row["p_avg/p_min"] for row in rows} == {"1.5", "5.5"}


def test_the_shares_that_were_swapped_stand_on_the_axis_and_in_the_csv(tmp_path: Path) -> None:
    table = HeatMap.of(measured(as_the_paper_says, p_min=(0.5,), swaps=(0.6,)))
    assert table.swapped(0.6) == pytest.approx((0.6, 0.59))
    assert table.swap_text(0.6) == "0.6 (0.60 train, 0.59 test)"
    table.write(tmp_path / "t.csv")
    (row, *_) = csv.DictReader((tmp_path / "t.csv").open())
    assert (row["swap"], row["swap_train"], row["swap_test"]) == ("0.6", "0.600000", "0.590000")
    unknown = [
        replace(run, metrics={"accuracy": run.accuracy})
        for cell in table.fixed((0.5, 0.6)).values()
        for run in cell.runs
    ]
    assert HeatMap.of(unknown).swap_text(0.6) == "0.6"


def test_estimate() -> None:
    assert Estimate.of([1.0, 3.0]) == Estimate(2.0, 1.0, 2)
    assert Estimate(0.012, 0.003).points() == "+1.20 ± 0.30"
    assert Estimate.of([]).points() == "–"


def test_the_papers_grid() -> None:
    whole = Extent.full("digits-mlp").replace(betas=BETAS)
    assert len(whole.fig2()) == 720 * 5
    assert len(whole.replace(rates=[0.1]).fig2()) == 720
    inside = set(map(repr, whole.fig2()))
    assert set(map(repr, whole.fig3())) < inside
    assert set(map(repr, whole.fig4())) < inside
    assert Extent.full("digits-mlp").left_out() == []
    assert ratio(0.05) == pytest.approx(10.5)


def test_quick_says_what_it_left_out() -> None:
    told = "; ".join(Extent.quick("digits-mlp").left_out())
    for part in (
        "p_min 0.01, 0.005, 0.002",
        "swap 0.4, 0.8",
        "β auto-per-client",
        "learning rate 1, 0.01",
        "1 of 3 seeds",
    ):
        assert part in told


def test_a_best_rate_at_the_edge_is_marked(tmp_path: Path) -> None:
    def value(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return 0.9 - lr if beta == 1.0 else 0.9 - abs(lr - 0.3)

    table = HeatMap.of(measured(value, p_min=(0.5,), swaps=(0.0,), betas=(0.0, 1.0), rates=(0.1, 0.3, 1.0)))
    assert table.at_edge((0.5, 0.0)) == [1.0]
    table.write(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        assert [(row["beta"], row["at_edge"]) for row in csv.DictReader(file)] == [("0.0", ""), ("1.0", "low")]


def test_other_seeds_have_the_edges_of_those_that_chose_the_rate() -> None:
    def value(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return 0.9 - lr if beta == 1.0 else 0.9 - abs(lr - 0.3)

    rows = measured(value, p_min=(0.5,), swaps=(0.0,), betas=(0.0, 1.0), seeds=4, rates=(0.1, 0.3, 1.0))
    chosen = tuned(row for row in rows if row.settings.seed < 3)
    rates = {repr(cell.runs[0].settings.beta): cell.lr for cell in chosen}
    fresh = [row for row in rows if row.settings.seed == 3 and row.settings.lr == rates[repr(row.settings.beta)]]
    assert [cell.at_edge for cell in tuned(fresh)] == ["both", "both"]
    assert [cell.at_edge for cell in tuned(fresh, chosen)] == [None, "low"]


def test_what_diverged_is_told_in_the_table_and_in_the_gains(tmp_path: Path) -> None:
    def wild(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return float("nan") if beta == 1.0 and seed == 1 else 0.9

    found = HeatMap(tuned(measured(wild, p_min=(0.1,), swaps=(0.6,))))
    place = (0.1, 0.6)
    assert found.cells[place][1.0].estimate.diverged == (3,)
    assert found.gain(place, 0.5, 1.0).short() == "diverged"
    assert found.best(place) == 0.0
    assert found.diverged() == ["β=1.0 at p_min 0.1, swap 0.6 diverged in round 3 (1 of 3 seeds)"]
    found.write(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        lines = {line["beta"]: line for line in csv.DictReader(file)}
    assert (lines["1.0"]["accuracy"], lines["1.0"]["diverged_in"]) == ("", "3")
    assert (lines["0.5"]["accuracy"], lines["0.5"]["diverged_in"]) == ("0.900000", "")
    files = heatmaps.fig2(found, tmp_path, "made-up")
    assert all(path.stat().st_size for path in files)
    files = curves.fig4(found, tmp_path, "made-up")
    with open(files[-1], encoding="utf-8", newline="") as file:
        ended = {line["method"]: line["diverged_in"] for line in csv.DictReader(file)}
    assert ended["FedStale β=1 (U-FedVARP), where it did not diverge"] == "3"
