"""For all tests: one thread where none are asked for, how many examples Hypothesis draws, and what saves time.

Behaviour is asserted, never seconds: no deadlines. The default run draws a few examples; `make test-all` draws many
(`--hypothesis-profile=many`).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .faults.fork_server import ForkServer

# Before torch is loaded: threads that wait for each other in a busy loop are most of the processor time of small models
# where several processes share the cores. An engine that is told its number of threads has that many all the same.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Thousands of tests and all modules stay in memory: looking through them for garbage every 700 objects takes a tenth of
# the processor time. A test that watches memory asks for `usual_garbage_collection`.
_USUAL = gc.get_threshold()
gc.set_threshold(100_000, 50, 100)

_TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", _TIMELESS, max_examples=40)
settings.register_profile("many", _TIMELESS, max_examples=400)
settings.load_profile("few")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One warm process, which forks commands and what is to be killed: to start Python and torch takes longer."""
    pytest.importorskip("torch")
    pytest.importorskip("flwr")
    with ForkServer() as made:
        yield made


@pytest.fixture
def usual_garbage_collection() -> Iterator[None]:
    """Collect garbage as often as Python does by itself."""
    rare = gc.get_threshold()
    gc.set_threshold(*_USUAL)
    yield
    gc.set_threshold(*rare)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are composed, but not drawn, for tests that ask for other things: most of their time is text layout."""
    pytest.importorskip("matplotlib")

    def savefig(self: object, file: Path | str, *, format: str = "", **_: Any) -> None:
        kind = format or Path(file).suffix[1:]
        Path(file).write_bytes({"png": b"\x89PNG", "svg": b"<svg>"}[kind].ljust(600))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
