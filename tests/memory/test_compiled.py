"""The compiled loops do what the blocks of NumPy do: equal to rounding, rows to the bit, whatever the threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedstale as fs
from fedstale.checks import NonFinite
from fedstale.difference import Difference
from fedstale.memory import kernel
from fedstale.memory.kernel import Mix, Sums
from fedstale.memory.precision import PRECISIONS

NEVER, ALWAYS = 1 << 62, 1
Rows = list[NDArray[Any]]


@pytest.fixture
def compiled() -> Any:
    pytest.importorskip("numba", reason="the extra fast is not installed")
    from fedstale.memory import compiled

    return compiled


def passed(
    numbers: int, fresh: Rows, stale: Sequence[NDArray[Any] | None], kind: str, mix: Mix, *, in_place: bool = False
) -> tuple[Sums, Rows]:
    """One pass, by the loops where there are at least so many numbers; `in_place`, of differences over old rows."""
    precision, length = PRECISIONS[kind], len(fresh[0])
    chance = np.random.default_rng(0)
    given: list[Any] = list(fresh)
    target = [np.empty(length, precision.dtype) for _ in fresh]
    total, masses = chance.standard_normal(length), chance.random(len(fresh))
    out = np.empty(length)
    if in_place:
        target = [np.zeros(length, precision.dtype) if row is None else row.copy() for row in stale]
        stale, out, start = target, total, np.zeros(length, fresh[0].dtype)
        edges = np.array([0, length // 3, length])
        given = [Difference(start, [-row[: edges[1]], -row[edges[1] :]], edges) for row in fresh]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_WORTH_COMPILING", numbers)
        sums = kernel.exchange(given, stale, target, precision, mix, old_masses=masses, total=total, out=out)
    return sums, target


def same(one: tuple[Sums, Rows], other: tuple[Sums, Rows]) -> None:
    for name in ("mix", "total", "inner", "stale_sq"):
        found, wanted = getattr(one[0], name), getattr(other[0], name)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12 * float(np.abs(wanted).max(initial=0.0)))
    for row, wanted in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(row, wanted)


def stored(values: NDArray[Any], kind: str) -> NDArray[Any]:
    row = np.empty(len(values), PRECISIONS[kind].dtype)
    PRECISIONS[kind].store(values, row)
    return row


@st.composite
def rounds(draw: st.DrawFn, fresh: str, kind: str) -> tuple[Rows, list[NDArray[Any] | None], Mix, bool]:
    count, length = draw(st.integers(1, 4)), draw(st.sampled_from([1, 7, 4095, 4096, 4097, 9000]))
    chance = np.random.default_rng(draw(st.integers(0, 2**31)))
    scales = 10.0 ** np.array(draw(st.lists(st.integers(-9, 5), min_size=2 * count, max_size=2 * count)))
    rows = [(scale * chance.standard_normal(length)).astype(fresh) for scale in scales[:count]]
    seen = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    old = [
        stored(scale * chance.standard_normal(length), kind) if was else None
        for was, scale in zip(seen, scales[count:], strict=True)
    ]
    rates = draw(st.none() | st.lists(st.sampled_from([1.0, 0.5, 0.1, 0.0]), min_size=count, max_size=count))
    refresh = None if rates is None else np.array(rates)
    numbers = chance.random((3, count))
    mix = Mix(numbers[0], numbers[1], draw(st.sampled_from([0.0, 0.7])), numbers[2], draw(st.booleans()), refresh)
    return rows, old, mix, draw(st.booleans())


PAIRS = [(fresh, kind) for fresh in ("float32", "float64") for kind in PRECISIONS]
USUAL = [("float32", "float32"), ("float32", "float16"), ("float32", "bfloat16"), ("float64", "float32")]


@pytest.mark.parametrize(
    ("fresh", "kind"), [p if p in USUAL else pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS]
)
def test_the_loops_equal_the_blocks(compiled: Any, fresh: str, kind: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(rounds(fresh, kind))
    def holds(drawn: tuple[Rows, list[NDArray[Any] | None], Mix, bool]) -> None:
        rows, old, mix, over = drawn
        loops, blocks = (passed(numbers, rows, old, kind, mix, in_place=over) for numbers in (ALWAYS, NEVER))
        same(loops, blocks)
        same(loops, passed(NEVER, rows, old, kind, mix))

    holds()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_number_of_sixteen_bits_is_read_and_rounded_as_by_numpy(compiled: Any, kind: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(1 << 16)
    with np.errstate(invalid="ignore"):
        PRECISIONS[kind].load(wide, bits.view(PRECISIONS[kind].dtype))
    finite = bits[np.isfinite(wide)]
    exact = np.sort(wide[np.isfinite(wide)])
    middle = (exact[1:] + exact[:-1]) / 2  # ties, and what is just beside them
    values = np.concatenate([exact, middle, np.nextafter(middle, 0.0), np.nextafter(middle, np.inf), [1e39, -1e39]])
    with np.errstate(over="ignore"):
        fresh = np.where(np.abs(values) < 1e38, values, np.sign(values) * 1e38).astype(np.float32)
    one = np.ones(1)
    mix = Mix(one, one, 0.0, one, statistics=True)
    same(passed(ALWAYS, [fresh], [None], kind, mix), passed(NEVER, [fresh], [None], kind, mix))
    old = finite.view(PRECISIONS[kind].dtype)
    fresh = np.zeros(len(old), np.float32)
    same(passed(ALWAYS, [fresh], [old], kind, mix), passed(NEVER, [fresh], [old], kind, mix))


def test_threads_do_not_change_a_bit(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(1)
    fresh = [chance.standard_normal(30_000).astype(np.float32) for _ in range(3)]
    old = [chance.standard_normal(30_000).astype(np.float32), None, chance.standard_normal(30_000).astype(np.float32)]
    mix = Mix(chance.random(3), chance.random(3), 0.5, chance.random(3), statistics=True)
    monkeypatch.setattr(compiled, "_SHARE", 1)
    found = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(compiled, "processors", lambda threads=threads: threads)
        sums, rows = passed(ALWAYS, fresh, old, "float32", mix)
        found.append(b"".join(a.tobytes() for a in (sums.mix, sums.total, sums.inner, sums.stale_sq, *rows)))
    assert len(set(found)) == 1


def test_a_weighted_sum_has_the_bits_of_a_mix_without_memory(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(2)
    fresh = [chance.standard_normal(9_000).astype(np.float32) for _ in range(3)]
    old = [chance.standard_normal(9_000).astype(np.float32), None, chance.standard_normal(9_000).astype(np.float32)]
    weights = chance.random(3)
    mixed, _ = passed(ALWAYS, fresh, old, "float32", Mix(weights, np.zeros(3), 0.0, np.ones(3)))
    monkeypatch.setattr(kernel, "_WORTH_COMPILING", ALWAYS)
    np.testing.assert_array_equal(kernel.weighted_sum(fresh, weights, 9_000), mixed.mix)


@pytest.mark.parametrize(
    "rule", [fs.FedStale(), fs.FedStale(beta="auto-per-client"), fs.FedVARP(), fs.UnbiasedFedAvg()]
)
def test_rules_give_the_same_by_both(compiled: Any, rule: fs.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for numbers in (ALWAYS, NEVER):
        monkeypatch.setattr(kernel, "_WORTH_COMPILING", numbers)
        state, chance = rule.init(fs.Federation(4, 5_000, probabilities=0.5), memory="ram"), np.random.default_rng(3)
        deltas = []
        for index in range(4):
            clients = np.flatnonzero(chance.random(4) < 0.7)
            updates = chance.standard_normal((len(clients), 5_000)).astype(np.float32)
            deltas.append(rule.combine(state, fs.Round(index, clients, updates)))
        bad = np.full((1, 5_000), np.nan, np.float32)
        with pytest.raises(NonFinite):
            rule.combine(state, fs.Round(9, [0], bad))
        deltas.append(rule.combine(state, fs.Round(9, [0], np.ones((1, 5_000), np.float32))))
        found.append(np.stack(deltas))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("odd", ["gaps", "half", "mixed", "not native"])
def test_rows_that_the_loops_do_not_read_go_through_the_blocks(compiled: Any, odd: str) -> None:
    rows: dict[str, Rows] = {
        "gaps": [np.arange(20.0, dtype=np.float32)[::2]],
        "half": [np.arange(10.0, dtype=np.float16)],
        "mixed": [np.arange(10.0, dtype=np.float32), np.arange(10.0)],
        "not native": [np.arange(10.0).astype(np.dtype(np.float64).newbyteorder())],
    }
    fresh, ones = rows[odd], np.ones(len(rows[odd]))
    assert not compiled.takes(fresh)
    mix = Mix(ones, ones, 0.0, ones)
    stale: list[NDArray[Any] | None] = [None] * len(fresh)
    same(passed(ALWAYS, fresh, stale, "float32", mix), passed(NEVER, fresh, stale, "float32", mix))


def test_without_numba_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "numba" or name.endswith("memory.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delattr("fedstale.memory.compiled", raising=False)
    kernel._compiled.cache_clear()
    try:
        fresh, one = [np.ones(10, np.float32)], np.ones(1)
        mix = Mix(one, one, 0.0, one)
        same(passed(ALWAYS, fresh, [None], "float32", mix), passed(NEVER, fresh, [None], "float32", mix))
        assert kernel._compiled() is None
    finally:
        kernel._compiled.cache_clear()


def test_a_small_round_does_not_load_numba() -> None:
    program = (
        "import sys, numpy as np, fedstale as fs; rule = fs.FedStale(); state = rule.init(fs.Federation(2, 9));"
        "rule.combine(state, fs.Round(0, [0, 1], np.ones((2, 9)), probabilities=1.0));"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_processors_are_those_that_the_process_may_use(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    for wanted, count in {"": 3, "2": 2, "8": 3, "0": 3, "many": 3}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
        assert compiled.processors() == count
