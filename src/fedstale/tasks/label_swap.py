"""The paper's data heterogeneity (Section 5.1): "swapping a fraction σ̂_g² of two labels in the second group".

The paper swaps in the second group only, the one that takes part rarely: that is what is done here. The authors'
released code names a pair for each group (MNIST 0↔1 and 8↔9, CIFAR-10 3↔5 and 2↔6); the second group's pair is
the default of the tasks, and the pair is an option. In that code the swap groups and the participation groups do
not agree; here both are the same array.

That code takes int(n · σ̂_g²) of each label of each client, which on small clients is much less than σ̂_g²: with one or
two samples of a label, 0.2 becomes nothing. Here the swapped samples are counted over the group and handed out evenly:

- m = the integer nearest to σ̂_g² · M of the group's M samples with one of the two labels are swapped;
- a client with n of them has m·n/M swapped, rounded up or down;
- of c swapped samples of a client, the two labels have c·n_a/n and c·n_b/n, rounded up or down;
- what is swapped at one strength is swapped at every larger one.

Rounding each client by itself would not do: a client with two such samples has nothing swapped at 0.2, and neither
has a group of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import fail, fraction
from ..randomness import generator

__all__ = ["group_array", "share_swapped", "swap_labels", "swap_text"]

Ints = NDArray[np.int64]


def swap_labels(
    labels: ArrayLike,
    offsets: ArrayLike,
    groups: ArrayLike,
    swap: float,
    pair: tuple[int, int],
    seed: int = 0,
    stream: str = "train",
) -> Ints:
    """Return the labels after the swap; what was passed in stays as it is.

    The share of the group's samples of the two labels that get the other one is `swap`, to the nearest sample; each
    client's part of them is its share to within one sample. Which samples: drawn without replacement.

    Parameters
    ----------
    labels
        The class of every sample, shape (n,), client after client.
    offsets
        Client i's samples are rows offsets[i] to offsets[i+1] − 1; shape (N+1,).
    groups
        0 or False for the first group, 1 or True for the second (whose labels are swapped), shape (N,).
    swap
        σ̂_g², from 0 (nothing happens) to 1 (the two labels change places).
    pair
        The two labels.
    seed
        The run's seed.
    stream
        Keeps the draws of the train and the test split apart.
    """
    before = np.asarray(labels, dtype=np.int64)
    bounds = np.asarray(offsets, dtype=np.int64)
    second = group_array(groups, len(bounds) - 1)
    fraction("swap", swap)
    if len(pair) != 2 or pair[0] == pair[1]:
        raise fail("swap_pair", pair, "must be two different labels")
    after = before.copy()
    clients = np.flatnonzero(second)
    rows = [_candidates(before, bounds, int(client), pair, seed, stream) for client in clients]
    sizes = np.array([[len(of_label) for of_label in two] for two in rows], dtype=np.int64).reshape(-1, 2)
    count = int(np.floor(swap * sizes.sum() + 0.5))
    order = generator(seed, f"swap-{stream}").permutation(len(clients))  # who is first among equals
    for k, (of_first, of_second) in zip(order, _apportion(sizes[order], count), strict=True):
        after[rows[k][0][:of_first]] = pair[1]
        after[rows[k][1][:of_second]] = pair[0]
    return after


def _candidates(labels: Ints, bounds: Ints, client: int, pair: tuple[int, int], seed: int, stream: str) -> list[Ints]:
    """Of each of the two labels, the rows of a client in the order in which they are swapped."""
    rng = generator(seed, f"swap-{stream}", client)
    start, stop = bounds[client], bounds[client + 1]
    return [start + rng.permutation(np.flatnonzero(labels[start:stop] == label)) for label in pair]


def _apportion(sizes: Ints, count: int) -> Ints:
    """How many of `count` swapped samples each client has of each label, shape (clients, 2).

    They are handed out one by one, each to the client that must have the next one soonest, so that after m of M a
    client with n candidates has ⌊mn/M⌋ or ⌈mn/M⌉ (the quota method of Balinski and Young). Unlike with the method of
    the largest remainder, nobody loses one when there are more to hand out: strengths are nested. Within the client
    the same bounds hold for the labels, and between the two the group's label that is further behind goes first.
    """
    given = np.zeros_like(sizes)
    whole, of_client = sizes.sum(), sizes.sum(axis=1)
    of_label = np.maximum(sizes.sum(axis=0), 1)
    for m in range(1, count + 1):
        has = given.sum(axis=1)
        may = has * whole < m * of_client  # ⌈mn/M⌉ is not reached
        due = np.where(may, (has + 1) / np.maximum(of_client, 1), np.inf)
        client = int(np.argmin(due))
        allowed = given[client] * of_client[client] < (has[client] + 1) * sizes[client]
        behind = np.where(allowed, (given.sum(axis=0) + 1) / of_label, np.inf)
        given[client, np.argmin(behind)] += 1
    return given


def share_swapped(before: ArrayLike, after: ArrayLike, offsets: ArrayLike, groups: ArrayLike, pair: ArrayLike) -> float:
    """Return the share that was swapped of the second group's samples with one of the two labels; NaN without any."""
    old, new = np.asarray(before), np.asarray(after)
    bounds = np.asarray(offsets)
    second = np.repeat(group_array(groups, len(bounds) - 1), np.diff(bounds)) == 1
    candidates = second & np.isin(old, pair)
    return float(np.mean(old[candidates] != new[candidates])) if candidates.any() else float("nan")


def swap_text(swap: float, train: float, test: float, *, lines: bool = False) -> str:
    """Return the swap that was asked for and what it came to, "0.2 (0.20 train, 0.19 test)", as far as it is known."""
    achieved = [f"{share:.2f} {split}" for share, split in ((train, "train"), (test, "test")) if np.isfinite(share)]
    if lines:  # below each other, for the axis of a picture
        return "\n".join([f"{swap:g}", *achieved])
    return f"{swap:g}" + (f" ({', '.join(achieved)})" if achieved else "")


def group_array(groups: ArrayLike | None, num_clients: int) -> Ints:
    """Check a group array (N zeros and ones, or booleans); by default the second half of the clients is group 1."""
    if groups is None:
        return (np.arange(num_clients) >= num_clients // 2).astype(np.int64)
    array = np.asarray(groups)
    if array.shape != (num_clients,) or array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise fail("groups", groups, f"must be {num_clients} zeros and ones (1: the second, rare group)")
    return array.astype(np.int64)
