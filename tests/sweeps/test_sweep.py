"""Sweeps: stored as runs end, resumed, the same wherever they run, and a failed run stops nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedstale.rules import OutsideCoverage
from fedstale.simulation import Settings, make_settings
from fedstale.simulation.identity import identity
from fedstale.store import Store
from fedstale.sweeps import (
    Batch,
    Grid,
    RunOutcome,
    in_process,
    missing,
    processes,
    results,
    run_batch,
    sweep,
    write_csv,
)
from fedstale.sweeps.executors import _Outcomes

GRID = Grid(
    "small", {"rounds": 6, "evaluate_every": 2}, {"p_min": [0.5, 0.3], "beta": [0.0, 1.0, "auto"], "lr": [0.1, 1.0]}
)


def csv_of(store: Store, runs: Sequence[Settings], path: Path) -> str:
    write_csv(path, results(store, runs))
    return path.read_text()


def test_nothing_is_repeated(tmp_path: Path) -> None:
    runs = GRID.runs()
    counted: list[int] = []

    def counting(batches: Sequence[Batch]) -> _Outcomes:
        counted.append(sum(len(batch.runs) for batch in batches))
        yield from in_process(batches)

    with Store.open(tmp_path) as store:
        first = sweep(runs[:5], store, name="small", executor=counting)
        assert (first.total, first.stored, first.done, first.complete) == (5, 0, 5, True)
        second = sweep(runs, store, name="small", executor=counting)
        assert (second.stored, second.done, second.complete) == (5, 7, True)
        third = sweep(runs, store, name="small", executor=counting)
        assert (third.stored, third.done) == (12, 0)
        assert len(store.runs(sweep="small")) == 12
        assert missing(store, runs) == []
    assert counted == [5, 7, 0]


def test_only_evaluated_rounds_are_kept(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        sweep(GRID.runs()[:1], store, name="small")
        (info,) = store.runs()
        columns = store.run(info.id).metrics()
        assert columns["round"].tolist() == [1, 3, 5]
        (row,) = results(store, GRID.runs()[:1])
        assert row.accuracy == pytest.approx(columns["accuracy"][-1])
        assert row.settings.label == info.name


def test_a_failed_run_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    good = make_settings(rounds=3, beta=0.5)
    bad = make_settings(rounds=3, beta=0.5, batch_size=10_000, replacement=False)  # no client has so many samples
    with Store.open(tmp_path) as store:
        progress = sweep([bad, good], store, name="mixed")
        assert not progress.complete
        assert [(one, "samples" in reason) for one, reason in progress.failures] == [(bad, True)]
        assert [row.settings for row in results(store, [bad, good])] == [good]
        again = sweep([bad, good], store, name="mixed")
        assert (again.stored, again.done, len(again.failures)) == (1, 1, 1)
        assert len(store.runs(status="failed")) == 1


def test_one_bad_run_in_a_batch_is_the_only_one_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedstale.sweeps import batches
    from fedstale.sweeps.lockstep import Lockstep

    real = Lockstep.run

    def fails(self: Lockstep, *arguments: object) -> object:
        if any(one.lr == 0.3 for one in self.runs):
            raise RuntimeError("out of luck")
        return real(self)

    monkeypatch.setattr(Lockstep, "run", fails)
    monkeypatch.setattr(batches, "_run_alone", lambda one: RunOutcome(one.record(), reason="out of luck", failed=True))
    outcomes = run_batch([make_settings(rounds=2, lr=lr).record() for lr in (0.1, 0.3, 0.2)], True)
    assert [outcome.failed for outcome in outcomes] == [False, True, False]


def test_new_settings_do_not_orphan_old_runs() -> None:
    config = make_settings(beta=0.5).record()
    older = {name: value for name, value in config.items() if name != "threads"}
    assert identity(older) == identity(config)
    assert identity(make_settings(beta=0.4).record()) != identity(config)


@pytest.mark.slow
def test_worker_processes_give_the_same(tmp_path: Path) -> None:
    runs = [*GRID.runs(), make_settings(task="quadratic", num_clients=2, rounds=20, beta=1.0)]
    with Store.open(tmp_path / "a") as here, Store.open(tmp_path / "b") as there:
        sweep(runs, here, name="small")
        assert sweep(runs, there, name="small", executor=processes(2)).complete
        assert csv_of(here, runs, tmp_path / "a.csv") == csv_of(there, runs, tmp_path / "b.csv")


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [True, False])
def test_workers_warn_of_what_this_process_would_warn_of(
    quiet: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A benchmark tries every rule everywhere, and had a screen full of caveats from its workers."""
    runs = [make_settings(task="quadratic", num_clients=2, rounds=2, rule="fedavg")]
    with Store.open(tmp_path) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "default", OutsideCoverage)
        assert sweep(runs, store, name="small", executor=processes(1)).complete
    assert ("biased" not in capfd.readouterr().err) == quiet


def deadly(batches: Sequence[Batch]) -> _Outcomes:
    yield from processes(1)(batches)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "died"
    plugin = tmp_path / "sitecustomize.py"
    # The first worker that starts a batch dies; the next one works.
    plugin.write_text(
        "import os, threading, time\n"
        f"mark = {str(mark)!r}\n"
        "if 'FEDSTALE_TEST_DIE' in os.environ and not os.path.exists(mark):\n"
        "    def die():\n"
        "        time.sleep(1.0)\n"
        "        open(mark, 'w').close()\n"
        "        os._exit(9)\n"
        "    import sys\n"
        "    if '--multiprocessing-fork' in sys.argv:\n"
        "        threading.Thread(target=die, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FEDSTALE_TEST_DIE", "1")
    with Store.open(tmp_path / "s") as store:
        progress = sweep(GRID.runs(), store, name="small", executor=deadly)
    assert mark.exists()
    assert progress.complete


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "kill.toml"
    file.write_text(
        'name = "kill"\n[settings]\nevaluate_every = 5\n[grid]\n'
        'p_min = [0.5, 0.3, 0.2, 0.1]\nbeta = [0.0, 0.5, 1.0, "auto"]\nlr = [0.1, 0.3]\nseed = [0, 1]\n'
    )
    command = [sys.executable, "-m", "fedstale", "sweep", str(file), "--workers", "1", "-q"]
    stored = [0]
    for _ in range(5):
        arguments = [*command, "--store", str(tmp_path / "killed")]
        process = subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if (tmp_path / "killed" / "store.sqlite").exists():
                with Store.open(tmp_path / "killed") as store:
                    finished = len(store.runs(status="finished"))
                if finished > stored[-1]:
                    break
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with Store.open(tmp_path / "killed") as store:
            stored.append(len(store.runs(status="finished")))
    assert stored == sorted(stored)
    assert stored[1] < 64  # it was really interrupted
    for name in ("killed", "whole"):
        out = ["--store", str(tmp_path / name), "--out", str(tmp_path / f"{name}.csv")]
        subprocess.run([*command, *out], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "killed.csv").read_text() == (tmp_path / "whole.csv").read_text()
    with Store.open(tmp_path / "killed") as store:
        done = [identity(info.config) for info in store.runs(status="finished")]
    assert len(done) == len(set(done)) == 64
