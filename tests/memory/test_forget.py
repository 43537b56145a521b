"""What a memory does when a client leaves: its row is gone, the sum goes on, and the last checkpoint stays whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.memory import make
from fedstale.memory.store import Memory

D = 6


def filled(where: str, rows: np.ndarray, masses: list[float]) -> Memory:
    memory = make(where, len(rows), D, name="stale", run="test")
    assert isinstance(memory, Memory)
    memory.replace(np.arange(len(rows)), rows, masses)
    return memory


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_client_in_any_slot_leaves(who: int) -> None:
    rows = np.random.default_rng(0).normal(size=(3, D))
    memory = filled("ram:float64", rows, [1.0, 2.0, 3.0])
    assert sorted(memory.slots) == [0, 1, 2]
    memory.forget([who])
    others = [client for client in range(3) if client != who]
    assert memory.seen.tolist() == others
    assert (memory.slots[who], memory.masses[who]) == (-1, 0.0)
    assert not memory.rows([who]).any()
    assert memory.total == pytest.approx(np.array([1.0, 2.0, 3.0])[others] @ rows[others], abs=1e-15)
    assert memory.total == pytest.approx(memory.exact_total(), abs=1e-15)
    memory.forget([who])  # nothing happens to who is not there
    memory.replace([who], rows[[who]] + 1, 5.0)
    assert memory.total == pytest.approx(memory.exact_total(), abs=1e-14)


def test_what_is_left_of_a_sum_is_not_rounding() -> None:
    """1e20 in the sum drowns the ones beside it: without it they are summed anew."""
    rows = np.ones((2, D))
    rows[0] = 1e20
    memory = filled("ram:float64", rows, [1.0, 1.0])
    memory.forget([0])
    assert np.array_equal(memory.total, np.ones(D))


def test_room_of_who_left_is_used_again() -> None:
    memory = filled("ram:float32", np.ones((3, D)), [1.0, 1.0, 1.0])
    used = int(memory.slots[1])
    memory.forget([1])
    memory.grow(4)
    memory.replace([3], np.full((1, D), 2.0))
    assert memory.slots[3] == used


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_checkpoint_outlives_who_left_after_it(where: str, tmp_path: Path) -> None:
    rule, rng = fs.UnbiasedFedVARP(), np.random.default_rng(1)
    memory = "ram" if where == "ram" else f"disk:{tmp_path / 'rows'}"
    state = rule.init(fs.Federation(4, D), memory=memory, model=np.zeros(D, np.float32))
    updates = rng.normal(size=(4, D)).astype(np.float32)
    rule.step(state, fs.Round(0, [0, 1, 2], updates[:3], probabilities=0.5))
    state.save(tmp_path / "saved")
    state.forget(np.array([0]))
    for t in range(1, 4):  # rows that nobody has any more would be written over now
        rule.step(state, fs.Round(t, [1, 3], updates[[1, 3]] + t, probabilities=0.5))
    state.close()
    again = fs.State.load(tmp_path / "saved")
    assert again.memory.rows([0, 1, 2]) == pytest.approx(updates[:3].astype(np.float64))
    again.close()


def test_nothing_of_a_row_is_left_on_disk(tmp_path: Path) -> None:
    rule = fs.UnbiasedFedVARP()
    state = rule.init(fs.Federation(3, D), memory=f"disk:{tmp_path / 'rows'}", model=np.zeros(D, np.float32))
    updates = np.arange(1, 3 * D + 1, dtype=np.float32).reshape(3, D) / 7
    rule.step(state, fs.Round(0, [0, 1, 2], updates, probabilities=0.5))
    state.save(tmp_path / "saved")

    def on_disk(row: np.ndarray) -> bool:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return any(row.tobytes() in path.read_bytes() for path in files)

    assert all(on_disk(row) for row in updates)
    state.forget(np.array([1]))
    state.save(tmp_path / "saved")
    for memory in state.of_rule.memories().values():
        memory.erase_spare()
    assert [on_disk(row) for row in updates] == [True, False, True]
    state.close()
