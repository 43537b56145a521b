"""The label swap: how many, whose, and only those."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstale.checks import InvalidInput
from fedstale.tasks.label_swap import group_array, share_swapped, swap_labels

RNG = np.random.default_rng(0)
SIZES = np.array([40, 1, 70, 55, 33, 60])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
LABELS = RNG.integers(0, 10, OFFSETS[-1])
GROUPS = np.array([0, 1, 1, 0, 1, 0])


def changed(after: NDArray[np.int64], client: int, old: int, new: int) -> int:
    rows = slice(OFFSETS[client], OFFSETS[client + 1])
    return int(np.sum((LABELS[rows] == old) & (after[rows] == new)))


@given(swap=st.floats(0, 1), seed=st.integers(0, 100), pair=st.sampled_from([(8, 9), (2, 6), (1, 0)]))
def test_exact_counts_in_the_second_group_and_nothing_else(swap: float, seed: int, pair: tuple[int, int]) -> None:
    before = LABELS.copy()
    after = swap_labels(LABELS, OFFSETS, GROUPS, swap, pair, seed)
    np.testing.assert_array_equal(LABELS, before)
    candidates = np.isin(LABELS, pair) & (np.repeat(GROUPS, SIZES) == 1)
    whole, total = int(candidates.sum()), int(np.sum(after != LABELS))
    assert abs(total - swap * whole) <= 0.5
    for client, group in enumerate(GROUPS):
        rows = slice(OFFSETS[client], OFFSETS[client + 1])
        counts = [changed(after, client, old, new) for old, new in (pair, pair[::-1])]
        here = int(candidates[rows].sum())
        assert np.sum(after[rows] != LABELS[rows]) == sum(counts)
        assert abs(sum(counts) - total * here / whole) < 1
        if not group:
            assert counts == [0, 0]
            continue
        for count, old in zip(counts, pair, strict=True):
            assert abs(count - sum(counts) * np.sum(LABELS[rows] == old) / max(here, 1)) < 1


@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12),
    strengths=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 20),
)
def test_small_clients_share_the_swap_and_strengths_are_nested(
    sizes: list[tuple[int, int]], strengths: tuple[float, float], seed: int
) -> None:
    labels = np.concatenate([[8] * a + [9] * b for a, b in sizes]).astype(np.int64)
    counts = np.array(sizes).sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    everyone = np.ones(len(sizes), dtype=int)
    weak, strong = (swap_labels(labels, offsets, everyone, s, (8, 9), seed) != labels for s in sorted(strengths))
    assert not (weak & ~strong).any()
    for s, swapped in zip(sorted(strengths), (weak, strong), strict=True):
        assert abs(swapped.sum() - s * len(labels)) <= 0.5
        for client in range(len(sizes)):
            own = swapped[offsets[client] : offsets[client + 1]].sum()
            assert abs(own - swapped.sum() * counts[client] / max(len(labels), 1)) < 1


def test_two_samples_of_a_label_are_not_too_few() -> None:
    # int(n · swap) of each label swapped nothing here.
    labels, offsets = np.array([8, 8, 9, 9] * 10), np.arange(0, 41, 4)
    everyone = np.ones(10, dtype=int)
    after = swap_labels(labels, offsets, everyone, 0.2, (8, 9))
    assert share_swapped(labels, after, offsets, everyone, (8, 9)) == 0.2
    assert np.sum((labels == 8) & (after == 9)) == np.sum((labels == 9) & (after == 8)) == 4


def test_the_share_is_that_of_the_second_group() -> None:
    before, after, offsets = np.array([8, 9, 1, 8, 9, 1]), np.array([8, 9, 1, 9, 9, 1]), [0, 3, 6]
    assert share_swapped(before, after, offsets, [0, 1], (8, 9)) == 0.5
    assert np.isnan(share_swapped(before, after, offsets, [0, 1], (5, 6)))


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
    # Whether another client is swapped moves the size of this one's draw by one at most, not its order.
    alone = run(1, "train", np.array([0, 0, 1, 0, 0, 0]))
    rows = slice(OFFSETS[2], OFFSETS[3])
    assert np.sum(alone[rows] != run(1, "train")[rows]) <= 1


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
