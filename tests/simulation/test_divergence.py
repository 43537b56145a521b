"""A run that diverged says so, with the round, wherever its result would stand; it passes for none."""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fedstale as fs
from fedstale.analysis import tuned
from fedstale.figures import comparison_picture
from fedstale.simulation import Comparison, EarlyStop, Method, Settings, compare_settings, make_settings
from fedstale.simulation.history import RoundsInMemory
from fedstale.store import Store
from fedstale.sweeps import RunOutcome, in_process, results, sweep, write_csv
from fedstale.sweeps.batches import _run_alone
from tests.command_line import ok

WILD: dict[str, Any] = {"task": "quadratic", "num_clients": 2, "p_min": 0.5, "rounds": 20, "lr": 1e30}
"""Diverges in round 3: five local steps multiply the model by 1e150."""
OPTIONS = ("--num-clients", "2", "--p-min", "0.5", "--rounds", "20", "--lr", "1e30")
SAID = "diverged in round 3"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_a_result_has_the_round_and_no_tail() -> None:
    run = fs.simulate(rule="fedavg", **WILD)
    assert (run.reason, run.diverged_in, run.rounds_planned) == ("diverged", 3, 20)
    assert len(run.metrics["excess_loss"]) == 2
    assert math.isnan(run.tail("excess_loss"))
    assert run.final("excess_loss") > 1e100  # where it stood; infinity is not passed over for the round before


