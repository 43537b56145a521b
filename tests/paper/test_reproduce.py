"""Every figure is drawn, from runs that are done once."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from fedstale.analysis import HeatMap
from fedstale.checks import InvalidInput
from fedstale.paper import curves, fig1, heatmaps
from fedstale.paper.reproduce import Reproducer, extent
from fedstale.simulation import Settings
from fedstale.store import Store

from .synthetic import as_the_paper_says, measured


def check(files: list[Path]) -> None:
    kinds = {file.suffix for file in files}
    assert {".png", ".svg", ".csv"} <= kinds
    for file in files:
        assert file.stat().st_size > 100, file
        if file.suffix == ".png":
            assert file.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_pictures_of_a_full_grid(drawn: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not drawn:
        request.getfixturevalue("unrendered")
    table = HeatMap.of(measured(as_the_paper_says))
    check(heatmaps.fig2(table, tmp_path, "made-up"))
    check(curves.fig3(table, tmp_path, "made-up"))
    check(curves.fig4(table, tmp_path, "made-up", "with a note"))
    estimated = HeatMap.of(measured(as_the_paper_says, swaps=(0.6,), probabilities="fedau"))
    check(heatmaps.fig5(table, estimated, tmp_path, "made-up"))


def test_pictures_of_what_little_there_is(tmp_path: Path) -> None:
    table = HeatMap.of(measured(as_the_paper_says, p_min=(0.5, 0.05), swaps=(0.6,), betas=(0.0, 1.0), seeds=1))
    check(heatmaps.fig2(table, tmp_path, "little"))
    check(curves.fig3(table, tmp_path, "little"))
    check(heatmaps.fig5(table, HeatMap([]), tmp_path, "little"))


@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_figure_1(drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not drawn:
        request.getfixturevalue("unrendered")

    def short(seeds: int = 2) -> list[Settings]:
        return [one.replace(rounds=200) for one in full(seeds)]

    full = fig1.runs
    monkeypatch.setattr(fig1, "runs", short)
    with Store.open(tmp_path / "store") as store:
        made = Reproducer(store, tmp_path / "out", extent("digits-mlp"), fig1_runs=2).reproduce("fig1")
        check(made.files)
        assert made.progress[0].done == 8
        assert made.left_out == ["8 of 10 runs of Figure 1 (d)"]
    assert (tmp_path / "out" / "fig1.csv").read_text().count("\n") == 1 + 4 * 10


def small(task: str = "digits-mlp", betas: Sequence[float | str] = (0.0, 1.0, "auto")) -> dict[str, object]:
    return {"p_min": (0.5,), "swaps": (0.0, 0.6), "betas": betas, "seeds": 1, "rates": (0.3,)}


@pytest.mark.usefixtures("unrendered")
def test_runs_are_shared_between_figures(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        chosen = extent("digits-mlp", **small())  # type: ignore[arg-type]
        first = Reproducer(store, tmp_path / "out", chosen, widen=0).reproduce("fig2")
        check(first.files)
        assert [progress.done for progress in first.progress] == [6]
        second = Reproducer(store, tmp_path / "out", chosen, widen=0).reproduce("fig5")
        assert [(progress.stored, progress.done) for progress in second.progress] == [(3, 0), (0, 3)]
        again = Reproducer(store, tmp_path / "out", chosen, run=False).reproduce("fig4")
        assert again.progress == []
        check(again.files)
        assert any("seeds" in part for part in again.left_out)


@pytest.mark.usefixtures("unrendered")
def test_the_rates_are_widened_until_the_best_is_interior(tmp_path: Path) -> None:
    axes = {**small(betas=(0.0, 1.0)), "swaps": (0.6,), "rates": (0.1, 10**-1.5)}
    chosen = extent("digits-mlp", **axes)  # type: ignore[arg-type]
    with Store.open(tmp_path / "store") as store:
        narrow = Reproducer(store, tmp_path / "out", chosen, widen=0).reproduce("fig2")
        assert len(narrow.at_edge) == 2
        assert "highest rate 0.1" in narrow.at_edge[0]
        made = Reproducer(store, tmp_path / "out", chosen).reproduce("fig2")
        assert made.at_edge == []
        assert len(store.runs()) > 4
        drawn = Reproducer(store, tmp_path / "out", chosen, run=False).reproduce("fig2")
        assert (drawn.at_edge, drawn.progress) == ([], [])
        with open(tmp_path / "out" / "fig2-digits-mlp.csv", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        assert all(float(line["lr"]) > 0.1 and line["at_edge"] == "" for line in lines)


@pytest.mark.usefixtures("unrendered")
def test_claims_from_the_store_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        few = extent("digits-mlp", p_min=(0.5, 0.05), seeds=1)
        made = Reproducer(store, tmp_path / "out", few, run=False).reproduce("claims")
        assert {row.verdict for row in made.claims} == {"not decided"}
        with pytest.raises(InvalidInput, match="has no run of fig2"):
            Reproducer(store, tmp_path / "out", few, run=False).reproduce("fig2")


def test_wrong_names() -> None:
    with pytest.raises(InvalidInput, match="unknown task"):
        extent("digist")
    with pytest.raises(InvalidInput, match="at least one value"):
        extent("digits-mlp", swaps=())


@pytest.mark.usefixtures("unrendered")
def test_fresh_seeds_run_at_the_rates_that_the_others_chose(tmp_path: Path) -> None:
    axes = {**small(betas=(0.0, 1.0, "auto")), "swaps": (0.0,), "rates": (1.0, 0.001), "seeds": 2}
    chosen = extent("digits-mlp", **axes)  # type: ignore[arg-type]
    with Store.open(tmp_path / "store") as store:
        plain = Reproducer(store, tmp_path / "out", chosen, widen=0).reproduce("fig2")
        made = Reproducer(store, tmp_path / "out", chosen, fresh=3, widen=0).reproduce("fig2")
        assert [(one.stored, one.done) for one in made.progress] == [(12, 0), (0, 9)]
        check(made.files)
        assert not set(plain.files) & set(made.files)
        tuned_on = {(cell.beta, cell.lr) for cell in cells(tmp_path / "out" / "fig2-digits-mlp.csv")}
        fresh = cells(tmp_path / "out" / "fig2-digits-mlp-fresh.csv")
        assert {(cell.beta, cell.lr) for cell in fresh} == tuned_on
        assert {cell.seeds for cell in fresh} == {"3"}
        assert {info.config["seed"] for info in store.runs()} == {0, 1, 2, 3, 4}
        claims = Reproducer(store, tmp_path / "out", chosen, run=False, fresh=3).reproduce("claims").claims
        assert any("the seeds that chose the rate" in row.claim for row in claims)


@pytest.mark.usefixtures("unrendered")
def test_a_change_of_the_setting_is_said(tmp_path: Path) -> None:
    axes = {**small(betas=(0.0, 1.0)), "swaps": (0.6,)}
    chosen = extent("digits-mlp", changed={"batch_size": 8}, **axes)  # type: ignore[arg-type]
    with Store.open(tmp_path / "store") as store:
        made = Reproducer(store, tmp_path / "out", chosen, widen=0).reproduce("fig4")
        assert "batch_size is 8, not the paper's" in made.left_out
        assert {info.config["batch_size"] for info in store.runs()} == {8}
    with pytest.raises(InvalidInput, match="is an axis of the figures"):
        extent("digits-mlp", changed={"swap": 0.3})
    with pytest.raises(InvalidInput, match="batch_sise"):
        extent("digits-mlp", changed={"batch_sise": 8}).fig4()


class Line(NamedTuple):
    beta: str
    lr: str
    seeds: str


def cells(path: Path) -> list[Line]:
    with open(path, encoding="utf-8") as file:
        return [Line(row["beta"], row["lr"], row["seeds"]) for row in csv.DictReader(file)]
