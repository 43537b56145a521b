"""Freed memory stays in the process, unless the user has told malloc what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import fedstale as fs
from fedstale import tasks, training
from fedstale.training import allocator, keep_freed_memory

# In a thread, as the engines' workers are: several large blocks at once, freed at the end, again and again.
SCRIPT = """
import resource, sys, threading
import numpy as np
from fedstale.training.allocator import keep_freed_memory
made = keep_freed_memory() if sys.argv[1] == "keep" else False
def work():
    for turn in range(25):
        if turn == 5:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [np.ones(1_500_000) for _ in range(4)]
        del blocks
    print(int(made), (resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before) // 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(how: str, **variables: str) -> tuple[bool, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC"))}
    command = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(command, env=environment | variables, check=True, capture_output=True, text=True)
    made, count = done.stdout.split()
    return made == "1", int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is meant")
def test_freed_memory_is_used_again() -> None:
    _, before = faults("default")
    made, after = faults("keep")
    if not made:
        pytest.skip("not glibc")
    assert before > 1000  # 48 MB in pages of 4 KiB would be 11,700
    assert after < 50


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_users_settings_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()


@pytest.mark.parametrize(("options", "times"), [({}, 1), ({"keep_freed_memory": False}, 0)], ids=repr)
def test_the_simulator_asks_for_it_unless_told_not_to(
    options: dict[str, Any], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr(allocator, "keep_freed_memory", lambda: asked.append(None))
    fs.simulate("digits", "fedavg", rounds=1, p_min=1.0, threads=1, **options)
    assert len(asked) == times


def test_building_an_engine_leaves_malloc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "sys", None)  # whoever calls it would fail at its first line
    made = training.make(tasks.make("digits", num_clients=4), training.LocalTraining(lr=0.1), threads=1)
    made.updates(made.initial, [0, 1], 0)


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