@pytest.mark.parametrize("rule", ["fedavg", "spider"])
def test_the_length_of_a_huge_update_is_no_news(rule: str) -> None:
    """A sweep of rates had NumPy's warnings on its screen: that a run diverged is said where it counts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "overflow encountered in dot")
        run = fs.simulate(rule=rule, **WILD)
    assert run.diverged_in is not None


def test_a_result_a_sweep_and_a_store_have_one_tail() -> None:
    one = make_settings(**{**WILD, "lr": 0.02, "evaluate_every": 3, "rule": "fedavg"})
    run = fs.simulate(rule="fedavg", **{**WILD, "lr": 0.02, "evaluate_every": 3})
    assert (run.reason, run.diverged_in) == ("finished", None)
    outcome = _run_alone(one)
    assert run.tail("excess_loss") == outcome.tail(20, "excess_loss")
    assert run.tail("excess_loss") == pytest.approx(np.nanmean(run.metrics["excess_loss"][18:]))


def test_a_run_that_was_stopped_is_judged_by_the_rounds_it_has(tmp_path: Path) -> None:
    calm = WILD | {"lr": 0.02, "rounds": 200}
    stop = EarlyStop("excess_loss", patience=1, larger_is_better=True)
    run = fs.simulate(rule="fedavg", store=tmp_path, callbacks=[stop], **calm)
    done = len(run.metrics["excess_loss"])
    assert (run.reason, run.diverged_in) == ("stopped", None)
    assert 1 < done < 100
    assert run.tail("excess_loss") == np.mean(run.metrics["excess_loss"][int(done * 0.9) :])
    with Store.open(tmp_path) as store:
        (info,) = store.runs()
    assert (info.status, info.reason, info.diverged_in) == ("finished", f"stopped after round {done}", None)


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_outcome_has_the_round(lockstep: bool) -> None:
    from fedstale.sweeps.batches import run_batch

    one = make_settings(rule="fedavg", p_min=0.5, rounds=20, lr=1e30)
    (outcome,) = run_batch([one.record()], lockstep)
    assert (outcome.reason, outcome.failed, outcome.diverged_in) == ("diverged", False, 1)
    assert math.isnan(outcome.tail(20))


def mixed() -> Comparison:
    """Three seeds: the first method diverges in two of them, the second in none."""
    methods = [Method("fedavg"), Method("fedstale", 0.5)]
    found = compare_settings(make_settings(**{**WILD, "lr": 0.02}), methods, 3)
    for seed, round in ((0, 12), (2, 7)):
        run = found.results[methods[0]][seed]
        assert isinstance(run.rounds, RoundsInMemory)
        before = RoundsInMemory()
        for record in run.rounds:
            if record.round < round - 1:
                before.add(record)
        found.results[methods[0]][seed] = replace(run, reason="diverged", diverged_in=round, rounds=before)
    return found


def test_a_comparison_shows_no_mean_of_the_seeds_that_got_through(tmp_path: Path) -> None:
    found = mixed()
    wild = found.methods[0]
    rows = found.rows()
    assert [row["method"] for row in rows] == ["FedStale β=0.5", "FedAvg"]  # no number, no rank
    assert f"{rows[1]['excess_loss']:.3g}" == "diverged in rounds 7 to 12 (2 of 3 seeds)"
    assert found.cell(wild).estimate.diverged == (12, 7)
    calm, ended = found.records()
    assert (calm["diverged in"], ended["diverged in"]) == ([], [12, 7])
    assert ended["excess_loss seeds"] == 1
    assert all(math.isnan(ended[name]) for name in ("excess_loss", "beta", "bytes", "seconds"))
    curve = found.cell(wild).curve("excess_loss")
    assert curve.rounds.tolist() == [1, 2, 3, 4, 5, 6]
    found.to_csv(tmp_path / "c.csv")
    with open(tmp_path / "c.csv", encoding="utf-8", newline="") as file:
        line = list(csv.DictReader(file))[1]
    assert (line["method"], line["excess_loss"], line["diverged in"]) == ("FedAvg", "nan", "12 7")


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_says_it_in_whole_words(width: int) -> None:
    found = mixed()
    stream = io.StringIO()
    Console(file=stream, width=width).print(found)
    text = stream.getvalue()
    assert "…" not in text
    rows = [line.split("│") for line in text.splitlines() if "│" in line]
    assert " ".join(" ".join(row[2] for row in rows).split()).endswith("diverged in rounds 7 to 12 (2 of 3 seeds)")


def test_the_picture_says_it_and_is_drawn_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    found = mixed()
    svg = comparison_picture(found, tmp_path / "mixed")[1].read_text(encoding="utf-8")
    assert "FedAvg: diverged in rounds 7 to 12 (2 of 3 seeds)" in svg
    at_once = compare_settings(make_settings(rule="fedavg", p_min=0.5, rounds=5, lr=1e30), [Method("fedavg")], 1)
    svg = comparison_picture(at_once, tmp_path / "nothing")[1].read_text(encoding="utf-8")
    assert "FedAvg: diverged in round 1" in svg


def stored(folder: Path, **changes: object) -> tuple[list[Settings], Store]:
    runs = [make_settings(**{**WILD, "rule": "fedavg", "seed": seed, **changes}) for seed in range(2)]
    store = Store.open(folder)
    sweep(runs, store, name="wild", executor=in_process)
    return runs, store


def test_a_sweep_keeps_the_round_and_does_not_run_it_again(tmp_path: Path) -> None:
    runs, store = stored(tmp_path / "s", task="digits", num_clients=24)
    with store:
        assert [(info.status, info.diverged_in) for info in store.runs()] == [("diverged", 1)] * 2
        again = sweep(runs, store, name="wild", executor=in_process)
        assert (again.stored, again.done) == (2, 0)
        found = results(store, runs)
        write_csv(tmp_path / "r.csv", found)
    assert [one.diverged_in for one in found] == [1, 1]
    (cell,) = tuned(found)
    assert f"{cell.estimate:.1%}" == "diverged in round 1 (2 of 2 seeds)"
    with open(tmp_path / "r.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["accuracy_tail"], line["diverged_in"]) for line in lines] == [("", "1")] * 2


def test_every_command_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ok("run", "quadratic", "--rule", "fedavg", *OPTIONS, "--name", "wild", "-q", "--store", "s")
    assert f"{SAID} of 20: it has no result" in said
    for words in (("run", "quadratic", "--rule", "fedavg", *OPTIONS, "--resume", "-q"), ("resume", "wild")):
        assert SAID in ok(*words, "--store", "s")
        found = json.loads(ok(*words, "--store", "s", "--json"))
        assert (found["status"], found["reason"], found["diverged_in"]) == ("diverged", SAID, 3)
    assert SAID in ok("runs", "list", "--store", "s")
    assert SAID in ok("runs", "show", "wild", "--store", "s")
    (found,) = json.loads(ok("runs", "list", "--status", "diverged", "--store", "s", "--json"))
    assert (found["status"], found["reason"], found["diverged_in"]) == ("diverged", SAID, 3)
    assert json.loads(ok("runs", "show", "wild", "--store", "s", "--json"))["diverged_in"] == 3
    (found,) = json.loads(ok("compare", "quadratic", *OPTIONS, "--seeds", "2", "--rules", "fedavg", "--json"))
    assert (found["excess_loss"], found["diverged in"]) == (None, [3, 3])
    Path("grid.toml").write_text(
        'name = "g"\n[settings]\ntask = "digits"\nlr = 1e30\nrounds = 5\np_min = 0.5\n[grid]\nbeta = [0.5]\n'
    )
    grid = ("sweep", "grid.toml", "--store", "t", "--workers", "0", "--tune", "--widen", "0", "-q")
    assert "diverged in round 1" in ok(*grid)
    (cell,) = json.loads(ok(*grid, "--json"))["tuned"]
    assert (cell["accuracy"], cell["diverged_in"]) == (None, [1])


def test_an_outcome_that_failed_has_not_diverged() -> None:
    assert RunOutcome({}, reason="no disk", failed=True).diverged_in is None
