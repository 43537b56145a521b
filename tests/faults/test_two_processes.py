"""Two processes on one run, one memory, one checkpoint: the second is told who has it. And clocks that go backwards."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.durable import FileInUse
from fedstale.store import Store

HOLDER = """
import sys, time
from pathlib import Path
kind, folder = sys.argv[1], Path(sys.argv[2])
if kind == "run":
    from fedstale.simulation import make_settings
    from fedstale.store import Store
    store = Store.open(folder)
    chosen = make_settings(task="quadratic", num_clients=2, rounds=5)
    run = store.start(chosen.record(), name="held", rounds_total=5)
elif kind == "memory":
    import fedstale as fs
    state = fs.FedStale().init(fs.Federation(4, 3), memory=f"disk:{folder}")
else:
    from fedstale.durable import Lock
    lock = Lock(folder / "lock", "held")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(kind: str, folder: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, kind, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


def test_a_second_process_on_one_run_is_told_who_has_it(tmp_path: Path) -> None:
    from fedstale.cli.app import app

    command = ["run", "quadratic", "--num-clients", "2", "--rounds", "5", "--quiet", "--resume"]
    with holder("run", tmp_path) as owner:
        with pytest.raises(FileInUse, match=rf"is already being written by process {owner}$"):
            app([*command, "--store", str(tmp_path)], standalone_mode=False)
        with Store.open(tmp_path) as store, pytest.raises(FileInUse, match=str(owner)):
            store.delete("held")
    app([*command, "--store", str(tmp_path)], standalone_mode=False)
    with Store.open(tmp_path) as store:
        assert [info.status for info in store.runs()] == ["finished"]  # the same run, gone on with


def test_a_second_process_on_one_memory_is_told_who_has_it(tmp_path: Path) -> None:
    with (
        holder("memory", tmp_path) as owner,
        pytest.raises(fs.InvalidInput, match=rf"already being written by process {owner}$"),
    ):
        fs.FedStale().init(fs.Federation(4, 3), memory=f"disk:{tmp_path}")
    fs.FedStale().init(fs.Federation(4, 3), memory=f"disk:{tmp_path}").close()  # no checkpoint named those rows


def test_a_second_flower_server_on_one_checkpoint_is_told_who_has_it(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.supercore.task_identity import TaskIdentity

    from fedstale.flower import FedStale
    from tests.flower.grid import MemoryGrid, first_model, record, trainers

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    grid = MemoryGrid(trainers(range(3)))
    FedStale(checkpoint=tmp_path).start(grid, record(first_model()), num_rounds=2)
    strategy = FedStale.resume(tmp_path)
    with holder("lock", tmp_path) as owner, pytest.raises(FileInUse, match=rf"{tmp_path} .* by process {owner}$"):
        strategy.start(grid, record(first_model()), num_rounds=4)
    strategy.start(grid, record(first_model()), num_rounds=4)
    assert fs.State.load(tmp_path).round == 4


def test_rows_of_a_process_that_died_before_its_first_checkpoint_are_in_nobodys_way(tmp_path: Path) -> None:
    rule, federation = fs.FedStale(), fs.Federation(4, 3)
    first = rule.init(federation, memory=f"disk:{tmp_path / 'rows'}", model=np.zeros(3))
    rule.step(first, fs.Round(0, [1], np.ones((1, 3)), probabilities=0.5))
    (tmp_path / "c").mkdir()
    first.memory.table(tmp_path / "c" / "stale.rows")  # killed while it was writing its first checkpoint
    first.close()
    second = rule.init(federation, memory=f"disk:{tmp_path / 'rows'}", model=np.zeros(3))
    assert second.memory.seen.tolist() == []
    second.save(tmp_path / "c")
    second.close()
    with pytest.raises(fs.InvalidInput, match="exists already"):
        rule.init(federation, memory=f"disk:{tmp_path / 'rows'}")
    (tmp_path / "c" / "state.safetensors").rename(tmp_path / "moved")  # a checkpoint that was moved is not forgotten
    with pytest.raises(fs.InvalidInput, match="exists already"):
        rule.init(federation, memory=f"disk:{tmp_path / 'rows'}")


def test_a_clock_that_goes_backwards_changes_no_order_and_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(2_000_000_000, -3600)  # an hour back at every look
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda *given: real(*given) if given else real(next(now)))
    with Store.open(tmp_path) as store:
        for k in range(4):
            with store.start({"seed": k}, name=f"run {k}", rounds_total=3) as run:
                for t in range(3):
                    run.record(t, {"loss": float(t)})
                    run.flush()
        infos = store.runs()
        assert [info.name for info in infos] == ["run 3", "run 2", "run 1", "run 0"]
        assert all(info.updated >= info.created for info in infos)
        resumed = store.resume("run 0")
        resumed.truncate(0)
        resumed.record(1, {"loss": 1.0})
        resumed.finish()
        assert store.runs()[-1].updated >= store.runs()[-1].created
    from fedstale.simulation import make_settings, simulate

    assert make_settings(rounds=1).rounds == 1
    result = simulate("quadratic", num_clients=2, rounds=5, store=tmp_path)
    assert (result.metrics["seconds"] >= 0).all()
    from fedstale.cli.app import app

    app(["runs", "list", "--store", str(tmp_path)], standalone_mode=False)
    app(["runs", "show", "run 0", "--store", str(tmp_path)], standalone_mode=False)


def test_durations_come_from_a_clock_that_cannot_go_backwards() -> None:
    """`time.time` serves only to say when something happened, never how long it took.

    A message of Flower says by that clock when it expires, and so `flower/late.py` asks it.
    """
    source = Path(fs.__file__).parent
    measuring = [
        path for name in ("cli", "flower", "simulation", "sweeps", "training") for path in (source / name).glob("*.py")
    ]
    assert len(measuring) > 40
    assert [path.name for path in measuring if "time.time()" in path.read_text(encoding="utf-8")] == ["late.py"]


def test_a_store_behind_its_checkpoint_is_refused_unless_told_to(tmp_path: Path) -> None:
    """An older copy of the store beside a newer checkpoint would lose rounds without a word."""
    import shutil

    from fedstale.cli.app import app
    from fedstale.simulation import Callback, Simulation, StoreRun, build, make_settings

    class Stop(Callback):
        def on_round(self, simulation: Simulation, record: object) -> None:
            simulation.stop = simulation.state.round in (4, 8)

    chosen = make_settings(task="quadratic", num_clients=2, rounds=12)
    with Store.open(tmp_path / "s") as store:
        run = store.start(chosen.record(), rounds_total=12)
        build(chosen, callbacks=[StoreRun(run, 2), Stop()], folder=run.folder).run()
    shutil.copytree(tmp_path / "s", tmp_path / "early")
    with Store.open(tmp_path / "s") as store:
        run = store.resume(run.id)
        build(chosen, callbacks=[StoreRun(run, 2), Stop()], folder=run.folder, resume=True).run()
        store.resume(run.id).release()
    for file in (tmp_path / "s").glob("store.sqlite*"):
        file.unlink()
    shutil.copyfile(tmp_path / "early" / "store.sqlite", tmp_path / "s" / "store.sqlite")
    with Store.open(tmp_path / "s") as store:
        store.resume(run.id).release()
    command = ["resume", run.id, "--quiet", "--store", str(tmp_path / "s")]
    with pytest.raises(
        fs.InvalidInput,
        match=r"written after round 8, but the store has 4 rounds: one of them is an older copy.* --from-checkpoint",
    ):
        app(command, standalone_mode=False)
    with pytest.warns(UserWarning, match="lost the metrics of rounds 5 to 8"):
        app([*command, "--from-checkpoint"], standalone_mode=False)
    truth = fs.simulate("quadratic", num_clients=2, rounds=12)
    with Store.open(tmp_path / "s") as store:
        kept = store.run(run.id)
        assert (kept.info().status, kept.info().rounds_done) == ("finished", 12)
        found = kept.metrics()
        assert found["round"].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
        assert np.array_equal(found["excess_loss"], truth.metrics["excess_loss"][found["round"]], equal_nan=True)
        assert np.array_equal(np.asarray(fs.State.load(kept.checkpoint).model), truth.model)


def test_going_on_from_a_checkpoint_needs_one(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        run = store.start({"task": "quadratic", "num_clients": 2, "rounds": 3})
        run.record(0, {"a": 1.0})
        run.finish("interrupted")
    with pytest.raises(fs.InvalidInput, match="has no checkpoint"):
        fs.resume(run.id, store=tmp_path, from_checkpoint=True)
    with Store.open(tmp_path) as store:
        assert store.run(run.id).info().rounds_done == 1
