"""Filter, order, curves and the heat map: what is chosen, and with which numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedstale.analysis import HeatMap
from fedstale.board.choice import first_choice, with_seeds
from fedstale.board.curves import group, line
from fedstale.board.filters import COLUMNS, matching, ordered
from fedstale.board.heat import HeatMaps
from fedstale.board.panels import Panels
from fedstale.board.parts import heat
from fedstale.board.source import Source
from fedstale.simulation import make_settings
from fedstale.store import Store
from fedstale.sweeps import results
from fedstale.tasks.defaults import used_rate

from .conftest import BETAS, P_MINS, SWAPS, accuracy, fill_sweep, fill_timed


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 65),
        ("p_min=0.1", 32),
        ("p_min=0.1 swap=0.6 beta=auto", 4),
        ("beta=0.5 seed!=0 lr<0.5", 4),
        ("GRID digits", 64),
        ("script", 1),
        ("status=finished accuracy>0.93", None),
        ("sweep=grid seed>=1", 32),
        ("status=failed", 0),
        ("unknown=3", 0),
        ("probabilities=fedau", 1),
        ("seed>zero", 0),
    ],
)
def test_filter(source: Source, text: str, count: int | None) -> None:
    found = matching(source.runs.values(), text)
    if count is None:
        assert found
        assert all(info.summary["accuracy"] > 0.93 for info in found)
        assert len(found) < 65
    else:
        assert len(found) == count


@pytest.mark.parametrize("column", COLUMNS)
def test_order(source: Source, column: str) -> None:
    runs = list(source.runs.values())
    up, down = ordered(runs, column, False), ordered(runs, column, True)
    assert sorted(map(id, up)) == sorted(map(id, runs))
    if column == "result":
        assert down[0].summary["accuracy"] == max(info.summary["accuracy"] for info in runs)
        assert up[0].summary["accuracy"] == min(info.summary["accuracy"] for info in runs)
    if column == "lr":  # the run without one used its task's
        assert [used_rate(info.config) for info in up] == sorted(used_rate(info.config) or 0 for info in runs)
        assert None in {info.config["lr"] for info in runs}
        assert down[0].config["lr"] == 1.0
    assert ordered(runs, "", False) == runs


def test_seeds_are_one_curve_with_mean_and_standard_error(source: Source) -> None:
    found = matching(source.runs.values(), "p_min=0.1 swap=0.6 lr=0.1")
    curves = group(found)
    assert [curve.label for curve in curves] == [
        "FedStale β=0 (U-FedAvg)",
        "FedStale β=0.5",
        "FedStale β=1 (U-FedVARP)",
        "FedStale β=auto",
    ]
    assert all(len(curve.runs) == 2 for curve in curves)
    one = line(source, curves[1], "accuracy")
    assert one is not None
    values = np.array([[accuracy(0.1, 0.6, 0.5, seed, 0.1, t) for t in range(1, 20, 2)] for seed in (0, 1)])
    np.testing.assert_allclose(one.x, np.arange(2, 21, 2))
    np.testing.assert_allclose(one.mean, values.mean(0))
    np.testing.assert_allclose(one.error, values.std(0, ddof=1) / np.sqrt(2))
    assert not one.rough


def test_labels_name_the_method_and_what_differs(source: Source) -> None:
    both = group(matching(source.runs.values(), "beta=0.5 swap=0 seed=0 lr=0.1"))
    assert [curve.label for curve in both] == ["FedStale β=0.5 · p_min 0.1", "FedStale β=0.5 · p_min 0.5"]
    assert len({curve.style.colour for curve in both}) == 1  # that of the method
    assert len({curve.style for curve in both}) == 2
    (alone,) = group(matching(source.runs.values(), "beta=0.5 swap=0 p_min=0.5 lr=0.1"))
    assert alone.label == "FedStale β=0.5"


def test_bytes_and_seconds(source: Source) -> None:
    (full,) = group(matching(source.runs.values(), "probabilities=fedau"))
    by_bytes, by_seconds = line(source, full, "accuracy", "bytes"), line(source, full, "accuracy", "seconds")
    assert by_bytes is not None
    assert by_seconds is not None
    np.testing.assert_allclose(by_bytes.x, 20.0 * np.arange(1, 31))
    np.testing.assert_allclose(by_seconds.x, 0.5 * np.arange(1, 31))
    assert not by_bytes.rough
    sparse = group(matching(source.runs.values(), "p_min=0.5 swap=0 beta=0 lr=0.1"))[0]
    rough = line(source, sparse, "accuracy", "bytes")
    assert rough is not None
    assert rough.rough  # every second round was recorded, and stands for two
    np.testing.assert_allclose(rough.x, 150.0 * np.arange(2, 21, 2))
    assert line(source, sparse, "accuracy", "seconds") is None
    assert line(source, sparse, "no such metric") is None


def test_virtual_time_is_the_reading_of_a_clock(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        fill_timed(store)
        fill_sweep(store)
    source = Source(tmp_path)
    timed = group(matching(source.runs.values(), "rule=mifa"))
    others = group(matching(source.runs.values(), "p_min=0.5 swap=0 beta=0 lr=0.1"))
    (curve,) = timed
    found = line(source, curve, "accuracy", "virtual_seconds", window=3)
    assert found is not None
    np.testing.assert_allclose(found.x, 3780.0 * np.arange(1, 21))  # mean over the two seeds
    assert not found.rough
    panels = Panels(source)
    assert panels.axes(timed) == {"round": True, "bytes": False, "seconds": False, "virtual_seconds": True}
    assert panels.axes(others) == {"round": True, "bytes": True, "seconds": False, "virtual_seconds": False}
    drawn = panels.curve(timed, "accuracy", "virtual_seconds")
    assert drawn.figure["layout"]["xaxis"]["title"]["text"] == "virtual time (hours)"
    np.testing.assert_allclose(drawn.figure["data"][-1]["x"], 1.05 * np.arange(1, 21), rtol=1e-5)
    assert panels.curve(others, "accuracy", "virtual_seconds").instead.startswith(
        "None of the chosen runs recorded virt"
    )
    both = panels.curve([*timed, *others], "accuracy", "virtual_seconds")
    assert "1 of 2 curves is not drawn: no virtual time" in both.note
    source.close()


def test_what_an_older_version_did_not_know_is_at_its_default(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for seed in (0, 1):
            config = make_settings(beta=0.5, seed=seed).record()
            if seed:
                del config["train_loss"]
            with store.start(config) as run:
                run.record(0, {"accuracy": 0.5})
    opened = Source(tmp_path)
    assert len(group(opened.runs.values())) == 1
    opened.close()


def test_other_seeds(source: Source) -> None:
    one = matching(source.runs.values(), "p_min=0.1 swap=0.6 beta=0.5 lr=0.1 seed=0")[0]
    assert {source.runs[id].config["seed"] for id in with_seeds(source, [one.id])} == {0, 1}
    assert len(with_seeds(source, [one.id, "no such run"])) == 2
    assert first_choice(source) == [next(iter(source.runs))]


def test_the_heat_map_has_the_numbers_of_figure_2(folder: Path, source: Source) -> None:
    maps = HeatMaps(source)
    (only,) = maps.maps()
    assert only.runs == 64
    assert only.label == "digits-mlp, rule fedstale, rounds 20"
    runs = [
        make_settings(p_min=p, swap=swap, beta=beta, seed=seed, lr=lr, rounds=20)
        for p in P_MINS for swap in SWAPS for beta in BETAS for seed in (0, 1) for lr in (0.1, 1.0)
    ]  # fmt: skip
    with Store.open(folder, read_only=True) as store:
        wanted = HeatMap.of(results(store, runs))
    table = maps.table(only.key)
    assert table.p_min == wanted.p_min
    assert table.swaps == wanted.swaps
    for place in wanted.cells:
        assert table.best(place) == wanted.best(place) == (0.5 if place[1] else 0.0)
        for beta in wanted.cells[place]:
            for other in (0.0, 1.0):
                assert table.gain(place, beta, other) == wanted.gain(place, beta, other)
    shown = str(heat(table, "best").to_plotly_json())
    assert f"Δ₁ {wanted.gain((0.1, 0.6), 0.5, 1.0).short()}" in shown


def test_behind_a_cell_are_all_betas_at_their_best_rate(source: Source) -> None:
    maps = HeatMaps(source)
    key = maps.maps("grid")[0].key
    found = [source.runs[id] for id in maps.runs_behind(key, (0.1, 0.6), "grid")]
    assert len(found) == 8
    assert {info.config["lr"] for info in found} == {0.1}
    assert {(info.config["p_min"], info.config["swap"]) for info in found} == {(0.1, 0.6)}
    assert maps.runs_behind(key, (0.3, 0.3)) == []
    assert maps.maps("no such sweep") == []
    assert maps.sweeps() == ["grid"]


def test_the_newest_of_equal_runs_counts(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for value in (0.5, 0.9):
            for p in (0.5, 0.1):
                for beta in (0.0, 1.0):
                    config = make_settings(p_min=p, beta=beta).record()
                    with store.start(config, sweep="s") as run:
                        run.record(0, {"accuracy": value, "accuracy_tail": value})
    opened = Source(tmp_path)
    maps = HeatMaps(opened)
    (only,) = maps.maps()
    assert only.runs == 4
    assert maps.table(only.key).cells[0.1, 0.0][0.0].mean == 0.9
    opened.close()
