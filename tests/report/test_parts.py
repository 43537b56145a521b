"""The parts of a report: escaping, axes, drawings, and how runs are got again."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedstale import FedAUEstimator, FedStale
from fedstale.beta import Auto
from fedstale.cli.app import app
from fedstale.participation import Markov
from fedstale.report.charts import Line, line_chart, raster_chart
from fedstale.report.markup import Markup, plain, tag, text
from fedstale.report.recipe import command, grid
from fedstale.report.scale import Scale, labels, span, ticks
from fedstale.rules import ServerAdam
from fedstale.simulation import Settings, from_toml, make_settings
from fedstale.sweeps import Grid
from fedstale.sweeps.grid import from_file
from fedstale.tasks import Quadratic

from .reading import read


@given(st.text(), st.text())
def test_text_comes_out_as_it_went_in(inside: str, attribute: str) -> None:
    made = tag("p", inside, title=attribute)
    assert re.fullmatch(r'<p title="[^"<>]*">[^<>]*</p>', made, flags=re.DOTALL)
    assert plain(tag("b", inside)) == inside


def test_markup_is_not_escaped_twice() -> None:
    assert tag("p", tag("b", "a<b"), None, ["&", (1, Markup("<i>x</i>"))]) == "<p><b>a&lt;b</b>&amp;1<i>x</i></p>"
    assert tag("td", "x", class_="n", rowspan=None, hidden=True, title=False) == '<td class="n" hidden>x</td>'
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert text("<", Markup(">")) == "&lt;>"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_inside(low: float, width: float) -> None:
    high = low + width
    if not high > low:
        return
    found = ticks(low, high)
    assert len(found) <= 7
    slack = 1e-6 * width + 2 * math.ulp(max(abs(low), abs(high)))  # far from 0 a tick is rounded, too
    assert all(low - slack <= value <= high + slack for value in found)
    assert len(ticks(0.0, width)) >= 2


def test_labels() -> None:
    assert labels([0.0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert labels([0.8, 0.9], percent=True) == ["80 %", "90 %"]
    assert labels([0.0, 1000.0, 2000.0]) == ["0", "1,000", "2,000"]
    assert labels([1e-7, 1e-5]) == ["1e-7", "1e-5"]


def test_log_axes() -> None:
    axis = Scale(*span([np.array([1e-3, 1e3, 0.0, -1.0])], log=True), 100, 0, log=True)
    assert axis.ticks() == pytest.approx([1e-3, 1e-1, 1e1, 1e3])
    assert float(axis(1.0)) == pytest.approx(50)
    assert float(axis(0.0)) == 100  # nothing is below the edge
    assert Scale(1.0, 9.0, 0, 1, log=True).ticks() == [1, 2, 5]


def test_long_lines_are_thinned_without_losing_their_level() -> None:
    x = np.arange(100_000.0)
    made = line_chart("t", [Line("a", x, np.sin(x / 1e4), np.full(len(x), 0.1))], percent=True)
    assert len(made) < 12_000
    assert 'class="band' in made


def test_a_raster_is_bounded_and_tells_shares() -> None:
    rng = np.random.default_rng(0)
    many = {t: np.flatnonzero(rng.random(3000) < 0.02) for t in range(900)}
    made = raster_chart("Who came", many, 3000)
    assert len(made) < 150_000
    root = read("<!doctype html>\n" + made)
    assert "3000 clients, 900 rounds" in (root.all("svg")[0].attributes["aria-label"] or "")
    few = raster_chart("Who came", {0: np.array([0, 1]), 1: np.array([1])}, 2)
    (marks,) = re.findall(r'<path d="([^"]*)" class="mark"', few)
    assert marks.count("M") == 2  # client 0 in round 0; client 1 in both, as one stroke


RUNS: list[dict[str, Any]] = [
    {},
    {"task": "quadratic", "num_clients": 3, "rounds": 7, "lr": 0.02},
    {"rule": "fedstale+adam", "beta": 0.5, "rule_options": {"beta1": 0.8}},
    {
        "participation": "markov",
        "participation_options": {"correlation": 0.9},
        "per_client": True,
        "replacement": False,
    },
    {"selection": "uniform", "selection_options": {"m": 3}, "memory": "ram:bfloat16", "schedule": "constant"},
    {"participation": "bernoulli", "participation_options": {"p": [1.0, 0.5]}, "num_clients": 2, "quantiles": 2},
    {"num_clients": 3, "quantiles": [1, 2, 1]},
    {"beta": {0: 0.0, 10: 1.0}, "participation": Markov([1.0, 0.5], 0.5), "probabilities": FedAUEstimator(9)},
    {"task": Quadratic.random(2, 2, 1), "rule": ServerAdam(FedStale(beta=Auto(forget=0.9)), server_lr=1.0)},
]


@pytest.mark.parametrize("given_settings", RUNS, ids=range(len(RUNS)))
def test_the_command_gives_the_same_settings(given_settings: dict[str, Any], tmp_path: Path) -> None:
    one = make_settings(**given_settings)
    words = shlex.split(command(one))
    assert words[:2] == ["fedstale", "run"]
    done = CliRunner().invoke(app, [*words[1:], "--save-config", str(tmp_path / "run.toml")])
    assert done.exit_code == 0, done.output
    assert from_toml(tmp_path / "run.toml") == one


GRIDS: list[Grid] = [
    Grid("a", {"task": "quadratic"}, {"p_min": [0.5, 0.1], "beta": [0.0, "auto"], "seed": [0, 1]}),
    Grid("b", {}, {"cases": [{"rule": "fedavg"}, {"rule": "fedstale", "beta": 0.5}], "swap": [0.0, 1.0]}),
    Grid('c "d"', {"rounds": 5}, {"participation_options": [{"correlation": 0.1}, {}], "per_client": [True, False]}),
    Grid("e", {}, {"rounds": [5], "cases": [{"lr": 0.1}, {}], "beta": [0.0, 1.0]}),
    Grid("f", {"beta": 0.5}, {}),
    Grid("g", {"participation": Markov([1.0, 0.5], 0.5)}, {"beta": [0.5, {0: 0.0, 10: 1.0}, Auto(forget=0.9)]}),
]


@pytest.mark.parametrize("one", GRIDS, ids=lambda one: one.name)
def test_the_grid_gives_the_same_runs(one: Grid, tmp_path: Path) -> None:
    runs = one.runs()
    (tmp_path / "grid.toml").write_text(grid(one.name, runs), encoding="utf-8")
    again = from_file(tmp_path / "grid.toml")
    assert again.name == one.name
    assert {repr(run) for run in again.runs()} == {repr(run) for run in runs}


def test_a_part_of_a_grid_says_so() -> None:
    runs = Grid("a", {}, {"p_min": [0.5, 0.1], "seed": [0, 1]}).runs()
    assert grid("a", runs[:3]).startswith("# 3 of the 4 combinations are in this report\n")


def test_what_was_not_written_is_not_made_up() -> None:
    own = make_settings(rule=FedStale(beta=lambda t: 0.5))
    for recipe in (command(own), grid("a", [own])):
        assert all(line.startswith("#") for line in recipe.splitlines())
        assert "<lambda> is not written down" in recipe
        assert "fedstale.resume(run, rule=…)" in recipe
    both = grid("a", [own, make_settings(beta=0.5)])
    assert "is not written down" in both
    assert "beta = 0.5" in both


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (make_settings(beta=Auto(forget=0.9)), "FedStale β=Auto(forget=0.9)"),
        (make_settings(beta={0: 0, 10: 1}), "FedStale β={0: 0, 10: 1}"),
        (make_settings(rule="fedavg"), "FedAvg"),
        (make_settings(beta=0.5, server_lr=0.5), "FedStale β=0.5, η_s 0.5"),
        (make_settings(rule="fedprox", rule_options={"mu": 0.1}), "FedProx, mu 0.1"),
        (make_settings(beta="auto", memory="lowrank:4"), "FedStale β=auto, lowrank:4"),
    ],
)
def test_names_of_methods(one: Settings, name: str) -> None:
    assert one.label == name
