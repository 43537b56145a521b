"""`fedstale report` as a user meets it: what is meant by a word, where the file goes, what it needs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedstale.checks import InvalidInput
from fedstale.simulation import make_settings
from tests.command_line import ok

from .made_up import add, grid, opened


def invoke(*arguments: object) -> str:
    return ok("report", *arguments)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with the default store; returns the id of a run that is in no sweep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    with opened(tmp_path / "fedstale-runs") as store:
        grid(store, p_min=(0.5,), betas=(0.0, 1.0), sweep="first-grid")
        return add(store, make_settings(rule="fedavg", rounds=20)).id


def test_store_sweep_and_run(inside: str) -> None:
    assert (
        invoke() == f"report.html: {Path('report.html').stat().st_size / 1000:,.0f} kB, store fedstale-runs, 9 runs\n"
    )
    assert "store fedstale-runs, 9 runs" in invoke("fedstale-runs", "-o", "a.html")
    assert "sweep first-grid, 8 runs" in invoke("first-grid", "-o", "b/c.html")
    for name in (inside, inside[:-1], inside[-4:], "FedAvg"):
        assert invoke(name, "--out", "d.html").endswith("run FedAvg\n")
    os.rename("fedstale-runs", "elsewhere")
    assert "sweep first-grid" in invoke("first-grid", "--store", "elsewhere")
    os.mkdir("first-grid")  # a folder of that name is not in the way
    assert "sweep first-grid" in invoke("first-grid", "--store", "elsewhere")


def test_a_sweep_goes_before_a_run_of_its_name(inside: str) -> None:
    with opened(Path("fedstale-runs")) as store:
        add(store, make_settings(rule="fedavg", rounds=20, seed=3), sweep="FedAvg")
    assert "sweep FedAvg, 1 run\n" in invoke("FedAvg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["first-gird"], "unknown run or sweep in .*: did you mean first-grid"),
        (["zzzz"], "unknown run or sweep in .*: known: .*FedAvg, first-grid"),
        (["no/store"], "unknown run or sweep"),
        (["./empty"], "there is no store at .*empty"),
        (["--store", "empty"], "there is no store at .*empty"),
        (["fedstale-runs", "--store", "empty"], "is a store itself"),
        (["20"], "matches 9 runs"),
        (["-o", "empty"], "--out = 'empty': is a folder"),
        (["-o", "notes.txt"], "exists and is not an HTML page"),
    ],
)
def test_wrong_words(arguments: list[str], message: str, inside: str) -> None:
    Path("empty").mkdir()
    Path("notes.txt").write_text("dear to me")
    with pytest.raises(InvalidInput, match=message) as error:
        invoke(*arguments)
    assert "\n" not in str(error.value)
    assert Path("notes.txt").read_text() == "dear to me"
    assert not Path("report.html").exists()


def test_a_name_without_any_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to say only that there is no default store, of which nobody had spoken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    with pytest.raises(
        InvalidInput, match=r"^nosuch\.db is not a folder with a store, .*: there is no store at .*runs"
    ):
        invoke("nosuch.db")


def test_pages_are_replaced(inside: str) -> None:
    Path("report.html").write_text("<!DOCTYPE html><p>old")
    invoke()
    assert "first-grid" in Path("report.html").read_text(encoding="utf-8")
    Path("blank.html").touch()
    invoke("-o", "blank.html")
    os.symlink("report.html", "link.html")
    invoke("FedAvg", "-o", "link.html")
    assert Path("link.html").is_symlink()
    assert "FedAvg – fedstale report" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_is_one_line_and_leaves_the_old_page(
    number: int, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke()
    before = Path("report.html").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", full)
    reason = "the disk is full" if number == errno.ENOSPC else "not writable"
    with pytest.raises(InvalidInput, match=reason):
        invoke("first-grid")
    assert Path("report.html").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["fedstale-runs", "report.html"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_file_that_cannot_grow(inside: str) -> None:
    """A real refusal by the system in the middle of writing: the file size is limited."""
    import resource

    done = subprocess.run(
        [sys.executable, "-m", "fedstale", "report"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)),
        timeout=120,
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "File too large" in line
    assert sorted(path.name for path in Path().iterdir()) == ["fedstale-runs"]


def test_neither_torch_nor_matplotlib_is_needed(inside: str) -> None:
    code = (
        "import sys\nfor name in ('torch', 'matplotlib', 'sklearn', 'platformdirs', 'dash'): sys.modules[name] = None\n"
        "sys.argv = ['fedstale', 'report']\nfrom fedstale.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report.html: ")


def test_a_store_that_may_only_be_read(inside: str) -> None:
    with opened(Path("fedstale-runs")) as store:
        writer = store.start(make_settings(rounds=5, seed=9).record(), name="now")
        writer.record(0, {"accuracy": 0.4})
        writer.flush()
        assert "run now" in invoke("now")
        html = Path("report.html").read_text(encoding="utf-8")
        writer.finish()
    assert "running, 1 of ? rounds" in html
