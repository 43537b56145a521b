"""Several processes on one store: kill -9, locks, readers beside a writer."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedstale.durable import FileInUse
from fedstale.store import Store

WRITER = """
import sys
from fedstale.store import Store

folder, which = sys.argv[1:]
with Store.open(folder) as store:
    run = store.resume(which) if which else store.start({"seed": 1}, name="victim")
    round = run.info().rounds_done
    while True:
        for round in range(round, round + 7):
            run.record(round, {"loss": round / 3, "twice": 2 * round}, participants=[round % 24])
        run.flush()
        print(round, flush=True)
        round += 1
"""

STARTER = """
import sys
from fedstale.store import Store

with Store.open(sys.argv[1]) as store:
    for seed in range(5):
        with store.start({"seed": seed}) as run:
            run.record(0, {"loss": 1.0})
            run.flush()
"""


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.name != "posix", reason="needs kill -9")
def test_a_killed_writer_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    delays = np.random.default_rng(0).uniform(0.0, 0.25, size=4)
    flushed, which = -1, ""
    for delay in delays:
        process = python(WRITER, str(tmp_path), which)
        assert process.stdout is not None
        said = [process.stdout.readline()]
        time.sleep(float(delay))
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read().splitlines()
        process.wait()
        flushed = max(flushed, *(int(line) for line in said if line.strip()))
        with Store.open(tmp_path, read_only=True) as store:
            assert store.database.read("PRAGMA integrity_check", "t") == [("ok",)]
            (info,) = store.runs()
            assert info.status == "interrupted"
            assert store.runs(status="interrupted") == [info]
            assert store.runs(status="running") == []
            columns = store.run("victim").metrics()
            # A whole number of flushes, none of them torn.
            assert info.rounds_done >= flushed + 1
            assert info.rounds_done % 7 == 0
            assert columns["round"].tolist() == list(range(info.rounds_done))
            np.testing.assert_array_equal(columns["loss"], columns["round"] / 3)
            np.testing.assert_array_equal(columns["twice"], 2 * columns["round"])
            assert len(store.run("victim").participants()) == info.rounds_done
        flushed, which = info.rounds_done - 1, "victim"


def test_a_second_writer_is_kept_out_with_the_name_of_the_first(tmp_path: Path) -> None:
    process = python(WRITER, str(tmp_path), "")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with Store.open(tmp_path) as store:
            assert store.runs()[0].status == "running"
            with pytest.raises(FileInUse, match=f"is already being written by process {process.pid}$"):
                store.resume("victim")
            with pytest.raises(FileInUse, match=f"by process {process.pid}$"):
                store.delete("victim")
            assert store.runs()[0].status == "running"
            process.kill()
            process.wait()
            with store.resume("victim") as run:
                assert run.info().status == "running"
            assert store.runs()[0].status == "finished"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_processes_may_make_the_same_store_at_the_same_time(tmp_path: Path) -> None:
    processes = [python(STARTER, str(tmp_path / "new")) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    with Store.open(tmp_path / "new") as store:
        infos = store.runs()
        assert len({info.id for info in infos}) == 20
        assert all((info.status, info.rounds_done) == ("finished", 1) for info in infos)


def test_readers_see_whole_flushes_while_a_run_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.store.run._INTERVAL", float("inf"))  # no commits by the clock between the flushes
    wrong: list[str] = []
    reads = []
    stop = threading.Event()
    writer = Store.open(tmp_path)
    run = writer.start({})

    def read() -> None:
        with Store.open(tmp_path, read_only=True) as store:
            seen = store.run(run.id)
            while not stop.is_set():
                columns = seen.metrics()
                rounds = columns["round"]
                if len(rounds) % 5 or rounds.tolist() != list(range(len(rounds))):
                    wrong.append(f"rounds {rounds}")
                if len(rounds) and not np.array_equal(columns["loss"], rounds * 0.5):
                    wrong.append("loss")
                reads.append(len(rounds))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for round in range(400):
        run.record(round, {"loss": round * 0.5}, participants=[0])
        if round % 5 == 4:
            run.flush()
    stop.set()
    for thread in threads:
        thread.join()
    writer.close()
    assert wrong == []
    assert len(set(reads)) > 2  # the readers did watch it grow


def test_threads_may_share_a_store(store: Store) -> None:
    def work(thread: int) -> None:
        for k in range(8):
            with store.start({"k": k}, name=f"{thread}-{k}") as run:
                for round in range(20):
                    run.record(round, {"loss": thread + round})
                    if round % 5 == thread:
                        run.flush()
                        store.runs(limit=3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(store.runs(status="finished")) == 32
    for thread in range(4):
        for k in range(8):
            assert store.run(f"{thread}-{k}").metrics()["loss"].tolist() == [thread + round for round in range(20)]
