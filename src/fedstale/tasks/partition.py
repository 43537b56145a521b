"""Which client holds which samples: the first step of the paper's data set-up (Section 5.1), and the usual others.

Every function returns one index array per client. No sample is used twice, no client is left without one, and
the result is a function of its arguments (`fedstale.randomness`), never of what was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import choose, client_count, fail, number, positive_int
from ..randomness import generator

__all__ = ["dirichlet", "iid", "pathological", "split"]

Ints = NDArray[np.int64]

_DIRICHLET_DRAWS = 100
OPTIONS: dict[str, tuple[str, ...]] = {"iid": (), "dirichlet": ("alpha",), "pathological": ("classes_per_client",)}


def split(
    labels: ArrayLike,
    num_clients: int,
    how: str | Sequence[ArrayLike] = "iid",
    *,
    seed: int = 0,
    share: float = 1.0,
    stream: str = "train",
    **options: Any,
) -> list[Ints]:
    """Share samples out among clients.

    Parameters
    ----------
    labels
        The class of every sample, shape (n,).
    num_clients
        N.
    how
        "iid", "dirichlet" (option `alpha`, default 0.5), "pathological" (option `classes_per_client`, default 2),
        or the index lists themselves.
    seed
        The run's seed.
    share
        The part of the samples that is used at all, drawn at random first (the paper's authors use 0.2). Ignored
        with index lists.
    stream
        Keeps the draws of several splits (train, test) of one seed apart.
    """
    classes = _labels(labels)
    client_count("num_clients", num_clients)
    if not isinstance(how, str):
        return _from_lists(how, len(classes), num_clients)
    number("share", share, 0.0, 1.0, open_low=True)
    used = _subset(len(classes), share, seed, stream)
    check_options(how, options)
    if how == "iid":
        parts = iid(len(used), num_clients, seed, stream)
    elif how == "dirichlet":
        parts = dirichlet(classes[used], num_clients, seed=seed, stream=stream, **options)
    else:
        parts = pathological(classes[used], num_clients, seed=seed, stream=stream, **options)
    return [used[part] for part in parts]


def _subset(size: int, share: float, seed: int = 0, stream: str = "train") -> Ints:
    """Return the sorted indices of a random part of `size` samples: round(share · size) of them."""
    if share == 1.0:
        return np.arange(size, dtype=np.int64)
    drawn = generator(seed, f"share-{stream}").permutation(size)[: round(share * size)]
    return np.sort(drawn).astype(np.int64)


def iid(size: int, num_clients: int, seed: int = 0, stream: str = "train") -> list[Ints]:
    """Shuffle and cut into N parts whose sizes differ by at most one."""
    if size < num_clients:
        raise fail("num_clients", num_clients, f"there are only {size} samples: every client needs at least one")
    order = generator(seed, f"partition-{stream}").permutation(size).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, num_clients)]


def dirichlet(
    labels: ArrayLike, num_clients: int, alpha: float = 0.5, seed: int = 0, stream: str = "train"
) -> list[Ints]:
    """Share every class out by proportions drawn from a symmetric Dirichlet(α); a small α makes clients differ.

    A draw that leaves a client without samples is drawn anew, up to _DIRICHLET_DRAWS times; then it is an error.
    All samples are used.
    """
    classes = _labels(labels)
    alpha = number("alpha", alpha, 0.0, open_low=True)
    if len(classes) < num_clients:
        raise fail(
            "num_clients",
            num_clients,
            f"there are only {len(classes)} samples: every client needs at least one",
        )
    for draw in range(_DIRICHLET_DRAWS):
        rng = generator(seed, f"partition-{stream}", draw)
        pieces: list[list[Ints]] = [[] for _ in range(num_clients)]
        for label in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == label))
            shares = rng.dirichlet(np.full(num_clients, alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for client, piece in enumerate(np.split(members, cuts)):
                pieces[client].append(piece)
        parts = [np.sort(np.concatenate(piece)) for piece in pieces]
        if min(len(part) for part in parts) > 0:
            return parts
    allowed = (
        f"in {_DIRICHLET_DRAWS} draws, some of the {num_clients} clients had no samples: use more, or fewer clients"
    )
    raise fail("alpha", alpha, allowed)


def pathological(
    labels: ArrayLike, num_clients: int, classes_per_client: int = 2, seed: int = 0, stream: str = "train"
) -> list[Ints]:
    """Give every client exactly k classes; a class is cut evenly among the clients that have it.

    Classes go to clients so that each is held by as many clients as any other (give or take one). When N·k is
    less than the number of classes, some classes are held by nobody and their samples are not used.
    """
    classes = _labels(labels)
    known = np.unique(classes)
    positive_int("classes_per_client", classes_per_client)
    if classes_per_client > len(known):
        raise fail("classes_per_client", classes_per_client, f"there are only {len(known)} classes")
    rng = generator(seed, f"partition-{stream}")
    holders: list[list[int]] = [[] for _ in known]
    for client in rng.permutation(num_clients):
        # The least held classes first, ties broken at random: this is what keeps the classes balanced.
        held = np.array([len(clients) for clients in holders])
        for place in np.lexsort((rng.random(len(known)), held))[:classes_per_client]:
            holders[place].append(int(client))
    pieces: list[list[Ints]] = [[] for _ in range(num_clients)]
    for label, clients in zip(known, holders, strict=True):
        members = rng.permutation(np.flatnonzero(classes == label))
        if len(members) < len(clients):
            allowed = (
                f"class {label} has {len(members)} samples for {len(clients)} clients: use fewer clients or classes"
            )
            raise fail("classes_per_client", classes_per_client, allowed)
        if clients:
            for client, piece in zip(clients, np.array_split(members, len(clients)), strict=True):
                pieces[client].append(piece)
    return [np.sort(np.concatenate(piece)).astype(np.int64) for piece in pieces]


def _from_lists(lists: Sequence[ArrayLike], size: int, num_clients: int) -> list[Ints]:
    """Check index lists that come from outside: one per client, none empty, no sample twice."""
    if len(lists) != num_clients:
        raise fail(
            "partition",
            f"{len(lists)} index lists",
            f"must be one list for each of the {num_clients} clients",
        )
    parts = []
    owner = np.full(size, -1, dtype=np.int64)
    for client, indices in enumerate(lists):
        array = np.asarray(indices)
        where = f"partition[{client}]"
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise fail(where, indices, "must be a non-empty one-dimensional list of sample indices")
        part = array.astype(np.int64)
        if part.min() < 0 or part.max() >= size:
            bad = part[(part < 0) | (part >= size)][0]
            raise fail(where, int(bad), f"sample indices must lie in 0 … {size - 1}")
        taken = part[owner[part] >= 0]
        if taken.size or len(np.unique(part)) != len(part):
            values, counts = np.unique(part, return_counts=True)
            bad = taken[0] if taken.size else values[counts > 1][0]
            raise fail(where, int(bad), "a sample may be used only once")
        owner[part] = client
        parts.append(part)
    return parts


def _labels(labels: ArrayLike) -> NDArray[Any]:
    classes = np.asarray(labels)
    if classes.ndim != 1 or classes.dtype.kind not in "iu":
        raise fail("labels", f"array of shape {classes.shape}, {classes.dtype}", "must be a list of integers")
    return classes


def check_options(how: str | Sequence[ArrayLike], options: dict[str, Any]) -> None:
    """Check the name of a partition and that it takes these options."""
    known = choose("partition", how, OPTIONS) if isinstance(how, str) else ()
    for option, value in options.items():
        if option not in known:
            name = how if isinstance(how, str) else "given"
            raise fail(
                option, value, f"is not an option of the {name} partition (options: {', '.join(known) or 'none'})"
            )
