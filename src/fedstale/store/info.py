"""What a list of runs shows of each: one row of the table, never a look at its metrics."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import durable
from ..analysis import diverged_text
from .errors import damaged

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")
STATUSES = ("running", "finished", "diverged", "failed", "interrupted")

_CONTENT = "id, name, sweep, status, message, created, updated, rounds_done, rounds_total, config, summary, diverged_in"
COLUMNS = f"{_CONTENT}, hash, checksum"
CHECKSUM = f"checksum_of({_CONTENT}, hash)"
"""The checksum of a row of the table, in SQL; `Database` defines the function."""


def checksum(*values: float | str | None) -> int:
    """CRC-32 of the values of a row."""
    return durable.checksum(json.dumps(values).encode())


@dataclass(frozen=True)
class RunInfo:
    """A run as it stands.

    Attributes
    ----------
    id, name, sweep
        Its identity, the name it was given, the sweep it belongs to.
    status
        "running", "finished", "diverged", "failed" or "interrupted" (also when its process died without a word).
    message
        Why it failed, or ended before its last round.
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
    diverged_in
        The round in which it diverged, counted from 1; None for a run that did not.
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
    diverged_in: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it came to its end, if only by diverging: there is nothing to resume."""
        return self.status in ("finished", "diverged")

    @property
    def reason(self) -> str:
        """How it stands in words: the status, "diverged in round 17", why it failed or was stopped."""
        if self.diverged_in is not None:
            return diverged_text([self.diverged_in])
        return self.message or self.status


def run_folder(root: Path, id: str) -> Path:
    """Where the files of a run lie; an id that leads anywhere else is damage, or somebody's intention."""
    if not _ID.fullmatch(id):
        raise damaged(root / "store.sqlite", f"a run's id is {id!r}")
    return root / "runs" / id


def lock_file(folder: Path) -> Path:
    """The file whose lock the writer of a run holds."""
    return folder / "lock"


def read_info(root: Path, row: tuple[Any, ...]) -> RunInfo:
    """Make a RunInfo of the row with `COLUMNS`."""
    id, name, sweep, status, message, created, updated, done, total, config, summary, diverged_in, _, written = row
    if written is not None and written != checksum(*row[:-1]):  # None: written by a version without checksums
        raise damaged(root / "store.sqlite", f"the checksum of run {id} does not match")
    folder = run_folder(root, id)
    if status == "running" and not durable.held(lock_file(folder)):
        status = "interrupted"
    config, summary = json.loads(config), json.loads(summary)
    return RunInfo(
        id, name, sweep, status, message, created, updated, done, total, config, summary, folder, diverged_in
    )
