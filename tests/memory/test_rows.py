"""Rows in a file: each slot has its place, whatever the blocks are, and the file is no longer than it must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.memory import rows
from fedstale.memory.precision import PRECISIONS
from fedstale.memory.rows import FileRows

SINGLE = PRECISIONS["float32"]


@pytest.mark.parametrize("largest", [1, 64, 256, 1000])
def test_a_slot_has_its_place_in_the_file_whatever_the_blocks(
    tmp_path: Path, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_FILE_BLOCK", 40)
    monkeypatch.setattr(rows, "_LARGEST_FILE_BLOCK", largest)
    store = FileRows(tmp_path / "file", 4, SINGLE, "run", "create")
    for slot in range(0, 60, 2):
        store.row(slot)[:] = slot
        store.write(slot + 1, np.full(4, slot + 1, np.float32))
    for slot in range(60):
        assert store.row(slot).tolist() == [slot] * 4
    store.flush()
    store.close()
    raw = np.frombuffer((tmp_path / "file").read_bytes()[rows._START :], np.float32).reshape(-1, 4)
    np.testing.assert_array_equal(raw[:60], np.repeat(np.arange(60), 4).reshape(60, 4))
    assert len(raw) - 60 <= max(largest // 16, 64)
    # A file that was made with other blocks, and ends in the middle of one of these.
    monkeypatch.setattr(rows, "_LARGEST_FILE_BLOCK", 1 << 20)
    again = FileRows(tmp_path / "file", 4, SINGLE, "run", "read")
    assert [again.row(slot)[0] for slot in (59, 0, 31)] == [59, 0, 31]
    with pytest.raises(InvalidInput, match="is cut short"):
        again.row(len(raw))
    again.close()


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_checkpoint_of_large_rows_has_room_for_everybody_and_one_round(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31 slots for 10 clients who all come, before: now what the slot table needs, N + |S|."""
    monkeypatch.setattr(rows, "_FILE_BLOCK", 1)
    monkeypatch.setattr(rows, "_LARGEST_FILE_BLOCK", 1)
    rule, n, d = fs.FedStale(), 10, 50
    memory = "ram" if kind == "ram" else f"disk:{tmp_path / 'rows'}"
    state = rule.init(fs.Federation(n, d, probabilities=1.0), memory=memory, model=np.zeros(d))
    chance = np.random.default_rng(0)
    for index in range(5):
        updates = chance.standard_normal((n, d)).astype(np.float32)
        rule.step(state, fs.Round(index, np.arange(n), updates))
        state.save(tmp_path / "checkpoint")
    (file,) = tmp_path.rglob("*.rows")
    assert file.stat().st_size <= rows._START + (2 * n + 2) * 4 * d
    loaded = fs.State.load(tmp_path / "checkpoint") if kind == "ram" else None
    if loaded is not None:
        np.testing.assert_array_equal(loaded.memory.rows(range(n)), updates.astype(float))
        loaded.close()
    state.close()
