"""The memory of stale updates: precision, running sum, files, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale.memory import Memory, kernel, make, parse, precision
from fedstale.memory.kernel import Mix

N, D = 8, 33


def test_rows_that_leave_the_process_after_every_stretch_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of a large model: pages of a file are given back as soon as they were used, and read again when needed."""
    monkeypatch.setattr("fedstale.memory.kernel._STRETCH", 16_384)
    monkeypatch.setattr("fedstale.memory.rows._LARGE_ROW", 0)
    n, d = 3, 50_001
    rule, chance = fs.FedStale(beta=0.5), np.random.default_rng(0)
    on_disk, in_ram = (
        rule.init(fs.Federation(n, d, probabilities=0.5), memory=where, model=np.zeros(d, dtype=np.float32))
        for where in (f"disk:{tmp_path}", "ram")
    )
    for t in range(5):
        who = np.sort(chance.choice(n, 2, replace=False))
        updates = chance.standard_normal((2, d)).astype(np.float32)
        rule.advance(on_disk, fs.Round(t, who, updates))
        rule.step(in_ram, fs.Round(t, who, updates))
    assert on_disk.model is not None
    np.testing.assert_array_equal(on_disk.model, in_ram.model)
    np.testing.assert_array_equal(on_disk.memory.rows(np.arange(n)), in_ram.memory.rows(np.arange(n)))
    np.testing.assert_allclose(on_disk.memory.total, on_disk.memory.exact_total(), rtol=1e-12, atol=1e-12)
    on_disk.close()


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_round_trip_is_within_half_a_unit(name: str) -> None:
    kind = precision(name)
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.random.default_rng(1).integers(-3, 4, 1000)
    stored, back = np.empty(1000, kind.dtype), np.empty(1000)
    kind.store(values, stored)
    kind.load(back, stored)
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[name]
    smallest = 2.0**-25 if name == "float16" else 0.0  # below 6e-5 float16 has a fixed spacing of 2⁻²⁴
    assert np.all(np.abs(back - values) <= np.maximum(np.abs(values) * 2.0**-bits, smallest))
    again = np.empty_like(stored)
    kind.store(back, again)
    assert np.array_equal(stored, again)


def test_bfloat16_equals_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.concatenate(
        [np.random.default_rng(0).normal(size=5000), [0.0, -0.0, 1e-40, 3e38, 1.00390625, 1.01171875]]
    ).astype(np.float32)
    kind = precision("bfloat16")
    stored, back = np.empty(len(values), kind.dtype), np.empty(len(values))
    kind.store(values, stored)
    kind.load(back, stored)
    assert np.array_equal(back, torch.from_numpy(values).bfloat16().double().numpy())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_what_is_too_large_is_stored_as_the_largest_number(name: str) -> None:
    kind = precision(name)
    stored, back = np.empty(2, kind.dtype), np.empty(2)
    kind.store(np.array([1e300, -1e300]), stored)
    kind.load(back, stored)
    assert np.isfinite(back).all()
    assert back[0] > 6e4
    assert back[1] == -back[0]


