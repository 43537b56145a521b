"""The command line as a user meets it: what works, and one clear line with exit code 2 for what does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedstale.checks import InvalidInput
from fedstale.cli.app import app, main
from tests.command_line import ok
from tests.faults.fork_server import ForkServer

QUADRATIC = ["run", "quadratic", "--num-clients", "3", "--rounds", "30", "--lr", "0.02", "--quiet"]


def fedstale(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedstale", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=120,
    )


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    return tmp_path


def test_run_list_show_export_delete(inside: Path) -> None:
    ok(*QUADRATIC)
    assert (inside / "fedstale-runs" / "store.sqlite").exists()
    ok(*QUADRATIC, "--seed", "1", "--beta", "0.5", "--name", "second")
    listed = json.loads(ok("runs", "list", "--json"))
    assert [run["status"] for run in listed] == ["finished", "finished"]
    assert {run["config"]["seed"] for run in listed} == {0, 1}
    assert "FedStale β=0.5" in ok("runs", "list")
    shown = ok("runs", "show", "second")
    assert "excess_loss over rounds" in shown
    assert len(json.loads(ok("runs", "show", "second", "--json"))["metrics"]["excess_loss"]) == 30
    ok("runs", "export", "runs.csv")
    assert len((inside / "runs.csv").read_text().splitlines()) == 61
    ok("runs", "delete", "second", "--yes")
    assert len(json.loads(ok("runs", "list", "--json"))) == 1


def test_resume_of_a_finished_run_repeats_nothing(inside: Path) -> None:
    ok(*QUADRATIC)
    assert "is finished" in ok(*QUADRATIC, "--resume")
    assert len(json.loads(ok("runs", "list", "--json"))) == 1


def test_a_config_file(inside: Path) -> None:
    ok(*QUADRATIC, "--save-config", "run.toml", "--p-min", "0.3", "--beta", "0.25")
    assert not (inside / "fedstale-runs").exists()
    summary = json.loads(ok("run", "run.toml", "--json"))
    assert summary["rounds"] == 30
    assert summary["beta"] == 0.25


def test_store_by_environment_and_option(inside: Path, fork_server: ForkServer) -> None:
    done = fork_server.fedstale(*QUADRATIC, cwd=inside, FEDSTALE_STORE="here")
    assert done.returncode == 0, done.stderr
    assert (inside / "here" / "store.sqlite").exists()
    ok(*QUADRATIC, "--store", "there")
    assert (inside / "there" / "store.sqlite").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "digts"], "unknown task 'digts': did you mean digits"),
        (["run", "quadratic", "--rule", "fedstal"], "unknown rule 'fedstal': did you mean fedstale"),
        (["run", "quadratic", "--beta", "1.5"], "beta = 1.5: must be a finite number in [0, 1]"),
        (["run", "quadratic", "--beta", "outo"], "unknown beta 'outo': did you mean auto"),
        (["run", "quadratic", "--p-min", "0"], "p_min = 0.0: input should be greater than 0"),
        (["run", "quadratic", "--p-min", "1e-9"], "10/p_min, would be 10,000,000,000 rounds"),
        (
            ["run", "quadratic", "--participation", "markof"],
            "unknown participation process 'markof': did you mean markov",
        ),
        (["run", "quadratic", "--probabilities", "fedua"], "did you mean fedau"),
        (["run", "quadratic", "--memory", "tape"], "memory = 'tape'"),
        (["run", "quadratic", "--participation-option", "x"], "must have the form NAME=VALUE"),
        (
            ["run", "digits", "--participation", "bernoulli", "--participation-option", "p=1,x"],
            "p = '1,x': must be numbers",
        ),
        (["run", "digits-mlp", "--engine", "lop"], "unknown engine 'lop': did you mean loop"),
        (["run", "digits-mlp", "--batch-size", "4000"], "batch_size = 4000: client"),
        (["run", "none.toml"], "there is no file none.toml"),
        (["runs", "list"], "store"),
        (["resume"], "store"),
        (["advise"], "give either a participation log or --p"),
        (["advise", "--p", "1,x"], "--p = '1,x'"),
        (["advise", "--p", "1,2"], "--p = '1,2': must be probabilities"),
        (["advise", "--p", "1,nan"], "must be probabilities"),
        (["advise", "--p", "0,0"], "no client ever comes"),
        (["advise", "--p", "1,0.5", "--num-params", "0"], "num_params = 0"),
        (["advise", "none.csv"], "none.csv"),
        (["compare", "--rules", "fedavgg"], "unknown rule 'fedavgg': did you mean fedavg"),
        (["data", "fetch", "mnst"], "did you mean mnist"),
    ],
)
def test_one_clear_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    inside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In this process: to start one for each takes a second. `test_a_misspelt_option_names_the_right_one` does."""
    monkeypatch.setattr(sys, "argv", ["fedstale", *arguments])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own: it is put back
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("fedstale: ")
    assert message in line
    runs = list(inside.glob("fedstale-runs/runs/*"))
    assert not runs, "a refused run leaves nothing behind"


