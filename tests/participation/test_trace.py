"""Replay of logs, and the frequencies read from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.checks import InvalidInput
from fedstale.participation import (
    Bernoulli,
    LeastRecent,
    Participation,
    Trace,
    UniformSample,
    frequencies,
    wilson,
)


def write(path: Path, text: str) -> Path:
    file = path / "log.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_log_is_replayed(tmp_path: Path) -> None:
    text = "# a comment\n\nRound , Client\n2,3\n0,17  # late\n0,3\n0,3\n"
    trace = Trace.from_csv(write(tmp_path, text))
    assert (trace.num_clients, trace.num_rounds) == (18, 3)
    for t, ids in enumerate([[3, 17], [], [3]]):
        np.testing.assert_array_equal(trace.available(0, t), ids)
        assert trace.available(0, t).dtype == np.int64
    # The doubled pair counts once.
    assert trace.probabilities()[3] == pytest.approx(2 / 3)
    assert trace.probabilities()[17] == pytest.approx(1 / 3)
    assert trace.probabilities().sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(np.flatnonzero(trace.probabilities(0)), [3, 17])


def test_a_header_is_optional_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert Trace.from_csv(write(tmp_path, "0,1\n1,0\n")).num_rounds == 2
    assert Trace.from_csv(write(tmp_path, "\ufeffround,client\n0,1\n")).num_clients == 2


def test_sizes_may_be_given(tmp_path: Path) -> None:
    file = write(tmp_path, "0,1\n")
    trace = Trace.from_csv(file, 5, num_rounds=4)
    assert (trace.num_clients, trace.num_rounds) == (5, 4)
    np.testing.assert_array_equal(trace.available(0, 3), [])
    np.testing.assert_array_equal(trace.probabilities(), [0, 0.25, 0, 0, 0])
    empty = Trace.from_csv(write(tmp_path, "round,client\n"), 2, num_rounds=3)
    np.testing.assert_array_equal(empty.probabilities(), [0.0, 0.0])


@given(
    num_clients=st.integers(1, 6),
    num_rounds=st.integers(1, 8),
    data=st.data(),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, num_clients: int, num_rounds: int, data: st.DataObject
) -> None:
    pair = st.tuples(st.integers(0, num_rounds - 1), st.integers(0, num_clients - 1))
    pairs = np.array(data.draw(st.lists(pair, max_size=20)), dtype=np.int64).reshape(-1, 2)
    trace = Trace(num_clients, num_rounds, pairs[:, 0], pairs[:, 1])
    file = tmp_path_factory.mktemp("trace") / "log.csv"
    trace.to_csv(file)
    again = Trace.from_csv(file)
    assert (again.num_clients, again.num_rounds) == (num_clients, num_rounds)
    np.testing.assert_array_equal(np.asarray(again.rounds), np.asarray(trace.rounds))
    np.testing.assert_array_equal(np.asarray(again.clients), np.asarray(trace.clients))
    for t in range(num_rounds):
        np.testing.assert_array_equal(again.available(0, t), sorted({int(i) for s, i in pairs if s == t}))


def test_the_end_of_a_log_stops_or_starts_over() -> None:
    trace = Trace(3, 2, [0, 1], [1, 2])
    with pytest.raises(InvalidInput, match="round = 2: the trace ends after 2 rounds"):
        trace.available(0, 2)
    again = Trace(3, 2, [0, 1], [1, 2], repeat=True)
    np.testing.assert_array_equal(again.available(0, 2), [1])
    np.testing.assert_array_equal(again.available(0, 701), [2])


def test_a_recorded_run_is_the_run() -> None:
    participation = Participation(Bernoulli.uniform(10, 0.5), UniformSample(3))
    trace = Trace.record(participation, seed=4, num_rounds=50)
    process = Trace.record(participation.availability, seed=4, num_rounds=50)
    for t in range(50):
        np.testing.assert_array_equal(trace.available(0, t), participation.participants(4, t))
        np.testing.assert_array_equal(process.available(9, t), participation.availability.available(4, t))
    in_turn = Trace.record(Participation(Bernoulli.uniform(4, 1.0), LeastRecent(1)), seed=0, num_rounds=8)
    np.testing.assert_array_equal(in_turn.counts(), [2, 2, 2, 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round,client\n0,1\n1;2\n", "line 3 = '1;2': must be two integers"),
        ("0,1\nround,client\n", "line 2"),
        ("client,round\n0,x\n", "line 2 = '0,x': must be two integers"),
        ("0,1,2\n", "line 1"),
        ("0,1.5\n", "line 1"),
        ("0,device-7\n", "line 1"),
        ("0,\n", "line 1"),
        ("0,1\n-1,1\n", "line 2 = '-1,1': the round must lie in 0"),
        ("0,1\n1,-1\n", "line 2 = '1,-1': the client must lie in 0"),
        ("0,99999999999999999999\n", "line 1.*the client must lie in"),
        ("99999999999999999999,0\n", "line 1.*the round must lie in"),
        ("# nothing\n", "holds no round,client pair"),
        ("", "holds no round,client pair"),
        ("# num_rounds=2 num_clients=2\n2,0\n", "line 2 = '2,0': the round must lie in 0 … 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        Trace.from_csv(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        Trace.from_csv(tmp_path / "missing.csv")
    with pytest.raises(InvalidInput, match="Is a directory"):
        Trace.from_csv(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InvalidInput, match="UTF-8"):
        Trace.from_csv(tmp_path / "binary.csv")
    file = write(tmp_path, "0,5\n7,0\n")
    with pytest.raises(InvalidInput, match=r"line 1 = '0,5': the client must lie in 0 … 4"):
        Trace.from_csv(file, 5)
    with pytest.raises(InvalidInput, match=r"line 2 = '7,0': the round must lie in 0 … 6"):
        Trace.from_csv(file, num_rounds=7)
    with pytest.raises(InvalidInput, match="num_clients = 0"):
        Trace.from_csv(file, 0)
    with pytest.raises(InvalidInput, match=r"clients\[1\] = 3"):
        Trace(3, 2, [0, 1], [0, 3])
    with pytest.raises(InvalidInput, match=r"rounds\[0\] = -1"):
        Trace(3, 2, [-1, 1], [0, 1])
    with pytest.raises(InvalidInput, match="as many as"):
        Trace(3, 2, [0, 1], [0])
    with pytest.raises(InvalidInput, match="rounds"):
        Trace(3, 2, [0.5], [0])


def test_wilson_interval_by_hand() -> None:
    # Textbook values for 95 %: 8 of 10 gives (0.490, 0.943); 0 of 10 gives (0, 0.278).
    result = wilson([8, 0, 10], 10)
    np.testing.assert_allclose(result.probabilities, [0.8, 0.0, 1.0])
    np.testing.assert_allclose(result.low, [0.4901625, 0.0, 0.7224672], atol=1e-6)
    np.testing.assert_allclose(result.high, [0.9433178, 0.2775328, 1.0], atol=1e-6)


def test_frequencies_of_a_log_cover_the_truth() -> None:
    p = np.full(2000, 0.05)
    result = frequencies(Trace.record(Bernoulli(p), seed=0, num_rounds=400))
    covered = ((result.low <= 0.05) & (result.high >= 0.05)).mean()
    assert covered == pytest.approx(0.95, abs=0.025)
    wider = frequencies(Trace.record(Bernoulli(p), seed=0, num_rounds=400), confidence=0.99)
    assert (wider.high > result.high).all()


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_rounding_does_not_push_a_limit_past_the_frequency(confidence: float) -> None:
    """Without the limits of `wilson` it does so in a third of these, by 1e-17 or so: 0 of n and n of n."""
    trials = np.arange(1, 2000)
    for successes in (np.zeros_like(trials), trials):
        p, low, high = wilson(successes, trials, confidence)
        assert (low >= 0.0).all()
        assert (low <= p).all()
        assert (p <= high).all()
        assert (high <= 1.0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 10, 0.0), "^confidence = 0.0: must be"),
        (([1], 10, 1.0), r"^confidence = 1.0: must lie in \(0, 1\)$"),
        (([1], 10, 1.5), "^confidence = 1.5: must be"),
        (([1], 10, float("nan")), "^confidence = nan: must be"),
        (([11], 10), r"^successes = \[11\]: must lie in 0 … 10$"),
        (([-1], 10), r"^successes = \[-1\]: must lie in 0 … 10$"),
        (([0], 0), "^trials = 0: must be at least 1$"),
        (([[1]], 10), "^successes = "),
        (([1], [1, 2]), "^trials = "),
    ],
)
def test_frequencies_refuse_bad_input(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wilson(*arguments)  # type: ignore[arg-type]