@given(seed=st.integers(0, 10**6), count=st.integers(0, 40), length=st.integers(1, 9000))
def test_blocked_sum_equals_the_plain_one(seed: int, count: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(count, length)).astype(np.float32), rng.normal(size=count)
    assert kernel.weighted_sum(list(rows), weights, length) == pytest.approx(weights @ rows, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize("where", ["ram", "ram:bfloat16", "disk:{}"])
def test_against_a_dictionary(where: str, tmp_path: Path) -> None:
    """Random replacements against the plainest memory there is."""
    rng = np.random.default_rng(5)
    memory = make(where.format(tmp_path), N, D)
    plain: dict[int, tuple[float, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]] = {}
    for _ in range(60):
        who = rng.permutation(N)[: rng.integers(0, N)]
        rows, masses = rng.normal(size=(len(who), D)), rng.uniform(0, 2, len(who))
        memory.replace(who, rows, masses)
        kept = np.empty_like(rows)
        stored = np.empty(rows.shape, memory.precision.dtype)
        memory.precision.store(rows, stored)
        memory.precision.load(kept, stored)
        plain.update({int(c): (m, row) for c, m, row in zip(who, masses, kept, strict=True)})
        expected = sum((m * row for m, row in plain.values()), np.zeros(D))
        assert memory.total == pytest.approx(expected, abs=1e-12)
    assert set(memory.seen) == set(plain)
    for client, (_, row) in plain.items():
        assert np.array_equal(memory.rows([client])[0], row)


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [("float32", 10_000), ("bfloat16", 10_000), pytest.param("float32", 1_000_000, marks=pytest.mark.slow)],
)
def test_running_sum_does_not_drift(kind: str, rounds: int) -> None:
    """Random rounds of one participant each, sizes from e⁻⁶ to e⁶: the running sum stays the sum of the rows."""
    rng = np.random.default_rng(11)
    clients, d = 20, 4
    memory = make(f"ram:{kind}", clients, d)
    draws = rng.integers(0, clients, rounds)
    values = (rng.normal(size=(rounds, d)) * np.exp(2 * rng.normal(size=(rounds, 1)))).astype(np.float32)
    one = np.ones(1)
    for t in range(rounds):
        memory.prepare_exchange(draws[t : t + 1], [values[t]], Mix(one, one, 0.0, one / clients)).commit()
    exact = memory.exact_total()
    assert np.abs(memory.total - exact).max() < 1e-10 * np.abs(exact).max()


def test_exact_sum_is_exact() -> None:
    """Compensated: a sum whose plain value loses everything is right to the last bit."""
    memory = make("ram:float64", 4, 1)
    memory.replace([0, 1, 2, 3], np.array([[1e16], [1.0], [-1e16], [1.0]]))
    assert memory.exact_total()[0] == 2.0


def test_an_exchange_that_is_not_committed_never_happened() -> None:
    memory = make("ram", N, D)
    memory.replace([1], np.ones((1, D)))
    before = memory.rows([1]), memory.total.copy()
    one = np.ones(1)
    stale = memory.prepare_exchange(np.array([1]), [np.zeros(D)], Mix(one, one, 0.0, one))
    assert np.array_equal(memory.rows([1]), before[0])
    assert np.array_equal(memory.total, before[1])
    memory.replace([2], np.ones((1, D)))
    with pytest.raises(fs.InvalidInput, match="changed after this exchange was prepared"):
        stale.commit()


def test_file_is_sparse_and_small(tmp_path: Path) -> None:
    memory = make(f"disk:{tmp_path}", 100_000, 1000)
    memory.replace([99_999, 5], np.ones((2, 1000)))
    memory.flush()
    assert memory.file is not None
    assert os.stat(memory.file).st_blocks * 512 < 200_000
    memory.close()


def checkpoint(folder: Path, where: str) -> fs.State:
    rule = fs.FedStale(beta=0.5)
    state = rule.init(fs.Federation(N, D), memory=where)
    rule.combine(state, fs.Round(0, [1, 2, 3], np.random.default_rng(0).normal(size=(3, D)), probabilities=0.5))
    state.save(folder)
    return state


def rows_file(folder: Path) -> Path:
    (file,) = folder.glob("**/*.rows")
    return file


