"""kill -9 at random moments: after resuming each time, the model has the bits of an uninterrupted run.

All slow. tests/faults/test_crashes.py kills at chosen places, in processes that need not be started, and whether the
last checkpoint is ever touched, tests/memory/test_last_checkpoint.py tells.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.store import Store

pytestmark = pytest.mark.slow
COMMON = ["--rounds", "{rounds}", "--p-min", "0.2", "--seed", "3", "--checkpoint-every", "5", "--quiet"]
DIGITS = ["digits-mlp", "--engine", "vmap", "--threads", "1", "--swap", "0.5"]
QUADRATIC = ["quadratic", "--num-clients", "6", "--lr", "0.02"]
METHODS = {
    "fedstale": ["--rule", "fedstale", "--beta", "auto"],
    "fedvarp": ["--rule", "fedvarp"],
    "fedstale-fedau": ["--rule", "fedstale", "--beta", "0.5", "--probabilities", "fedau"],
}


IN_TIME = {
    "late": ["--server", "synchronous", "--deadline", "0.6", "--slot-seconds", "0.3"],
    "buffered": ["--server", "buffered", "--server-option", "size=3", "--slot-seconds", "0.4"],
    "asynchronous": ["--server", "asynchronous"],
}
SPEEDS = ["--devices", "log-normal", "--device-option", "spread=1.5"]


def command(store: Path, what: list[str]) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "fedstale", "run", *what, "--resume", "--store", str(store)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def outcome(store: Path) -> tuple[str, list[tuple[str, str]]]:
    """Hash of the model, and of every metric except the seconds."""
    with Store.open(store, create=False) as opened:
        (info,) = opened.runs()
        assert info.status == "finished"
        metrics = opened.run(info.id).metrics()
        state = fs.State.load(info.folder / "checkpoint")
    sums = [(n, hashlib.sha256(np.asarray(v).tobytes()).hexdigest()) for n, v in metrics.items() if n != "seconds"]
    state.close()
    return hashlib.sha256(np.asarray(state.model).tobytes()).hexdigest(), sorted(sums)


def killed_again_and_again(store: Path, what: list[str], kills: int, seed: int) -> int:
    """Start, kill at a random moment (often just after a checkpoint), start again; then let it finish."""
    chance = random.Random(seed)
    done = 0
    for _ in range(kills):
        process = command(store, what)
        if chance.random() < 0.2:  # while it is starting
            time.sleep(chance.uniform(0.1, 2.0))
        else:
            before = newest(store)
            while newest(store) == before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(chance.uniform(0.0, 0.25))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            done += 1
        process.communicate()
    finish(command(store, what))
    return done


def newest(store: Path) -> float:
    return max((path.stat().st_mtime_ns for path in store.glob("runs/*/checkpoint/state.safetensors")), default=0.0)


def check(tmp_path: Path, task: list[str], rounds: int, memory: str, method: str, kills: int) -> None:
    common = [part.format(rounds=rounds) for part in COMMON]
    what = [*task, *common, "--memory", memory, *METHODS[method]]
    finish(command(tmp_path / "whole", what))
    done = killed_again_and_again(tmp_path / "cut", what, kills, seed=len(memory) + len(method))
    assert done >= kills * 0.7
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "cut")


@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_quadratic(memory: str, tmp_path: Path) -> None:
    check(tmp_path, QUADRATIC, 1500, memory, "fedstale-fedau", kills=3)


@pytest.mark.parametrize("server", IN_TIME)
def test_in_the_middle_of_pending_work(server: str, tmp_path: Path) -> None:
    """Updates that are on their way, late ones and who idles are part of a checkpoint."""
    common = [part.format(rounds=1500) for part in COMMON]
    what = [*QUADRATIC, *common, "--rule", "fedstale", *IN_TIME[server], *SPEEDS]
    finish(command(tmp_path / "whole", what))
    assert killed_again_and_again(tmp_path / "cut", what, 3, seed=len(server)) >= 2
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "cut")


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize("method", METHODS)
def test_digits_twenty_times(memory: str, method: str, tmp_path: Path) -> None:
    check(tmp_path, DIGITS, 3000, memory, method, kills=20)
