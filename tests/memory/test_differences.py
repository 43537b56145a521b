"""Updates that nobody has computed yet: the same bits as from rows, and the memory is written over where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale.difference import Difference
from fedstale.memory import Memory, kernel

N, D = 9, 20_000
EDGES = np.array([0, 3, 3, 9_000, 9_001, 17_500, D])
"""Where pieces begin: one is empty, and none begins where a block does."""


def difference(start: NDArray[Any], end: NDArray[Any], scale: float = 1.0) -> Difference:
    return Difference(start, [end[low:high].copy() for low, high in pairwise(EDGES)], EDGES, scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_it_reads_like_the_row_that_it_stands_for(dtype: str, scale: float) -> None:
    chance = np.random.default_rng(0)
    start, end = chance.standard_normal((2, D)).astype(dtype)
    row, whole = difference(start, end, scale), (start - end) * np.dtype(dtype).type(scale)
    assert (row.shape, row.dtype, len(row)) == (whole.shape, whole.dtype, D)
    np.testing.assert_array_equal(np.asarray(row), whole)
    for columns in (slice(0, D), slice(2, 4), slice(5, 5), slice(8_990, 17_600), slice(17_500, D + 9), slice(9, 3)):
        np.testing.assert_array_equal(row[columns], whole[columns])
    places = np.array([0, 2, 3, 9_000, 8_999, 9_001, D - 1, 17_499, 3])
    np.testing.assert_array_equal(row.take(places), whole[places])


@pytest.mark.parametrize("worth", [1, 1 << 62], ids=["compiled", "numpy"])
@pytest.mark.parametrize("where", ["ram", "ram:float64", "ram:bfloat16", "disk"])
@pytest.mark.parametrize(
    "rule",
    [
        fs.FedStale(),
        fs.FedStale(beta="auto-per-client"),
        fs.FedVARP(),
        fs.rules.MIFA(),
        fs.TemperedFedStale(),
        fs.TemperedFedStale(theta=0.5, beta="auto"),
        fs.rules.ServerAdam(fs.FedStale()),
        fs.rules.Guarded(fs.FedStale(), max_weight=3.0),
    ],
    ids=lambda rule: rule.name,
)
def test_they_give_the_bits_of_rows(
    rule: fs.Rule, where: str, worth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random rounds with newcomers, late updates, forgotten clients and checkpoints in between."""
    monkeypatch.setattr(kernel, "_WORTH_COMPILING", worth)
    assert rule.reads_once
    chance, federation = np.random.default_rng(1), fs.Federation(N, D, probabilities=0.5)
    places = {name: f"disk:{tmp_path}/{name}" if where == "disk" else where for name in ("read", "rows")}
    states = {name: rule.init(federation, memory=at, model=np.zeros(D, "f4")) for name, at in places.items()}

    def given(who: NDArray[Any]) -> dict[str, Sequence[Any]]:
        model = np.array(states["read"].model)
        ends = [model + chance.standard_normal(D).astype("f4") for _ in who]
        scales = chance.choice([1.0, 0.25], len(who))
        read = [difference(model, end, scale) for end, scale in zip(ends, scales, strict=True)]
        return {"read": read, "rows": [np.asarray(one) for one in read]}

    for t in range(14):
        who = np.sort(chance.choice(N, chance.integers(0, 6), replace=False))
        for name, updates in given(who).items():
            rule.advance(states[name], fs.Round(t, who, updates))
        late = chance.choice(N, 1)
        for name, updates in given(late).items():
            rule.remember_late(states[name], fs.Round(t + 1, late, updates, probabilities=0.5))
            if t % 5 == 4:
                states[name].forget(late)
            if t % 4 == 0:
                states[name].save(tmp_path / f"{name}-saved")
        assert states["read"].model.tobytes() == states["rows"].model.tobytes()  # type: ignore[union-attr]
    everybody = np.arange(N)
    rows = {name: state.memory.rows(everybody) for name, state in states.items()}
    np.testing.assert_array_equal(rows["read"], rows["rows"])
    for name, state in states.items():
        state.save(tmp_path / f"{name}-saved")
        state.close()
        again = fs.State.load(tmp_path / f"{name}-saved")
        np.testing.assert_array_equal(again.memory.rows(everybody), rows["rows"])
        again.close()


