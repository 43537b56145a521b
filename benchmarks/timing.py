"""Interleaved timing: every candidate once per repetition, medians and spread over repetitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles


def interleaved(candidates: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Run every candidate once per repetition, so that a slow moment of the machine hits all; seconds each."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    for _ in range(repetitions):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def line(name: str, seconds: list[float], unit: float) -> str:
    """One row of a table: median, quartiles, ratio to `unit`."""
    low, middle, high = (1e3 * value for value in quantiles(seconds, n=4))
    return f"{name:<44} {middle:9.2f} ms  [{low:.2f}, {high:.2f}]  {median(seconds) / unit:6.2f}×"
