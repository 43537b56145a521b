"""Freed memory stays in the process, unless the user has told malloc what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedstale.training.allocator import keep_freed_memory

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


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