def test_rows_in_ram_take_no_more_room_than_one_for_each_client() -> None:
    rule, start = fs.FedStale(), np.zeros(D, "f4")
    state = rule.init(fs.Federation(N, D, probabilities=0.5), model=start)
    for t in range(5):
        rule.advance(state, fs.Round(t, np.arange(N), [difference(start, start + i) for i in range(N)]))
    assert state.memory.slots.tolist() == list(range(N))


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_memory_that_was_left_in_the_middle_of_a_round_is_not_used_again(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while rows are replaced: nobody goes on with half of them, and the last checkpoint is whole."""
    rule, start = fs.FedStale(), np.zeros(D, "f4")
    state = rule.init(
        fs.Federation(2, D, probabilities=0.5),
        memory=f"disk:{tmp_path}/rows" if where == "disk" else "ram",
        model=start,
    )
    rule.advance(state, fs.Round(0, [0, 1], [difference(start, start + 1), difference(start, start + 2)]))
    state.save(tmp_path / "saved")
    saved = state.memory.rows([0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_dots", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rule.advance(state, fs.Round(1, [0], [difference(start, start + 5)]))
    for use in (
        lambda: state.memory.rows([0]),
        lambda: state.memory.exact_total(),
        lambda: state.save(tmp_path / "saved"),
        lambda: rule.advance(state, fs.Round(1, [1], [np.ones(D, "f4")])),
    ):
        with pytest.raises(fs.InvalidInput, match="in the middle of a round: resume from the last checkpoint"):
            use()
    state.close()
    again = fs.State.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.memory.rows([0, 1]), saved)
    again.close()


@pytest.mark.parametrize("worth", [1, 1 << 62], ids=["compiled", "numpy"])
def test_squares(worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_WORTH_COMPILING", worth)
    chance = np.random.default_rng(2)
    start = chance.standard_normal(D).astype("f4")
    rows = [difference(start, chance.standard_normal(D).astype("f4")) for _ in range(3)]
    rows[1] = replace(rows[1], scale=0.5)
    wanted = [float(np.square(np.asarray(row, dtype="f8")).sum()) for row in rows]
    np.testing.assert_allclose(kernel.squares_of_differences(rows), wanted, rtol=1e-5)
    bad = difference(start, np.where(np.arange(D) == 9_000, np.nan, start).astype("f4"))
    assert np.isnan(kernel.squares_of_differences([bad, rows[0]])).tolist() == [True, False]
    assert kernel.squares_of_differences([]).shape == (0,)


@pytest.mark.parametrize("rule", [fs.FedStale(), fs.FedStale(beta="auto-per-client"), fs.TemperedFedStale()])
def test_no_update_is_made_whole(rule: fs.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a large model is gigabytes: also what β learns from newcomers is read piece by piece."""
    monkeypatch.setattr(kernel, "_PIECE", 1 << 10)
    read = Difference.__getitem__
    made: list[int] = []

    def noted(row: Difference, columns: slice) -> NDArray[Any]:
        found = read(row, columns)
        made.append(len(found))
        return found

    monkeypatch.setattr(Difference, "__getitem__", noted)
    monkeypatch.delattr(Difference, "__array__")
    monkeypatch.setattr(kernel, "COLUMNS", 1 << 10)
    state = rule.init(fs.Federation(N, D, probabilities=0.5), model=np.zeros(D, "f4"))
    for t in range(3):
        ends = np.random.default_rng(t).standard_normal((2, D)).astype("f4")
        rows = [difference(np.array(state.model), end) for end in ends]
        rule.advance(state, fs.Round(t, [t, t + 1], rows))
    assert made
    assert max(made) <= 1 << 10


def test_only_memories_of_rows_are_given_differences() -> None:
    """What a rule or a memory cannot read in one pass is given rows: see Aggregator."""
    assert not fs.rules.Guarded(fs.FedStale(), clip_norm=1.0).reads_once
    assert not fs.rules.Robust(fs.FedStale(), method="median").reads_once
    assert not fs.UnbiasedFedAvg().reads_once
    assert isinstance(fs.FedStale().init(fs.Federation(2, 3)).memory, Memory)
