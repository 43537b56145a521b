"""Partitions: no sample twice, no client empty, the right amounts, the same again for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.checks import InvalidInput, UnknownName
from fedstale.tasks import partition
from fedstale.tasks.partition import Ints, split

BALANCED = np.repeat(np.arange(10), 120)


def disjoint(parts: list[Ints]) -> Ints:
    """Assert that no index occurs twice and return them all."""
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert min(len(part) for part in parts) >= 1
    return np.sort(everything)


@given(size=st.integers(1, 300), clients=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_iid_uses_every_sample_once_in_equal_parts(size: int, clients: int, seed: int) -> None:
    labels = np.arange(size) % 7
    if size < clients:
        with pytest.raises(InvalidInput, match=f"only {size} samples"):
            split(labels, clients, seed=seed)
        return
    parts = split(labels, clients, seed=seed)
    assert disjoint(parts).tolist() == list(range(size))
    sizes = [len(part) for part in parts]
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1


@given(clients=st.integers(1, 30), alpha=st.floats(0.3, 100), seed=st.integers(0, 1000))
def test_dirichlet_uses_every_sample_once(clients: int, alpha: float, seed: int) -> None:
    parts = split(BALANCED, clients, "dirichlet", seed=seed, alpha=alpha)
    assert len(parts) == clients
    assert disjoint(parts).tolist() == list(range(len(BALANCED)))


@given(clients=st.integers(1, 40), classes=st.integers(1, 10), seed=st.integers(0, 1000))
def test_pathological_gives_every_client_exactly_so_many_classes(clients: int, classes: int, seed: int) -> None:
    parts = split(BALANCED, clients, "pathological", seed=seed, classes_per_client=classes)
    everything = disjoint(parts)
    held = [np.unique(BALANCED[part]) for part in parts]
    assert [len(one) for one in held] == [classes] * clients
    holders = np.bincount(np.concatenate(held), minlength=10)
    assert holders.max() - holders.min() <= 1
    assert len(everything) == 120 * np.count_nonzero(holders)


@given(share=st.floats(0.2, 1.0), seed=st.integers(0, 1000))
def test_share_is_the_part_of_the_samples_that_is_used(share: float, seed: int) -> None:
    for how in ("iid", "pathological"):
        used = disjoint(split(BALANCED, 10, how, seed=seed, share=share))
        assert len(used) == round(share * len(BALANCED))
        assert set(used) <= set(partition._subset(len(BALANCED), share, seed).tolist())


def test_the_authors_share_gives_500_samples_a_client() -> None:
    parts = split(np.zeros(60_000, dtype=int), 24, share=0.2)
    assert {len(part) for part in parts} == {500}


def skew(parts: list[Ints]) -> float:
    """Mean over clients of the share of the client's commonest class."""
    return float(np.mean([np.bincount(BALANCED[part]).max() / len(part) for part in parts]))


def test_a_small_alpha_makes_clients_differ() -> None:
    skews = [skew(split(BALANCED, 12, "dirichlet", seed=3, alpha=alpha)) for alpha in (0.1, 1.0, 1000.0)]
    assert skews[0] > 0.5 > skews[1] > 0.2 > skews[2]
    assert skews[2] < 0.13
    assert skew(split(BALANCED, 12, seed=3)) < 0.25


@pytest.mark.parametrize("how", ["iid", "dirichlet", "pathological"])
def test_the_seed_decides(how: str) -> None:
    one, same, other = (split(BALANCED, 12, how, seed=seed, share=0.5) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    stream = split(BALANCED, 12, how, seed=5, share=0.5, stream="test")
    assert not all(np.array_equal(a, b) for a, b in zip(one, stream, strict=True))


def test_iid_is_not_the_order_of_the_file() -> None:
    assert min(len(np.unique(BALANCED[part])) for part in split(BALANCED, 12)) == 10


def test_a_draw_with_an_empty_client_is_drawn_anew_and_at_last_refused() -> None:
    labels = np.repeat(np.arange(2), 30)
    draws = [split(labels, 4, "dirichlet", seed=seed, alpha=0.3) for seed in range(30)]
    assert all(min(len(part) for part in parts) > 0 for parts in draws)
    with pytest.raises(InvalidInput, match=r"alpha = 1e-06: in 100 draws, some of the 30 clients had no samples"):
        split(labels, 30, "dirichlet", alpha=1e-6)


def test_given_lists_are_used_as_they_are() -> None:
    lists = [[5, 3], [0], [9, 1, 2]]
    parts = split(np.zeros(10, dtype=int), 3, lists)
    assert [part.tolist() for part in parts] == lists


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ([[0], [1]], "2 index lists"),
        ([[0], [1], []], r"partition\[2\] = \[\]: must be a non-empty"),
        ([[0], [1], [10]], r"partition\[2\] = 10: sample indices must lie in 0 … 9"),
        ([[0], [1], [-1]], r"partition\[2\] = -1"),
        ([[0], [1], [2, 0]], r"partition\[2\] = 0: a sample may be used only once"),
        ([[0], [1], [4, 4]], r"partition\[2\] = 4: a sample may be used only once"),
        ([[0], [1], [0.5]], r"partition\[2\]"),
    ],
)
def test_given_lists_are_checked(lists: list[list[Any]], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        split(np.zeros(10, dtype=int), 3, lists)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"num_clients": 0}, "num_clients = 0"),
        ({"share": 0.0}, "share = 0"),
        ({"share": 1.5}, "share = 1.5"),
        ({"share": 0.001}, "there are only 1 samples"),
        ({"how": "dirichlet", "alpha": 0.0}, "alpha = 0"),
        ({"how": "dirichlet", "classes_per_client": 2}, "classes_per_client = 2: is not an option of the dirichlet"),
        ({"how": "dirichlet", "num_clients": 1201}, "there are only 1200 samples"),
        ({"how": "iid", "alpha": 1}, r"alpha = 1: is not an option of the iid partition \(options: none\)"),
        ({"how": "pathological", "classes_per_client": 11}, "classes_per_client = 11: there are only 10 classes"),
        ({"how": "pathological", "num_clients": 700}, "has 120 samples for 140 clients"),
        ({"labels": [0.5] * 100}, "labels"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        split(**{"labels": BALANCED, "num_clients": 12, **arguments})


def test_an_unknown_partition_lists_near_matches() -> None:
    with pytest.raises(UnknownName, match="did you mean dirichlet"):
        split(BALANCED, 3, "dirichlett")
