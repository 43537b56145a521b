"""`fedstale sweep` and `fedstale reproduce` from the outside."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstale.checks import InvalidInput
from fedstale.cli.app import app
from fedstale.store import Store

GRID = 'name = "tiny"\n[settings]\nrounds = 4\n[grid]\nbeta = [0.0, "auto"]\nlr = [0.1, 0.3]\n'


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(GRID)
    return file


def invoke(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_sweep(grid: Path, tmp_path: Path) -> None:
    command = ("sweep", grid, "--store", tmp_path / "s", "--workers", 0)
    code, said = invoke(*command, "--dry-run")
    assert code == 0
    assert "4 runs, 0 in the store, 4 to do in 1 batch (4 runs in lock-step)" in said
    code, said = invoke(*command, "--out", tmp_path / "out.csv", "--tune", "--widen", 0)
    assert code == 0
    assert "4 runs: 0 already in the store, 4 run now" in said
    assert "FedStale β=auto" in said
    assert "best rate at the edge of its grid: p_min 0.1, swap 0, FedStale β=0 (U-FedAvg) (highest rate 0.3)" in said
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [(row["beta"], row["lr"]) for row in rows] == [
        ("0.0", "0.1"),
        ("0.0", "0.3"),
        ("auto", "0.1"),
        ("auto", "0.3"),
    ]
    assert all(0 <= float(row["accuracy_tail"]) <= 1 for row in rows)
    assert "4 already in the store, 0 run now" in invoke(*command, "-q")[1]


def test_failures_are_listed_and_make_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[settings]\nrounds = 2\nreplacement = false\n[grid]\nbatch_size = [16, 5000]\n")
    code, said = invoke("sweep", file, "--store", tmp_path / "s", "--workers", 0, "-q")
    assert code == 1
    assert "1 run failed" in said
    assert "batch_size = 5000" in said


def test_wrong_options(grid: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--workers"):
        invoke("sweep", grid, "--store", tmp_path / "s", "--workers", 2, "--ray", "local")
    with pytest.raises(InvalidInput, match="must be one of fig1"):
        invoke("reproduce", "fig6", "--store", tmp_path / "s", "--folder", tmp_path / "o")
    with pytest.raises(InvalidInput, match="separated by commas"):
        invoke("reproduce", "fig2", "--p-min", "a", "--store", tmp_path / "s", "--folder", tmp_path / "o")


@pytest.mark.usefixtures("unrendered")
def test_reproduce(tmp_path: Path) -> None:
    small = ("--p-min", "0.5", "--swap", "0.6", "--beta", "0,1,auto", "--lr", "0.3", "--widen", 0, "--seeds", 1)
    where = ("--store", tmp_path / "s", "--folder", tmp_path / "o", "--workers", 0, "-q")
    code, said = invoke("reproduce", "fig4", *small, *where)
    assert code == 0
    assert "3 runs in" in said
    assert "left out of the paper's grid: p_min 0.2" in said
    assert (tmp_path / "o" / "fig4-digits-mlp.png").exists()


def hear_ctrl_c() -> None:
    """Undo that a shell lets its background jobs ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_ends_at_once_and_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text("[grid]\np_min = [0.5, 0.002]\nbeta = [0.0, 1.0]\n")
    command = [sys.executable, "-m", "fedstale", "sweep", str(file), "--store", str(tmp_path / "s"), "--workers", "1"]
    process = subprocess.Popen([*command, "-q"], stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c)
    deadline = time.monotonic() + 120
    finished = 0
    while finished < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
        if (tmp_path / "s" / "store.sqlite").exists():
            with Store.open(tmp_path / "s") as store:
                finished = len(store.runs(status="finished"))
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again" in said
    assert "Traceback" not in said
    with Store.open(tmp_path / "s") as store:
        assert [info.status for info in store.runs()] == ["finished", "finished"]
