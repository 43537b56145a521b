"""The label swap: how many, whose, and only those."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstale.checks import InvalidInput
from fedstale.tasks.swap import group_array, swap_labels

RNG = np.random.default_rng(0)
SIZES = np.array([40, 1, 70, 55, 33, 60])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
LABELS = RNG.integers(0, 10, OFFSETS[-1])
GROUPS = np.array([0, 1, 1, 0, 1, 0])


def changed(after: NDArray[np.int64], client: int, old: int, new: int) -> int:
    rows = slice(OFFSETS[client], OFFSETS[client + 1])
    return int(np.sum((LABELS[rows] == old) & (after[rows] == new)))


@settings(deadline=None)
@given(swap=st.floats(0, 1), seed=st.integers(0, 100), pair=st.sampled_from([(8, 9), (2, 6), (1, 0)]))
def test_exact_counts_in_the_second_group_and_nothing_else(swap: float, seed: int, pair: tuple[int, int]) -> None:
    before = LABELS.copy()
    after = swap_labels(LABELS, OFFSETS, GROUPS, swap, pair, seed)
    np.testing.assert_array_equal(LABELS, before)
    for client, group in enumerate(GROUPS):
        rows = slice(OFFSETS[client], OFFSETS[client + 1])
        expected = 0
        for old, new in (pair, pair[::-1]):
            count = int(np.sum(LABELS[rows] == old) * swap) if group else 0
            assert changed(after, client, old, new) == count
            expected += count
        assert np.sum(after[rows] != LABELS[rows]) == expected


def test_one_exchanges_the_two_labels_and_zero_does_nothing() -> None:
    everyone = np.ones(6, dtype=int)
    after = swap_labels(LABELS, OFFSETS, everyone, 1.0, (8, 9))
    np.testing.assert_array_equal(after == 8, LABELS == 9)
    np.testing.assert_array_equal(after == 9, LABELS == 8)
    np.testing.assert_array_equal(swap_labels(LABELS, OFFSETS, everyone, 0.0, (8, 9)), LABELS)


def test_which_samples_depends_on_seed_and_split_only() -> None:
    def run(seed: int, stream: str, groups: NDArray[np.int64] = GROUPS) -> NDArray[np.int64]:
        return swap_labels(LABELS, OFFSETS, groups, 0.5, (8, 9), seed, stream)

    np.testing.assert_array_equal(run(1, "train"), run(1, "train"))
    assert not np.array_equal(run(1, "train"), run(2, "train"))
    assert not np.array_equal(run(1, "train"), run(1, "test"))
    # Whether another client is swapped does not move this one's draw.
    alone = run(1, "train", np.array([0, 0, 1, 0, 0, 0]))
    rows = slice(OFFSETS[2], OFFSETS[3])
    np.testing.assert_array_equal(alone[rows], run(1, "train")[rows])


def test_booleans_are_groups_too() -> None:
    np.testing.assert_array_equal(
        swap_labels(LABELS, OFFSETS, GROUPS == 1, 0.7, (8, 9)), swap_labels(LABELS, OFFSETS, GROUPS, 0.7, (8, 9))
    )


def test_by_default_the_second_half_is_the_second_group() -> None:
    assert group_array(None, 4).tolist() == [0, 0, 1, 1]
    assert group_array(None, 5).tolist() == [0, 0, 1, 1, 1]
    assert group_array(None, 1).tolist() == [1]


def test_the_default_groups_are_those_of_the_participation_processes() -> None:
    from fedstale.participation.processes import two_groups

    for n in (1, 2, 5, 24, 25):
        assert group_array(None, n).tolist() == two_groups(n, 0.1)[1].tolist()


@pytest.mark.parametrize(
    ("groups", "swap", "pair", "told"),
    [
        ([0, 1], 0.5, (8, 9), "groups = .*must be 6 zeros and ones"),
        ([0, 1, 2, 0, 1, 0], 0.5, (8, 9), "groups"),
        ([0.0, 1, 1, 0, 1, 0], 0.5, (8, 9), "groups"),
        (GROUPS, 1.1, (8, 9), "swap = 1.1"),
        (GROUPS, -0.1, (8, 9), "swap = -0.1"),
        (GROUPS, 0.5, (8, 8), "swap_pair"),
    ],
)
def test_wrong_arguments_are_named(groups: list[int], swap: float, pair: tuple[int, int], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        swap_labels(LABELS, OFFSETS, groups, swap, pair)
