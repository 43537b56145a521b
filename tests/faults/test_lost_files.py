"""A file that another program deletes, replaces, cuts or locks under a run: one line, and what can be resumed."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.durable import FileTrouble
from fedstale.simulation import Callback, Simulation
from fedstale.store import Store, StoreError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="an open file cannot be deleted on Windows")

CHILD = """
import os, shutil, sys
from pathlib import Path
from fedstale.simulation.callbacks import StoreRun

store, harm, sys.argv = Path(sys.argv[1]), sys.argv[2], ["fedstale", *sys.argv[3:]]
real = StoreRun.on_round

def on_round(self, simulation, record):
    real(self, simulation, record)
    if record.round == 14:
        rows = next(iter(store.glob("runs/*/memory/stale.rows")), None)
        exec(harm)

StoreRun.on_round = on_round
from fedstale.cli.app import main
main()
"""
RUN = ("run", "quadratic", "--num-clients", "3", "--p-min", "0.5", "--rounds", "40", "--memory", "disk", "--quiet")


def harmed(store: Path, harm: str, *more: str) -> tuple[int, str]:
    """Run a child whose files come to harm after its 15th round; its exit code and what it says."""
    words = [sys.executable, "-c", CHILD, str(store), harm, *RUN, "--store", str(store), *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def fedstale(*words: str) -> None:
    from fedstale.cli.app import app

    app(list(words), standalone_mode=False)


def columns(folder: Path) -> dict[str, bytes]:
    with Store.open(folder, read_only=True) as store:
        (info,) = store.runs()
        assert (info.status, info.rounds_done) == ("finished", 40)
        found = store.run(info.id).metrics()
    return {name: values.tobytes() for name, values in found.items() if name != "seconds"}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    fedstale(*RUN, "--store", str(folder))
    return columns(folder)


@pytest.mark.parametrize(
    "harm",
    [
        '[file.unlink() for file in store.glob("store.sqlite*")]',
        '(store / "store.sqlite").unlink()',
        '(store / "new").write_bytes(b"x"); os.replace(store / "new", store / "store.sqlite")',
    ],
    ids=["all deleted", "deleted", "replaced"],
)
def test_a_store_that_is_gone_ends_the_run_and_what_it_held_can_be_put_back(
    harm: str, truth: dict[str, bytes], tmp_path: Path
) -> None:
    code, said = harmed(tmp_path, harm)
    assert code == 2
    assert said.count("\n") == 1, said
    assert re.search(r"store \S+ was (deleted|replaced by another file) while this process was writing to it; ", said)
    assert "has a checkpoint after round 10: fedstale resume" in said
    mend = re.search(r"mv (\S+) (\S+),", said)
    assert mend is not None
    for left in tmp_path.glob("store.sqlite-*"):
        left.unlink()
    shutil.move(mend[1], mend[2])
    fedstale("resume", "--quiet", "--store", str(tmp_path))
    assert columns(tmp_path) == truth


def test_a_store_whose_folder_is_gone_ends_the_run(tmp_path: Path) -> None:
    code, said = harmed(tmp_path / "s", "shutil.rmtree(store)")
    assert code == 2
    assert said.count("\n") == 1, said
    assert "was deleted while" in said


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        ("rows.unlink()", "deleted"),
        ('shutil.copy(rows, store / "new"); os.replace(store / "new", rows)', "replaced by another file"),
        ("os.truncate(rows, 4100)", "cut short"),
    ],
)
def test_rows_that_are_gone_end_the_run_without_a_signal(harm: str, word: str, tmp_path: Path) -> None:
    code, said = harmed(tmp_path, harm)
    assert code == 2
    assert said.count("\n") == 1, said
    assert f"stale.rows was {word} while it was in use: put it back" in said
    assert "has a checkpoint after round 10: fedstale resume" in said


def test_rows_that_are_put_back_are_gone_on_with(truth: dict[str, bytes], tmp_path: Path) -> None:
    code, said = harmed(tmp_path, 'rows.rename(store / "elsewhere")')
    assert code == 2, said
    (folder,) = tmp_path.glob("runs/*/memory")
    (tmp_path / "elsewhere").rename(folder / "stale.rows")
    fedstale("resume", "--quiet", "--store", str(tmp_path))
    assert columns(tmp_path) == truth


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: os.truncate(file, 100)], ids=["deleted", "cut"])
def test_the_saved_rows_of_a_memory_in_ram_are_written_anew(harm: Callable[[Path], None], tmp_path: Path) -> None:
    rule = fs.FedStale()
    state = rule.init(fs.Federation(4, 50), model=np.zeros(50))
    for t in range(3):
        rule.step(state, fs.Round(t, [0, t + 1], np.full((2, 50), t + 1.0), probabilities=0.5))
        state.save(tmp_path / "c")
        (rows,) = (tmp_path / "c").glob("*.rows")
        if t == 1:
            harm(rows)
    loaded = fs.State.load(tmp_path / "c")
    np.testing.assert_array_equal(loaded.memory.rows(range(4)), state.memory.rows(range(4)))


def test_a_process_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = fs.FedStale()
    state = rule.init(fs.Federation(4, 3), memory="disk:rows", model=np.zeros(3))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rule.step(state, fs.Round(0, [0], np.ones((1, 3)), probabilities=0.5))
    state.save(tmp_path / "c")
    state.close()
    fs.State.load(tmp_path / "c").close()


# Locks


def hold(file: Path, seconds: float) -> threading.Thread:
    """Keep a store locked for some time, as a program that looks after databases does."""
    locked = threading.Event()

    def work() -> None:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        locked.set()
        time.sleep(seconds)
        connection.execute("ROLLBACK")
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert locked.wait(10)
    return thread


class Locked(Callback):
    """Locks the store for a while after the fifth round."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.file, self.seconds = folder / "store.sqlite", seconds
        self.thread: threading.Thread | None = None

    def on_round(self, simulation: Simulation, record: object) -> None:
        if simulation.state.round == 5:
            self.thread = hold(self.file, self.seconds)


