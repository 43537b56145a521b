"""`--json`: on every command that prints a table, one valid JSON document on standard output and nothing else there."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from fedstale.cli.app import app, main
from tests.command_line import ok

QUADRATIC = ("run", "quadratic", "--num-clients", "3", "--rounds", "30", "--lr", "0.02", "--quiet")
SMALL = ("--p-min", "0.5", "--swap", "0.6", "--seeds", "1", "--store", "s", "--folder", "o", "--workers", "0")
RESULTS = str(Path(__file__).resolve().parents[2] / "docs" / "results" / "bench" / "main.csv")
TABLES: dict[str, tuple[str, ...]] = {
    "compare": (
        "compare",
        "quadratic",
        "--num-clients",
        "3",
        "--lr",
        "0.02",
        "--rounds",
        "20",
        "--seeds",
        "1",
        "--rules",
        "fedavg,fedstale:0.5",
    ),
    "run": QUADRATIC,
    "resume": ("resume", "first", "--store", "s"),
    "advise": ("advise", "--p", "12x1,12x0.1"),
    "sweep": ("sweep", "grid.toml", "--store", "t", "--workers", "0", "--tune", "--widen", "0"),
    "reproduce": ("reproduce", "claims", "--draw-only", *SMALL),
    "report": ("report", "first", "--store", "s"),
    "runs list": ("runs", "list", "--store", "s"),
    "runs show": ("runs", "show", "first", "--store", "s"),
    "bench list": ("bench", "list"),
    "bench run": ("bench", "run", "--dry-run", "--settings", "bursts"),
    "bench table": ("bench", "table", RESULTS),
    "list": ("list", "rules"),
    "data list": ("data", "list"),
}
NO_TABLE = {"bench verify", "board", "runs export", "runs delete", "data fetch", "data where", "flower new"}
SHAPES: dict[str, set[str]] = {
    "compare": {"method", "excess_loss", "excess_loss error", "excess_loss seeds", "beta", "bytes", "seconds"},
    "run": {"id", "status", "rounds", "excess_loss", "beta"},
    "resume": {"id", "status", "rounds", "excess_loss"},
    "advise": {
        "num_clients",
        "p_avg",
        "p_min",
        "ratio",
        "table",
        "gain",
        "noise",
        "theory_beta",
        "storage",
        "verdict",
        "rule",
        "sentence",
        "never",
        "never_names",
    },
    "sweep": {"sweep", "runs", "stored", "ran", "failed", "results", "tuned"},
    "reproduce": {"figure", "runs", "stored", "ran", "failed", "seconds", "files", "left_out", "at_edge", "claims"},
    "report": {"file", "bytes", "kind", "name", "runs"},
    "runs list": {"id", "name", "sweep", "status", "created", "rounds_done", "config", "summary", "folder"},
    "runs show": {"id", "name", "status", "config", "summary", "metrics"},
    "bench list": {"setting", "clients", "rounds", "quick", "missing"},
    "bench run": {"settings", "cpu_seconds"},
    "bench table": {"rule", "rank"},
    "list": {"name", "is"},
    "data list": {"name", "train", "test", "cached"},
}


def commands(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def invoke(*arguments: str) -> Any:
    return strict(ok(*arguments, "--json"))


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    (tmp_path / "grid.toml").write_text('[settings]\nrounds = 2\n[grid]\nlr = [0.1]\nbeta = [0.0, "auto"]\n')
    return tmp_path


def test_every_command_is_either_here_or_prints_no_table() -> None:
    found = set(commands(typer.main.get_command(app)))
    assert found == TABLES.keys() | NO_TABLE
    assert not TABLES.keys() & NO_TABLE


@pytest.mark.parametrize("name", TABLES)
def test_valid_json_and_nothing_else(name: str, inside: Path) -> None:
    invoke(*QUADRATIC, "--name", "first", "--store", "s")
    found = invoke(*TABLES[name])
    row = found[0] if isinstance(found, list) else found
    assert row.keys() >= SHAPES[name]
    if name == "compare":
        header = (inside / "fedstale-compare" / "comparison.csv").read_text().splitlines()[0].split(",")
        assert list(row) == header
        assert row["excess_loss error"] is None  # one seed


@pytest.mark.parametrize(
    "name", [name for name in TABLES if name not in ("bench list", "data list", "list")]
)  # which take nothing
def test_errors_are_still_one_line(
    name: str, inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        "compare": ("--rules", "nothing"),
        "run": ("--rule", "nothing"),
        "advise": ("--num-clients", "3", "log.csv"),
        "sweep": ("--ray", "local"),
        "reproduce": ("--lr", "x"),
        "bench run": ("--rules", "nothing"),
        "bench table": ("missing.csv",),
    }
    arguments = [*TABLES[name], *wrong.get(name, ()), "--json"]
    monkeypatch.setattr(sys, "argv", ["fedstale", *arguments])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own: it is put back
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    (line,) = said.err.strip().splitlines()
    assert line.startswith("fedstale: ")


def test_what_json_has_no_word_for_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    from fedstale.cli.options import print_json

    print_json(
        {"a": float("nan"), 0.5: [np.inf, np.float32(1.5), (np.int64(2), None)], "p": Path("x"), "b": np.bool_(1)}
    )
    assert strict(capsys.readouterr().out) == {"a": None, "0.5": [None, 1.5, [2, None]], "p": "x", "b": True}


def test_finished_runs_and_saved_settings(inside: Path) -> None:
    first = invoke(*QUADRATIC)
    assert invoke(*QUADRATIC, "--resume") == first
    assert invoke(*QUADRATIC, "--save-config", "run.toml") == {"settings": "run.toml"}


def test_a_sweep_says_what_it_did(inside: Path) -> None:
    dry = invoke(*TABLES["sweep"], "--dry-run")
    assert dry == {"sweep": "grid", "runs": 2, "stored": 0, "to_do": 2, "batches": 1, "lockstep": 2}
    done = invoke(*TABLES["sweep"])
    assert (done["runs"], done["stored"], done["ran"], done["failed"]) == (2, 0, 2, [])
    assert [cell["beta"] for cell in done["tuned"]] == [0.0, "auto"]
    assert done["tuned"][0]["error"] is None
    assert done["tuned"][0]["at_edge"] == "both"
    assert invoke(*TABLES["sweep"])["stored"] == 2


def test_failures_of_a_sweep_are_in_the_json(inside: Path) -> None:
    Path("bad.toml").write_text("[settings]\nrounds = 2\nreplacement = false\n[grid]\nbatch_size = [16, 5000]\n")
    done = CliRunner().invoke(app, ["sweep", "bad.toml", "--store", "s", "--workers", "0", "--json"])
    assert done.exit_code == 1
    (failure,) = strict(done.stdout)["failed"]
    assert failure["settings"]["batch_size"] == 5000
    assert "batch_size = 5000" in failure["reason"]


def test_claims_as_json(inside: Path) -> None:
    rows = invoke(*TABLES["reproduce"])["claims"]
    assert len(rows) > 5
    assert all(row.keys() == {"claim", "measured", "p", "adjusted", "verdict"} for row in rows)
