"""Stores with made-up runs, quickly: for tests of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fedstale.simulation import Settings, make_settings
from fedstale.store import Run, Store

Accuracy = Callable[[Settings, float], float]
"""Of the settings and the share of the rounds that are done."""


def opened(path: Path) -> Store:
    """A store that does not wait for the disk."""
    store = Store.open(path)
    with store.database.write() as connection:
        connection.execute("SELECT 1")
    store.database.read("PRAGMA synchronous = OFF", "")
    return store


def learning(one: Settings, done: float) -> float:
    """An accuracy that depends on every setting that matters."""
    beta = one.beta if isinstance(one.beta, float) else 0.5
    rate = abs(np.log10((one.lr or 0.1) / 0.1))
    level = 0.9 - 0.05 * (beta - 0.5) ** 2 - 0.1 * one.swap - 0.02 * rate + 0.001 * (one.seed * 7 % 5)
    return float(level - 0.5 * np.exp(-8 * done))


def add(
    store: Store, one: Settings, accuracy: Accuracy = learning, *, sweep: str | None = None, points: int = 10
) -> Run:
    """A finished run as a sweep leaves it."""
    run = store.start(one.record(), name=one.label, sweep=sweep, rounds_total=one.total_rounds)
    at = np.unique(np.linspace(1, one.total_rounds, points).astype(int)) - 1
    for t in at:
        value = accuracy(one, (t + 1) / one.total_rounds)
        more = {"accuracy_group0": value + 0.01, "accuracy_group1": value - 0.01, "beta": 0.25, "participants": 12.0}
        run.record(int(t), {"accuracy": value, **more, "staleness_mean": 2.0, "staleness_max": float(t)})
    run.finish()
    return run


def grid(
    store: Store,
    *,
    p_min: Iterable[float] = (0.5, 0.1),
    swaps: Iterable[float] = (0.0, 0.6),
    betas: Iterable[float | str] = (0.0, 0.2, 0.5, 0.8, 1.0, "auto"),
    seeds: int = 2,
    rates: Iterable[float] = (0.1,),
    sweep: str = "grid",
    accuracy: Accuracy = learning,
    points: int = 10,
) -> list[Settings]:
    """Every combination."""
    runs = [
        make_settings(p_min=p, swap=swap, beta=beta, seed=seed, lr=lr)
        for p in p_min
        for swap in swaps
        for beta in betas
        for seed in range(seeds)
        for lr in rates
    ]
    for one in runs:
        add(store, one, accuracy, sweep=sweep, points=points)
    return runs
