"""Updates that are on their way: computed when the work began, and not seen by the server before the reply.

What a device will send follows from the model it was given, so it trains at once and its update waits here: one row for
each device at work. They are part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..federation import Ints


@dataclass(frozen=True, eq=False)
class _PendingUpdate:
    """An update on its way."""

    device: int
    version: int
    """the server step whose model it was computed from"""
    row: NDArray[Any]
    """Δ_i, or the client's model where the rule's clients answer with that, shape (d,)"""
    steps: float
    """K_i"""


@dataclass
class PendingUpdates:
    """Updates by device, in the order in which they were put in."""

    num_params: int
    dtype: np.dtype[Any]
    rows: dict[int, _PendingUpdate] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, version: int, devices: Ints, rows: NDArray[Any], steps: Sequence[float]) -> None:
        """Keep the updates of devices that began to work; the rows are copied."""
        for device, row, count in zip(devices.tolist(), rows, steps, strict=True):
            self.rows[device] = _PendingUpdate(device, version, np.array(row, dtype=self.dtype), float(count))

    def add(self, update: _PendingUpdate) -> None:
        """Keep an update."""
        self.rows[update.device] = update

    def take(self, device: int) -> _PendingUpdate:
        """Hand an update out."""
        return self.rows.pop(device)

    def take_all(self) -> list[_PendingUpdate]:
        """Hand all of them out."""
        found = list(self.rows.values())
        self.rows = {}
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything, to be saved."""
        held = list(self.rows.values())
        rows = np.stack([one.row for one in held]) if held else np.empty((0, self.num_params), dtype=self.dtype)
        return {
            "devices": np.array([one.device for one in held], dtype=np.int64),
            "versions": np.array([one.version for one in held], dtype=np.int64),
            "steps": np.array([one.steps for one in held]),
            "rows": rows,
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what was saved."""
        columns = (arrays[name].tolist() for name in ("devices", "versions", "steps"))
        self.rows = {
            device: _PendingUpdate(device, version, np.array(row), steps)
            for device, version, steps, row in zip(*columns, arrays["rows"], strict=True)
        }