@pytest.mark.parametrize("where", ["ram", "disk:{}/rows"])
@pytest.mark.parametrize("harm", ["flip a row", "cut the rows", "flip the state", "cut the state", "other run", "gone"])
def test_damaged_files_are_refused(where: str, harm: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, where.format(tmp_path)).close()
    rows, state = rows_file(tmp_path), tmp_path / "state.safetensors"
    if harm == "flip a row":
        flip(rows, 4096 + D * 4 + 7)
    elif harm == "cut the rows":
        os.truncate(rows, 4096 + D * 4)
    elif harm == "flip the state":
        flip(state, state.stat().st_size - 5)
    elif harm == "cut the state":
        os.truncate(state, state.stat().st_size - 5)
    elif harm == "other run":
        rows.write_bytes(re.sub(rb'"run": "\w{4}', b'"run": "beef', rows.read_bytes(), count=1))
    else:
        rows.unlink()
    with pytest.raises(fs.InvalidInput, match=r"damaged|cut short|expected|missing"):
        fs.State.load(tmp_path)


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_every_flipped_byte_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    checkpoint(tmp_path, "ram").close()
    file = tmp_path / "state.safetensors"
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        flip(file, at)
        try:
            state = fs.State.load(tmp_path)
        except fs.InvalidInput:
            pass
        else:  # white space in the header may change without a meaning
            assert state.round == 1
            assert state.memory.seen.tolist() == [1, 2, 3]
        file.write_bytes(whole)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    make(f"disk:{tmp_path}", N, D).close()
    file = tmp_path / "stale.rows"
    with pytest.raises(fs.InvalidInput, match="has num_params = 33, expected 34"):
        Memory(N, D + 1, precision("float32"), file, mode="write")
    with pytest.raises(fs.InvalidInput, match="has precision = 'float32', expected 'float16'"):
        Memory(N, D, precision("float16"), file, mode="write")
    make(f"disk:{tmp_path}", N, D).close()  # no checkpoint ever named these rows
    state = checkpoint(tmp_path / "c", f"disk:{tmp_path}")
    state.close()
    with pytest.raises(fs.InvalidInput, match="exists already"):
        make(f"disk:{tmp_path}", N, D)
    file.write_bytes(b"something else")
    with pytest.raises(fs.InvalidInput, match="not a memory file"):
        Memory(N, D, precision("float32"), file, mode="write")


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    state = checkpoint(tmp_path / "c", f"disk:{tmp_path / 'rows'}")
    with pytest.raises(fs.InvalidInput, match="already being written by this process"):
        fs.State.load(tmp_path / "c")
    state.close()
    fs.State.load(tmp_path / "c").close()


def test_incremental_checkpoints_write_only_changed_rows(tmp_path: Path) -> None:
    """A second save of one changed row leaves the other rows of the file untouched and in place."""
    rule = fs.FedStale(beta=0.5)
    state = rule.init(fs.Federation(N, D))
    rule.combine(state, fs.Round(0, np.arange(N), np.ones((N, D)), probabilities=1.0))
    state.save(tmp_path)
    first = rows_file(tmp_path).read_bytes()
    rule.combine(state, fs.Round(1, [3], np.full((1, D), 7.0), probabilities=0.5))
    state.save(tmp_path)
    second = rows_file(tmp_path).read_bytes()
    row = D * 4
    changed = [k for k in range(N + 2) if first[4096 + k * row :][:row] != second[4096 + k * row :][:row]]
    assert changed == [N]  # the new row went behind the others; the old one is still there for the older checkpoint
    assert fs.State.load(tmp_path).memory.rows([3])[0] == pytest.approx(7.0)


def test_saving_elsewhere_and_leftovers(tmp_path: Path) -> None:
    state = checkpoint(tmp_path / "a", "ram")
    state.save(tmp_path / "b")
    state.save(tmp_path / "b")
    again = fs.State.load(tmp_path / "b")
    again.save(tmp_path / "b")
    assert len(list((tmp_path / "b").glob("*.rows"))) == 1
    assert np.array_equal(fs.State.load(tmp_path / "a").memory.total, fs.State.load(tmp_path / "b").memory.total)


def test_the_sum_is_exact_after_reload(tmp_path: Path) -> None:
    """A reload verifies the running sum against the exact one, and refuses a sum that drifted."""
    state = checkpoint(tmp_path, "ram")
    loaded = fs.State.load(tmp_path).memory
    assert loaded.total == pytest.approx(loaded.exact_total(), rel=1e-14, abs=0)
    state.memory.total = state.memory.total + 1e-6
    state.save(tmp_path)
    with pytest.raises(fs.InvalidInput, match=r"running sum .* does not match its rows"):
        fs.State.load(tmp_path)


def test_no_checkpoint_there(tmp_path: Path) -> None:
    with pytest.raises(fs.InvalidInput, match="there is no checkpoint"):
        fs.State.load(tmp_path)


def test_descriptions() -> None:
    assert parse("ram")[0] is None
    assert parse("disk:a:b")[0] == Path("a:b")
    assert parse("disk:a:b:float16") == (Path("a:b"), precision("float16"))
    with pytest.raises(fs.InvalidInput, match="memory = 'disk:'"):
        parse("disk:")
