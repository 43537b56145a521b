import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.store.blocks import Block, Series, SeriesKind, decode, encode, to_matrix

floats = st.floats(allow_nan=True, allow_infinity=True)
rounds = st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True).map(sorted)


def filled(kind: SeriesKind, at: list[int], values: list[object]) -> Block:
    block = Block(kind, "x")
    for round, value in zip(at, values, strict=True):
        block.add(round, value)  # type: ignore[arg-type]
    return block


@given(rounds, st.data())
def test_a_metric_comes_back_bit_for_bit(at: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(floats, min_size=len(at), max_size=len(at)))
    series = decode(SeriesKind.METRIC, at[0], filled(SeriesKind.METRIC, at, list(values)).encode())
    assert series.rounds.tolist() == at
    assert series.counts.tolist() == [1] * len(at)
    assert series.values.tobytes() == np.array(values).tobytes()


@given(rounds, st.data())
def test_rows_of_different_length_come_back(at: list[int], data: st.DataObject) -> None:
    rows = [np.array(data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=6)), dtype=np.int64) for _ in at]
    series = decode(SeriesKind.PARTICIPANTS, at[0], filled(SeriesKind.PARTICIPANTS, at, list(rows)).encode())
    assert [row.tolist() for row in series.split()] == [row.tolist() for row in rows]


@given(rounds, st.integers(-1, 10**6))
def test_until_keeps_exactly_the_rounds_up_to_the_last(at: list[int], last: int) -> None:
    whole = Series(np.array(at), np.arange(len(at)) % 3, np.arange(int((np.arange(len(at)) % 3).sum())) * 1.0)
    part = whole.until(last)
    assert part.rounds.tolist() == [round for round in at if round <= last]
    assert len(part.values) == part.counts.sum()
    assert part.values.tolist() == whole.values[: len(part.values)].tolist()


def test_a_matrix_ends_in_nan_where_a_round_has_fewer_clients() -> None:
    series = Series(np.array([3, 7]), np.array([2, 3]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    np.testing.assert_array_equal(to_matrix(series), [[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]])


@pytest.mark.parametrize("place", range(2, 60, 7))
def test_a_changed_byte_is_an_error_and_never_a_wrong_number(place: int) -> None:
    values = np.random.default_rng(0).normal(size=50)
    data = bytearray(encode(SeriesKind.METRIC, Series(np.arange(50), np.ones(50, dtype=np.int64), values)))
    data[place] ^= 1
    with pytest.raises(ValueError):
        decode(SeriesKind.METRIC, 0, bytes(data))


def test_a_block_closes_by_rounds_and_by_size() -> None:
    many = filled(SeriesKind.METRIC, list(range(256)), [0.0] * 256)
    assert many.full
    assert not filled(SeriesKind.METRIC, list(range(255)), [0.0] * 255).full
    assert filled(SeriesKind.CLIENTS, [0], [np.zeros(10_000)]).full
