"""A small store to look at: a finished sweep, a run with everything recorded, and one that is being written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedstale.board.server import Board
from fedstale.board.source import Source
from fedstale.simulation import make_settings
from fedstale.store import Run, Store

from . import browser

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

HOSTILE = "<script>window.broken=1</script><b>bold</b>"
P_MINS, SWAPS, BETAS = (0.5, 0.1), (0.0, 0.6), (0.0, 0.5, 1.0, "auto")


def accuracy(p_min: float, swap: float, beta: float | str, seed: int, lr: float, t: int) -> float:
    best = 0.5 if swap else 0.0
    chosen = 0.4 if isinstance(beta, str) else beta
    level = 0.95 - 0.1 * swap - 0.05 * (chosen - best) ** 2 - 0.02 * abs(lr - 0.1) + 0.001 * seed
    return float(level * (1 - np.exp(-(t + 1) / 4)))


def fill_sweep(store: Store, rounds: int = 20) -> None:
    """Write the runs of a sweep as `sweeps.sweep` does: evaluated rounds only, no participants."""
    for p_min in P_MINS:
        for swap in SWAPS:
            for beta in BETAS:
                for seed in (0, 1):
                    for lr in (0.1, 1.0):
                        chosen = make_settings(p_min=p_min, swap=swap, beta=beta, seed=seed, lr=lr, rounds=rounds)
                        run = store.start(chosen.record(), name=chosen.label, sweep="grid", rounds_total=rounds)
                        for t in range(1, rounds, 2):
                            value = accuracy(p_min, swap, beta, seed, lr, t)
                            number = 0.4 if isinstance(beta, str) else beta
                            metrics: dict[str, Any] = {"accuracy": value, "beta": number, "test_loss": 1 - value}
                            metrics |= {"accuracy_group0": value + 0.01, "accuracy_group1": value - 0.02}
                            metrics |= {"bytes_up": 100.0, "bytes_down": 50.0}
                            if t == rounds - 1:
                                metrics["accuracy_tail"] = value
                            run.record(t, metrics)
                        run.finish()


def fill_full(store: Store, rounds: int = 30, num_clients: int = 6) -> str:
    """Write a run as `fedstale run` does, with estimated probabilities."""
    config = make_settings(
        beta="auto", p_min=0.2, num_clients=num_clients, probabilities="fedau", rounds=rounds
    ).record()
    true = np.array([1.0, 1.0, 1.0, 0.2, 0.2, 0.2])
    with store.start(config, name=HOSTILE, rounds_total=rounds) as run:
        for t in range(rounds):
            who = [0, 1, 2] + [3 + t // 5 % 3] * (t % 5 == 0)
            metrics = {"accuracy": 0.5 + 0.4 * t / rounds, "beta": 0.6, "bytes_up": 10.0, "bytes_down": 10.0}
            run.record(
                t,
                {**metrics, "seconds": 0.5, "accuracy_group0": 0.9, "accuracy_group1": 0.7},
                participants=who,
                clients={"probability": true * 0.9, "probability_true": true},
            )
    return run.id


def fill_timed(store: Store, rounds: int = 20) -> None:
    """Write two seeds of a run with a clock, whose reading is kept with every round."""
    for seed in (0, 1):
        config = make_settings(rule="mifa", seed=seed, rounds=rounds).record()
        with store.start(config, name="with a clock", rounds_total=rounds) as run:
            for t in range(rounds):
                run.record(t, {"accuracy": t / rounds, "virtual_seconds": (3600.0 + 360.0 * seed) * (t + 1)})


def start_running(store: Store, rounds: int = 40) -> Run:
    """Begin a run that a test goes on writing."""
    run = store.start(make_settings(beta=0.3, seed=5, rounds=rounds).record(), name="live run", rounds_total=rounds)
    for t in range(5):
        record(run, t)
    return run


def record(run: Run, t: int) -> None:
    """One more round, committed."""
    metrics = {"accuracy": 0.1 + 0.02 * t, "beta": 0.3, "bytes_up": 1.0, "bytes_down": 1.0, "seconds": 0.1}
    run.record(t, metrics, participants=[0, t % 24] if t % 24 else [0])
    run.flush()


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test of the package changes."""
    folder = tmp_path_factory.mktemp("board") / "store"
    with Store.open(folder) as store:
        fill_sweep(store)
        fill_full(store)
    return folder


@pytest.fixture
def source(folder: Path) -> Iterator[Source]:
    opened = Source(folder)
    yield opened
    opened.close()


@dataclass
class Seen:
    """What the pages did."""

    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)


@dataclass
class Live:
    """A store that is written while a board shows it."""

    board: Board
    run: Run
    rounds: int = 5
    seen: Seen = field(default_factory=Seen)

    def step(self) -> int:
        """Write one more round; return how many there are."""
        record(self.run, self.rounds)
        self.rounds += 1
        return self.rounds


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setattr("fedstale.board.page._INTERVAL_MS", 500)
    folder = tmp_path / "store"
    with Store.open(folder) as store:
        fill_sweep(store)
        fill_timed(store)
        fill_full(store)
        run = start_running(store)
        board = Board(folder, port=0)
        thread = threading.Thread(target=board.serve)
        thread.start()
        yield Live(board, run)
        board.stop()
        thread.join(10)
        run.release()


@pytest.fixture
def context(tmp_path: Path) -> Iterator[BrowserContext]:
    sync_api = pytest.importorskip("playwright.sync_api")
    reason = browser.install()
    if reason:
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=browser.find(),
            args=list(browser.FLAGS),
            viewport=browser.WIDE,
            color_scheme="light",
        )
        opened.set_default_timeout(60_000)  # a busy machine is no failure
        yield opened
        opened.close()


@pytest.fixture
def page(context: BrowserContext, live: Live) -> Page:
    opened, seen = context.pages[0], live.seen
    context.on("request", lambda request: seen.requests.append(request.url))
    opened.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: seen.console.append(f"error: {error}"))
    opened.goto(live.board.url)
    opened.wait_for_selector("#curve-graph .scatterlayer .trace")
    return opened