def test_a_run_waits_for_a_locked_store_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = Locked(tmp_path, 4.0)
    with caplog.at_level(logging.WARNING, "fedstale"):
        fs.simulate("quadratic", num_clients=3, rounds=12, store=tmp_path, callbacks=[lock])
    assert lock.thread is not None
    lock.thread.join()
    assert [re.sub(r"after \d+ s", "after N s", record.message) for record in caplog.records] == [
        f"store {tmp_path}/store.sqlite is locked by another process; waiting up to 600 s",
        f"store {tmp_path}/store.sqlite is available again after N s",
    ]
    with Store.open(tmp_path, read_only=True) as store:
        assert [(info.status, info.rounds_done) for info in store.runs()] == [("finished", 12)]


def test_patience_has_an_end_and_is_spent_once(tmp_path: Path) -> None:
    lock = Locked(tmp_path, 4.0)
    began = time.monotonic()
    with pytest.raises(FileTrouble) as error, Store.open(tmp_path, patience=0.5) as store:
        fs.simulate("quadratic", num_clients=3, rounds=12, store=store, callbacks=[lock])
    assert time.monotonic() - began < 4.0  # not once for each of the things that an ending run has to write
    assert re.search(r"kept it locked too long: allow more time \(--patience, FEDSTALE_PATIENCE\)", str(error.value))
    assert re.search(r"run \S+ has no checkpoint yet: fedstale resume", error.value.__notes__[0])
    assert lock.thread is not None
    lock.thread.join()
    with Store.open(tmp_path) as store:
        assert [info.status for info in store.runs()] == ["interrupted"]
    fedstale("resume", "--quiet", "--store", str(tmp_path))
    with Store.open(tmp_path, read_only=True) as store:
        assert [(info.status, info.rounds_done) for info in store.runs()] == [("finished", 12)]


def test_patience_is_an_option_and_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path):
        pass
    thread = hold(tmp_path / "store.sqlite", 3.0)
    with pytest.raises(StoreError, match="kept it locked too long"):
        fedstale(*RUN, "--store", str(tmp_path), "--patience", "0.2")
    monkeypatch.setenv("FEDSTALE_PATIENCE", "0.1")
    with pytest.raises(StoreError, match="kept it locked too long"):
        fedstale(*RUN, "--store", str(tmp_path))
    thread.join()
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv("FEDSTALE_PATIENCE", wrong)
        with pytest.raises(fs.InvalidInput, match=r"FEDSTALE_PATIENCE = .* must be a number of seconds"):
            Store.open(tmp_path)
    with pytest.raises(fs.InvalidInput, match=r"patience = -1: must be a number of seconds"):
        Store.open(tmp_path, patience=-1)
