"""What a newcomer types in the first hour: tables in 80 columns, lists of names, completion, one name for one thing."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedstale import memory, participation, rules
from fedstale.checks import counted
from fedstale.cli import complete, names
from fedstale.cli.app import app, main
from fedstale.simulation import Settings
from fedstale.simulation.loop import is_evaluated
from fedstale.store import Store
from fedstale.tasks.names import task_names
from tests.command_line import ok

QUADRATIC = ["run", "quadratic", "--num-clients", "3", "--rounds", "12", "--lr", "0.02", "--quiet"]
COMPARE = ["compare", "quadratic", "--num-clients", "3", "--rounds", "8", "--lr", "0.02", "--quiet", "--seeds", "1"]


def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["fedstale", *arguments])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capfd.readouterr().err.strip()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    return tmp_path


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")


# Tables


@pytest.mark.usefixtures("inside", "narrow", "unrendered")
def test_tables_fit_80_columns() -> None:
    ok(*QUADRATIC, "--beta", "auto-per-client", "--name", "a name that is rather long for a table")
    Path("log.csv").write_text("round,client\n" + "\n".join(f"{t},{t % 2}" for t in range(9)))
    for words in (
        ["runs", "list"],
        ["advise", "log.csv", "--num-clients", "3"],
        ["list"],
        *(["list", kind] for kind in names.registry()),
        [*COMPARE, "--rules", "fedavg,fedstale:1,fedstale+momentum:auto-per-client@clustered:4,everybody"],
    ):
        said = re.sub(r"\x1b\[[0-9;]*m", "", ok(*words))
        widest = max((line for line in said.splitlines() if line.startswith(tuple("┏┃┡│└"))), key=len)
        assert len(widest) <= 80, (words, widest)
        assert "…" not in said.replace("1, 2, 4, …", ""), words


@pytest.mark.usefixtures("inside", "narrow", "unrendered")
def test_the_list_of_runs_keeps_id_and_rule_and_wide_shows_all() -> None:
    summary = json.loads(ok(*QUADRATIC, "--json"))
    assert summary["id"] in ok("runs", "list")
    assert "FedStale" in ok("runs", "list")
    assert "p_min" not in ok("runs", "list")
    assert "p_min" in ok("runs", "list", "--wide")
    few, all_ = ok(*COMPARE, "--rules", "fedavg"), ok(*COMPARE, "--rules", "fedavg", "--wide")
    assert "server MB" not in few
    assert "server MB" in all_


# Names


def test_lists_have_what_the_registries_have() -> None:
    found = names.registry()
    assert list(found["rules"]) == list(rules.RULES)
    assert set(found["tasks"]) == set(task_names())
    assert set(found["participation"]) == set(participation.PROCESSES)
    assert set(found["selections"]) == set(participation.SELECTIONS)
    assert set(found["estimators"]) == set(participation.ESTIMATORS)
    for name in found["memories"]:
        where = name.replace("PRECISION", "bfloat16").replace("FOLDER", "here").replace(":K", ":4")
        if where != "disk":  # of the run's own folder: the simulator knows it
            memory.parse(where)


@pytest.mark.usefixtures("unrendered")
def test_list() -> None:
    assert "Options:" in ok("list", "rules")
    assert set(json.loads(ok("list", "--json"))) == set(names.registry())
    assert {row["name"] for row in json.loads(ok("list", "tasks", "--json"))} == set(task_names())
    with pytest.raises(ValueError, match="unknown kind 'ruls': did you mean rules"):
        CliRunner().invoke(app, ["list", "ruls"], catch_exceptions=False)


@pytest.mark.usefixtures("unrendered")
def test_names_are_in_the_help_of_their_options() -> None:
    shown = " ".join(ok("run", "--help", env={"COLUMNS": "400"}).split())
    for known in (rules.RULES, participation.PROCESSES, participation.SELECTIONS, participation.ESTIMATORS):
        assert not [name for name in known if name not in shown]
    assert "clustered:K" in shown
    assert all(name in " ".join(ok("compare", "--help", env={"COLUMNS": "400"}).split()) for name in rules.RULES)


def test_the_help_of_sweep_lists_every_setting() -> None:
    shown = ok("sweep", "--help", env={"COLUMNS": "200"})
    assert not [name for name in Settings.model_fields if f"{name}:" not in shown]


@pytest.mark.parametrize(("given", "said"), [((), "with --store"), (("--store", "s"), "the same command again")])
def test_an_interrupted_comparison_says_what_is_kept(
    given: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedstale.simulation.compare_settings", interrupted)
    result = CliRunner().invoke(app, ["compare", "quadratic", *given])
    assert said in result.stderr
    assert result.exit_code == 130


def test_one_name_for_one_thing() -> None:
    """`--out`, `-o` is a file everywhere, `--folder` a folder, `--num-clients` the number of clients."""

    def options(group: Any, before: str = "") -> Any:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from options(command, f"{before}{name} ")
            else:
                yield before + name, {flag for one in command.params for flag in one.opts}

    from typer.main import get_command

    found = dict(options(get_command(app)))
    assert {name for name, flags in found.items() if "--out" in flags} == {
        "bench run",
        "bench table",
        "report",
        "sweep",
    }
    assert all(("--out" in flags) == ("-o" in flags) for flags in found.values())
    assert {name for name, flags in found.items() if "--folder" in flags} == {"compare", "reproduce"}
    assert not [name for name, flags in found.items() if flags & {"--clients", "--params"}]
    assert {name for name, flags in found.items() if "--num-clients" in flags} == {"run", "compare", "advise"}
    about_stores = {"board", "report", "compare", "run", "resume", "sweep", "reproduce", "runs list", "runs show"}
    assert about_stores | {"bench run", "runs export", "runs delete"} == {
        name for name, flags in found.items() if "--store" in flags
    }


# Stores


def test_the_store_as_argument_or_option(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(*QUADRATIC, "--store", "here")
    by_option = ok("runs", "list", "--store", "here", "--json")
    assert ok("runs", "list", "here", "--json") == by_option
    assert ok("report", "here") == ok("report", "--store", "here")
    with pytest.raises(ValueError, match="conflicts with here: give one of them"):
        CliRunner().invoke(app, ["runs", "list", "here", "--store", "there"], catch_exceptions=False)


@pytest.mark.parametrize(
    "wrong", [["run", "digts"], ["run", "quadratic", "--memory", "tape"], ["run", "digits", "--engine", "lop"]]
)
def test_a_refused_run_leaves_no_empty_store(
    wrong: list[str], inside: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(monkeypatch, capfd, *wrong)
    assert list(inside.iterdir()) == []
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    refused(monkeypatch, capfd, *wrong, "--store", "mine")
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]


def test_a_refused_run_leaves_a_store_with_runs_alone(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ok(*QUADRATIC)
    refused(monkeypatch, capfd, "run", "digts")
    assert len(json.loads(ok("runs", "list", "--json"))) == 1
    with suppress(RuntimeError), Store.open("new") as store:
        store.start({"a": 1}).finish()
        raise RuntimeError("mine")
    assert len(json.loads(ok("runs", "list", "new", "--json"))) == 1


@pytest.mark.usefixtures("inside")
def test_an_unknown_run_names_the_ids(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(ok(*QUADRATIC, "--name", "first", "--json"))
    assert f"the newest are {summary['id']} (first)" in refused(monkeypatch, capfd, "runs", "show", "zzz")
    assert f"did you mean {summary['id']} (first)?" in refused(monkeypatch, capfd, "runs", "show", "frist")


@pytest.mark.usefixtures("inside")
def test_delete_asks(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        ok(*QUADRATIC, "--name", name)
    monkeypatch.setattr(sys, "stdin", open(os.devnull, encoding="utf-8"))  # noqa: SIM115
    said = refused(monkeypatch, capfd, "runs", "delete", "one")
    assert "nothing was deleted; --yes deletes without asking" in said
    assert CliRunner().invoke(app, ["runs", "delete", "one"], input="n\n").exit_code != 0
    assert "deleted" in ok("runs", "delete", "one", input="y\n")
    ok("runs", "delete", "two", "--yes")
    assert [run["name"] for run in json.loads(ok("runs", "list", "--json"))] == ["three"]


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    "words", [["x.xlsx"], ["x"], ["x.xlsx", "--csv"], ["x.parquet", "--csv"], ["x.csv", "--parquet"]]
)
def test_export_refuses_what_the_file_would_not_be(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ok(*QUADRATIC)
    said = refused(monkeypatch, capfd, "runs", "export", *words)
    assert "runs are exported as .csv or .parquet" in said
    assert not Path(words[0]).exists()


@pytest.mark.usefixtures("inside")
def test_export_by_name_or_by_option() -> None:
    ok(*QUADRATIC)
    ok("runs", "export", "a.CSV")
    ok("runs", "export", "b.txt", "--csv")
    assert Path("a.CSV").read_text() == Path("b.txt").read_text()


# Completion


@pytest.mark.usefixtures("inside")
def test_completion_of_tasks_rules_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete.tasks("digits-") == ["digits-mlp", "digits-cnn"]
    Path("mine.toml").touch()
    assert complete.targets("m")[-1] == "mine.toml"
    assert complete.rules("fedst") == ["fedstale", "fedsteer", "fedstale-async"]
    assert complete.rules("fedstale+a") == ["fedstale+adagrad", "fedstale+adam"]
    assert complete.methods("fedavg,every") == ["fedavg,everybody"]
    summary = json.loads(ok(*QUADRATIC, "--name", "first", "--json"))

    def words(line: str) -> str:
        asked = {"_FEDSTALE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()))}
        return CliRunner().invoke(app, [], prog_name="fedstale", env=asked).output

    assert words("fedstale runs show ").split() == [summary["id"]]
    assert "mnist-cnn" in words("fedstale run ").split()
    assert "two-groups" in words("fedstale run digits --participation ").split()
    assert "fedau" in words("fedstale run digits --rule ").split()
    monkeypatch.chdir("/")
    assert "Traceback" not in words("fedstale runs show ")


# Comparisons and long runs


@pytest.mark.usefixtures("inside", "unrendered")
def test_compare_takes_the_file_of_run_and_keeps_runs() -> None:
    ok(*QUADRATIC, "--rule", "fedprox", "--save-config", "run.toml")
    said = ok("compare", "run.toml", "--seeds", "1", "--quiet", "--store", "kept")
    assert "FedProx" in said
    assert "12 rounds" in said
    assert "Tempered FedStale" in said
    assert "has the best excess loss" in said
    assert len(json.loads(ok("runs", "list", "kept", "--json"))) == 7
    ok("compare", "run.toml", "--seeds", "1", "--quiet", "--store", "kept")
    assert len(json.loads(ok("runs", "list", "kept", "--json"))) == 7
    assert ok("report", "compare", "--store", "kept").endswith("7 runs\n")


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1200, "1,200 runs")])
def test_plural_forms(number: int, text: str) -> None:
    assert counted(number, "run") == text
    assert counted(2, "batch") == "2 batches"


@pytest.mark.usefixtures("inside")
def test_one_is_not_several() -> None:
    Path("grid.toml").write_text('[settings]\ntask = "quadratic"\nrounds = 1\nlr = 0.02\n[grid]\nbeta = [0.5]\n')
    assert "1 run: 0 already in the store, 1 run now." in ok("sweep", "grid.toml", "--workers", "0", "-q")
    assert "1 run, 1 in the store, 0 to do in 0 batches (0 runs in lock-step)" in ok("sweep", "grid.toml", "--dry-run")
    assert "after 1 round:" in ok("run", "quadratic", "--rounds", "1", "-q")


def test_the_first_accuracy_comes_early() -> None:
    """In rounds 1, 2, 4, … until the usual ones begin; an interval that was asked for is kept to."""
    done = [t + 1 for t in range(1000) if is_evaluated(t, 20, 1000, early=True)]
    assert done[:7] == [1, 2, 4, 8, 16, 20, 40]
    assert [t + 1 for t in range(50) if is_evaluated(t, 20, 50)] == [20, 40, 50]


def test_a_table_through_a_pipe_is_as_wide_as_the_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedstale.terminal import make_console

    ends, screen = os.pipe(), pty.openpty()
    fcntl.ioctl(screen[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with open(ends[1], "w") as piped, open(screen[1], "w") as watched, open(tmp_path / "file", "w") as file:
        monkeypatch.setattr("sys.stderr", watched)
        monkeypatch.setattr("sys.stdout", piped)
        assert make_console().width == 80  # fedstale runs list | less
        assert make_console(wide=True).width >= 240
        monkeypatch.setattr("sys.stdout", file)
        assert make_console().width == 140  # fedstale runs list > file
    os.close(ends[0])
    os.close(screen[0])
