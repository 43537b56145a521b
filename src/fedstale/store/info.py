"""What a list of runs shows of each: one row of the table, never a look at its metrics."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import durable
from ..analysis import diverged_text
from ..checks import MOST_ROUNDS
from .errors import damaged

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
_TEXT = 100_000  # characters of a name or a message
_YEAR_10000 = 253_402_300_800.0  # in seconds since 1970
STATUSES = ("running", "finished", "diverged", "failed", "interrupted")

_CONTENT = "id, name, sweep, status, message, created, updated, rounds_done, rounds_total, config, summary, diverged_in"
COLUMNS = f"{_CONTENT}, hash, checksum"
KINDS = "tTTttffiIttIti"
"""What they hold, as `Database.read` wants to know it."""
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


def is_id(text: str) -> bool:
    """Whether this can be the id of a run."""
    return _ID.fullmatch(text) is not None


def run_folder(root: Path, id: str) -> Path:
    """Where the files of a run lie; an id that leads anywhere else is damage, or somebody's intention."""
    if not is_id(id):
        raise damaged(root / "store.sqlite", f"a run's id is {id!r}")
    return root / "runs" / id


def lock_file(folder: Path) -> Path:
    """The file whose lock the writer of a run holds."""
    return folder / "lock"


def read_info(root: Path, row: tuple[Any, ...]) -> RunInfo:
    """Make a RunInfo of the row with `COLUMNS`, of the types `KINDS`; one that makes no sense is refused."""
    id, name, sweep, status, message, created, updated, done, total, config, summary, diverged_in, _, written = row
    file = root / "store.sqlite"
    folder = run_folder(root, id)
    if written != checksum(*row[:-1]):
        raise damaged(file, f"the checksum of run {id} does not match")
    for what, text in (("name", name), ("sweep", sweep), ("message", message)):
        if len(text or "") > _TEXT:
            raise damaged(file, f"the {what} of run {id} is too long")
    counts = (done, total or 0, diverged_in or 0)
    if status not in STATUSES or not all(0 <= count <= MOST_ROUNDS for count in counts):
        raise damaged(file, f"the status of run {id} is invalid")
    if not (0 <= created < _YEAR_10000 and 0 <= updated < _YEAR_10000):
        raise damaged(file, f"the times of run {id} are invalid")
    if (status == "diverged") != (diverged_in is not None):
        raise damaged(file, f"the end of run {id} is invalid")
    if status == "running" and not durable.is_locked(lock_file(folder)):
        status = "interrupted"
    try:
        config, summary = json.loads(config), json.loads(summary)
    except (ValueError, RecursionError):  # also a number of a million digits, or lists in lists without an end
        config = summary = None
    numbers = summary.values() if isinstance(summary, dict) else [None]
    if not isinstance(config, dict) or not all(type(value) in (int, float) for value in numbers):
        raise damaged(file, f"the settings or last metrics of run {id} cannot be read")
    return RunInfo(
        id, name, sweep, status, message, created, updated, done, total, config, summary, folder, diverged_in
    )
