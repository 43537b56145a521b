"""What a list of runs shows of each: one row of the table, never a look at its metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .locks import held

STATUSES = ("running", "finished", "failed", "interrupted")

COLUMNS = "id, name, sweep, status, message, created, updated, rounds_done, rounds_total, config, summary"


@dataclass(frozen=True)
class RunInfo:
    """A run as it stands.

    Attributes
    ----------
    id, name, sweep
        Its identity, the name it was given, the sweep it belongs to.
    status
        "running", "finished", "failed" or "interrupted" (also when its process died without a word).
    message
        Why it failed.
    created, updated
        Seconds since 1970, as the clock of the machine said.
    rounds_done, rounds_total
        The last recorded round + 1, and how many there will be, when known.
    config
        The full config.
    summary
        The last value of each metric.
    folder
        Where its files lie.
    """

    id: str
    name: str | None
    sweep: str | None
    status: str
    message: str
    created: float
    updated: float
    rounds_done: int
    rounds_total: int | None
    config: dict[str, Any]
    summary: dict[str, float]
    folder: Path


def run_folder(root: Path, id: str) -> Path:
    """Where the files of a run lie."""
    return root / "runs" / id


def lock_file(folder: Path) -> Path:
    """The file whose lock the writer of a run holds."""
    return folder / "lock"


def read_info(root: Path, row: tuple[Any, ...]) -> RunInfo:
    """Make a RunInfo of the row with `COLUMNS`."""
    id, name, sweep, status, message, created, updated, done, total, config, summary = row
    folder = run_folder(root, id)
    if status == "running" and not held(lock_file(folder)):
        status = "interrupted"
    config, summary = json.loads(config), json.loads(summary)
    return RunInfo(id, name, sweep, status, message, created, updated, done, total, config, summary, folder)
