"""What one run of a sweep leaves: the same whichever executor ran it, plain enough to travel between machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..analysis import tail

Row = tuple[int, dict[str, float]]
"""A round that was evaluated, and its metrics."""


@dataclass
class RunOutcome:
    """One run.

    Parameters
    ----------
    config
        `Settings.record()` of the run.
    rows
        The evaluated rounds; a sweep keeps no others.
    reason
        "finished", "diverged", or for a failed run the error.
    failed
        Whether it ended by an error.
    diverged_in
        The round in which it diverged, counted from 1; None for a run that did not.
    """

    config: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    reason: str = "finished"
    failed: bool = False
    diverged_in: int | None = None

    def tail(self, rounds: int, metric: str = "accuracy") -> float:
        """What the run, planned for so many rounds, is judged by: `fedstale.analysis.tail`."""
        at = [t for t, _ in self.rows]
        values = [row.get(metric, float("nan")) for _, row in self.rows]
        done = at[-1] + 1 if at else 0
        return tail(at, values, planned=rounds, done=done, diverged_in=self.diverged_in)