def test_a_misspelt_option_names_the_right_one(tmp_path: Path) -> None:
    done = fedstale("run", "quadratic", "--betta", "0.5", cwd=tmp_path)
    assert done.returncode == 2
    assert "--beta" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_data_source_is_one_line(tmp_path: Path, fork_server: ForkServer) -> None:
    done = fork_server.fedstale(
        "run",
        "mnist-mlp",
        cwd=tmp_path,
        FEDSTALE_DATA=str(tmp_path / "d"),
        FEDSTALE_DATA_SOURCES="registry",
        PATH="/nowhere",
        PIP_NO_INDEX="1",
    )
    assert done.returncode == 2, done.stderr
    assert "mnist" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_of_a_newer_version(inside: Path, fork_server: ForkServer) -> None:
    import sqlite3

    ok(*QUADRATIC)
    with sqlite3.connect(inside / "fedstale-runs" / "store.sqlite") as database:
        database.execute("UPDATE version SET format = 99")
    done = fork_server.fedstale("runs", "list", cwd=inside)
    assert done.returncode == 2
    assert "99" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_a_resumable_run(tmp_path: Path) -> None:
    long = ["run", "quadratic", "--num-clients", "3", "--rounds", "20000", "--lr", "0.02", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedstale", *long],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell lets its background jobs ignore Ctrl-C, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("fedstale-runs/runs/*/checkpoint/state.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not output  # it is for the results: with --json nothing else may stand there
    assert "resume with: fedstale resume" in errors
    assert "Traceback" not in errors
    listed = json.loads(fedstale("runs", "list", "--json", cwd=tmp_path).stdout)
    assert listed[0]["status"] == "interrupted"
    assert 0 < listed[0]["rounds_done"] < 20000


def test_compare_and_its_files(inside: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(
        ok(
            "compare",
            "quadratic",
            "--num-clients",
            "4",
            "--p-min",
            "0.1",
            "--lr",
            "0.02",
            "--seeds",
            "2",
            "--rounds",
            "40",
            "--json",
        )
    )
    assert len(rows) == 6
    assert all(row["excess_loss"] > 0 for row in rows)
    for name in ("comparison.csv", "comparison.png", "comparison.svg"):
        assert (inside / "fedstale-compare" / name).stat().st_size > 500


@pytest.mark.usefixtures("inside", "unrendered")
def test_compare_in_a_table() -> None:
    common = ["compare", "quadratic", "--num-clients", "4", "--lr", "0.02", "--rounds", "20", "--seeds", "2", "-q"]
    assert "FedStale β=0.8" in ok(*common, "--rules", "fedavg,fedstale:0.8")


def test_probabilities_of_single_clients_and_their_quantiles(inside: Path) -> None:
    common = ("run", "digits", "--rounds", 2, "--num-clients", 12, "--participation", "bernoulli")
    said = ok(*common, "--participation-option", "p=3x1,3x0.5,5x0.1,0.02", "--quantiles", 4, "--name", "four")
    assert (
        "1 (most frequent): 3 clients, p 1; 2: 3 clients, p 0.5; 3: 5 clients, p 0.1; 4 (rarest): 1 client, p 0.02"
        in said
    )
    assert "accuracy_quantile4" in ok("runs", "show", "four", "--json")


def test_the_last_line_has_the_worst_tenth(inside: Path) -> None:
    said = ok("run", "digits", "--rounds", "2", "--store", "s", "--quiet")
    assert "worst tenth of the clients 0." in said
    assert "worst tenth" not in ok("run", "quadratic", "--rounds", "2", "--store", "q", "--quiet")
    ok("report", "--store", "s", "--out", "all.html")
    assert ">worst tenth</th>" in Path("all.html").read_text(encoding="utf-8")
    ok("report", said.split()[1], "--store", "s", "--out", "one.html")
    assert "worst tenth of the clients" in Path("one.html").read_text(encoding="utf-8")


def test_advise_from_a_log(inside: Path) -> None:
    lines = ["round,client"] + [f"{t},0" for t in range(50)] + [f"{t},1" for t in range(0, 50, 10)]
    Path("log.csv").write_text("\n".join(lines))
    text = ok("advise", "log.csv")
    assert "p_avg/p_min = 5.5" in text
    assert "Cannot tell whether stale updates are worth keeping" in text
    assert "Keep stale updates" in ok("advise", "log.csv", "--correlation", "0.9")
    assert "Do not bother" in ok("advise", "log.csv", "--correlation", "0.1")
    answer = json.loads(ok("advise", "log.csv", "--num-clients", "3", "--json"))
    assert (answer["never"], answer["never_names"]) == (1, ["2"])
    assert answer["p_min"] == pytest.approx(0.1)
    always = ok("advise", "--p", "3x1")
    assert "every client always comes" in always
    assert "best β" not in always  # of no noise nothing is taken away
    assert "Coverage 75%: 1 client never took part (3)" in ok("advise", "--p", "3x0.5,0")


def test_advise_from_a_log_with_names_and_times(inside: Path) -> None:
    lines = ["device,start,end"]
    for day in range(1, 4):
        lines += [
            f"tablet,2026-11-0{day} 00:00,2026-11-0{day} 23:59",
            f"phone-a,2026-11-0{day} 22:00,2026-11-0{day} 23:30",
        ]
    Path("log.csv").write_text("\n".join([*lines, "phone-b,2026-11-01 01:00,2026-11-01 01:05"]))
    text = ok("advise", "log.csv", "--round", "30min")
    assert "tablet" in text
    assert "share online by the time of day" in text
    assert "Coverage 67%: 1 client never took part (phone-b)" in " ".join(text.split())
    for words, message in [
        (["log.csv"], "give the length of a round"),
        (["log.csv", "--round", "30min", "--correlation", "1", "--pilot", "digits"], "either --correlation or --pilot"),
        (["--p", "0.5,0.5", "--pilot", "digit"], "unknown task 'digit'"),
        (["--p", "0.5,0.5", "--round", "1h"], "are for a log"),
        (["phones", "--num-clients", "800"], "the phones are 723"),
        (["phones", "--round", "1h"], "the phones are 723"),
    ]:
        error = CliRunner().invoke(app, ["advise", *words]).exception
        assert message in str(error)


def test_version_and_help() -> None:
    assert ok("--version").startswith("fedstale ")
    assert "--p-min" in ok("run", "--help")


@pytest.mark.parametrize(
    ("words", "meant"), [(["compar"], "compare"), (["runs", "shw"], "show"), (["data", "fech"], "fetch")]
)
def test_a_misspelt_command_is_named_once(words: list[str], meant: str) -> None:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, InvalidInput)
    assert str(error).startswith(f"unknown command '{words[-1]}': did you mean {meant}")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["run"], "TARGET is a task"), (["runs", "show"], "RUN is its id"), (["sweep"], "FILE is a TOML file")],
)
def test_help_says_what_an_argument_is(words: list[str], said: str) -> None:
    """In the command's own text: the help of arguments is lost between some versions of typer and click."""
    assert said in " ".join(ok(*words, "--help").split())


def test_compare_swaps_labels_only_where_there_are_some(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default swap of 0.6 made `fedstale compare wisdm` fail, and stood in the title of a quadratic."""
    short = ("--rules", "fedavg", "--seeds", 1, "--rounds", 2, "--quiet")
    assert "swap" not in ok("compare", "quadratic", *short)
    with pytest.raises(InvalidInput, match=r"swap = 0\.5: is for data sets by name"):
        ok("compare", "quadratic", *short, "--swap", 0.5)
    swaps: list[float] = []

    def asked(settings: Any, *_: Any, **__: Any) -> Any:
        swaps.append(settings.swap)
        raise InvalidInput("enough")

    monkeypatch.setattr("fedstale.simulation.compare_settings", asked)
    for name in ("wisdm", "heart-disease", "digits"):
        with pytest.raises(InvalidInput, match="enough"):
            ok("compare", name, *short)
    assert swaps == [0.0, 0.0, 0.6]


def test_advise_says_what_it_read(inside: Path) -> None:
    """A log read as another one (an hour for a minute, days for months) could not be noticed."""
    Path("log.csv").write_text("device,time\na,2026-11-16 22:05\nb,2026-11-16 23:40\n")
    said = ok("advise", "log.csv", "--round", "30min")
    assert said.startswith("Log: 4 rounds of 30min, from 2026-11-16 22:05 to 2026-11-16 23:40, 2 rows; 2 clients.")
    Path("log.csv").write_text("round,client\n0,0\n9,0\n")
    assert ok("advise", "log.csv").startswith("Log: 10 rounds, 2 rows; 1 client.")
