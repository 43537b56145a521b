"""Updates that are computed in the memory's own spare rows: nothing but a copy is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.memory import Memory


@pytest.mark.parametrize("where", ["ram", "disk"])
@pytest.mark.parametrize("seed", range(4))
def test_lent_rows_give_the_same_bits_as_copied_ones(where: str, seed: int, tmp_path: Path) -> None:
    """Random rounds, some rows unused, some rounds refused, other replacements and checkpoints in between."""
    n, d = 12, 9_000
    rule = fs.FedStale()
    chance = np.random.default_rng(seed)
    folders = {name: f"disk:{tmp_path}/{name}" if where == "disk" else "ram" for name in ("lent", "copied")}
    states = {
        name: rule.init(fs.Federation(n, d, probabilities=0.5), memory=folder) for name, folder in folders.items()
    }
    for t in range(40):
        who = np.sort(chance.choice(n, chance.integers(0, n + 1), replace=False))
        updates = chance.standard_normal((len(who), d)).astype(np.float32)
        memory = states["lent"].memory
        assert isinstance(memory, Memory)
        room = memory.borrow_rows(len(who) + 3, np.dtype(np.float32))
        assert room is not None
        places = chance.permutation(len(room))[: len(who)]
        for place, update in zip(places, updates, strict=True):
            room[place][:] = update
        if t % 5 == 2 and len(who):  # a stranger in between, while rows are lent
            extra = chance.standard_normal((1, d)).astype(np.float32)
            for state in states.values():
                state.memory.replace([int(who[0])], extra)
        if t % 7 == 3 and len(who):
            room[places[0]][5] = np.nan
            with pytest.raises(fs.InvalidInput, match="must be finite"):
                rule.combine(states["lent"], fs.Round(t, who, [room[place] for place in places]))
            room[places[0]][5] = updates[0][5]
        found = rule.combine(states["lent"], fs.Round(t, who, [room[place] for place in places]))
        expected = rule.combine(states["copied"], fs.Round(t, who, list(updates)))
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
        slots = memory.slots[memory.slots >= 0]
        assert len(set(slots.tolist())) == len(slots)
        if t % 4 == 0:
            states["lent"].save(tmp_path / "saved")
    everybody = np.arange(n)
    np.testing.assert_array_equal(states["lent"].memory.rows(everybody), states["copied"].memory.rows(everybody))
    states["lent"].save(tmp_path / "saved")
    states["lent"].close()
    del room  # a view of a row keeps the file mapped, and locked
    again = fs.State.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.memory.rows(everybody), states["copied"].memory.rows(everybody))
    again.close()


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_running_mean_is_kept_where_its_update_was_computed(where: str, tmp_path: Path) -> None:
    """The same bits as from copies, in no more rows than the clients' and those of one round."""
    n, d = 6, 9_000
    rule, chance = fs.rules.TemperedFedStale(theta=0.5), np.random.default_rng(1)
    federation = fs.Federation(n, d, probabilities=0.5)
    lent = rule.init(federation, memory=f"disk:{tmp_path}/lent" if where == "disk" else "ram")
    copied, memory = rule.init(federation, memory="ram"), lent.memory
    assert isinstance(memory, Memory)
    for t in range(12):
        who = np.sort(chance.choice(n, 4, replace=False))
        updates = chance.standard_normal((4, d)).astype(np.float32)
        room = memory.borrow_rows(4, np.dtype(np.float32))
        assert room is not None
        for row, update in zip(room, updates, strict=True):
            row[:] = update
        found = rule.combine(lent, fs.Round(t, who, room))
        expected = rule.combine(copied, fs.Round(t, who, list(updates)))
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    np.testing.assert_array_equal(memory.rows(np.arange(n)), copied.memory.rows(np.arange(n)))
    assert memory.slots.max() < n + 4
    del room, row
    lent.close()


def test_rows_of_another_dtype_are_not_lent() -> None:
    for where, dtype in (("ram:bfloat16", "f4"), ("ram:float16", "f4"), ("ram", "f8"), ("ram:float64", "f4")):
        state = fs.FedStale().init(fs.Federation(2, 5), memory=where)
        assert isinstance(state.memory, Memory)
        assert state.memory.borrow_rows(2, np.dtype(dtype)) is None
