"""The metrics of every round, kept with the checkpoint, so that the `Result` of a resumed run holds them all.

One line of JSON per entry is appended and synced before the checkpoint of its round is written: a checkpoint never
has a round whose metrics are missing, and entries of rounds that it does not have are those of a process that died.
Each line ends with the checksum of what it says, so that damage to the file is not taken for a measurement.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from ..durable import FileTrouble, checksum, folder_errors, open_owner_only

Phase = Literal["train", "evaluate", "server", "initial"]
"""Training, evaluation by clients and by the server after a round, and by the server before the first round."""
_FILE = "history.jsonl"


class History:
    """What was measured in each round; rounds count from the first round that the federation ever had.

    Parameters
    ----------
    folder
        The checkpoint's folder, or None to keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE
        self._entries: dict[tuple[str, int], dict[str, Any]] = {}

    def clear(self) -> None:
        """Forget everything: a new run begins."""
        self._entries.clear()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def load(self, last_round: int) -> None:
        """Read what was kept up to this round; the last entry of a round counts, and half a line does not."""
        self._entries.clear()
        if self._file is None or not self._file.exists():
            return
        data = self._file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self._file, len(whole))
        for number, line in enumerate(whole.split(b"\n")[:-1], 1):
            try:
                *entry, _ = json.loads(line)
                if _line(entry) != line:
                    raise ValueError("its checksum is of another line")
            except (ValueError, TypeError) as error:
                raise FileTrouble(f"{self._file}: line {number} is damaged: restore it from a copy") from error
            phase, index, values = entry
            if index <= last_round:
                self._entries[phase, index] = values

    def add(self, phase: Phase, index: int, record: Mapping[str, Any] | None) -> None:
        """Keep the metrics of a round."""
        self._entries[phase, index] = values = dict(record or {})
        if self._file is None:
            return
        with (
            folder_errors(self._file.parent),
            open(open_owner_only(self._file, os.O_CREAT | os.O_APPEND | os.O_WRONLY), "ab") as file,
        ):
            file.write(_line([phase, index, values]) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def get(self, phase: Phase, index: int) -> MetricRecord | None:
        """Return the metrics of a round; None where there were none, or where it is not known."""
        values = self._entries.get((phase, index))
        return MetricRecord(values) if values else None

    def has(self, phase: Phase, index: int) -> bool:
        """Whether this was measured, be the outcome that there is nothing to say."""
        return (phase, index) in self._entries

    def fill(self, result: Result, rounds_before: int, last_round: int) -> None:
        """Enter the rounds from `rounds_before` to `last_round` into a result, which counts them from 1."""
        tables: dict[Phase, dict[int, MetricRecord]] = {
            "train": result.train_metrics_clientapp,
            "evaluate": result.evaluate_metrics_clientapp,
            "server": result.evaluate_metrics_serverapp,
        }
        if (initial := self.get("initial", rounds_before)) is not None:
            result.evaluate_metrics_serverapp[0] = initial
        for index in range(rounds_before + 1, last_round + 1):
            for phase, table in tables.items():
                if (record := self.get(phase, index)) is not None:
                    table[index - rounds_before] = record


def _line(entry: list[Any]) -> bytes:
    """Return an entry as it stands in the file: its values, and the checksum of these."""
    return json.dumps([*entry, checksum(json.dumps(entry).encode())]).encode()
