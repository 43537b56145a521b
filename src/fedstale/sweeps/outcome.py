"""What one run of a sweep leaves: the same whichever executor ran it, plain enough to travel between machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TAIL = 0.1
"""Runs are judged by the mean test accuracy over the evaluations in this last share of their rounds."""

Row = tuple[int, dict[str, float]]
"""A round that was evaluated, and its metrics."""


@dataclass
class Outcome:
    """One run.

    Parameters
    ----------
    config
        `Settings.record()` of the run.
    rows
        The evaluated rounds; a sweep keeps no others.
    reason
        "finished", "diverged in round t", or for a failed run the error.
    failed
        Whether it ended by an error.
    """

    config: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    reason: str = "finished"
    failed: bool = False


def tail(rows: list[Row], rounds: int, metric: str = "accuracy") -> float:
    """Mean of a metric over the evaluations in the last tenth of the rounds, as `simulation.Result.tail`; or NaN."""
    last = [values[metric] for t, values in rows if t >= int(rounds * (1 - TAIL)) and metric in values]
    return sum(last) / len(last) if last else float("nan")
