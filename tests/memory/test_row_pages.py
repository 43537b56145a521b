"""Rows on disk that a checkpoint or a resume only looks at do not stay in the memory of the process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedstale.memory.precision import precision
from fedstale.memory.rows import FileRows
from fedstale.memory.store import Memory


def test_rows_that_were_only_verified_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def leave(self: FileRows, slots: Sequence[int], columns: slice) -> None:
        if (columns.start, columns.stop) == (0, 5):
            left.extend(slots)

    single = precision("float32")
    memory = Memory(3, 5, single, tmp_path / "a.rows", "run")
    memory.replace([0, 2], np.ones((2, 5), dtype=np.float32))
    monkeypatch.setattr(FileRows, "leave", leave)
    table = memory.table(tmp_path / "mirror.rows")
    assert sorted(left) == sorted(memory.slots[[0, 2]].tolist())
    memory.close()
    left.clear()
    again = Memory(3, 5, single, tmp_path / "a.rows", "run", mode="write")
    again.restore(table)
    assert set(left) == set(again.slots[[0, 2]].tolist())
    again.close()
