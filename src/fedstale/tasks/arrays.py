"""One table of samples whose rows name their clients, as the splits of a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..checks import fail, is_missing, number, positive_int
from ..randomness import generator
from .client_data import ClientData, Values, each, single, tensors
from .samples import as_tensors, check_finite, target_tensors
from .scores import Loss

Ints = NDArray[np.int64]


def split(
    x: Any, y: Any, clients: ArrayLike, test: tuple[Any, Any, ArrayLike] | None, test_share: float, seed: int
) -> tuple[ClientData, ClientData, tuple[str, ...]]:
    """Return the training split, the test split and the clients' names, see `Task.from_arrays`."""
    number("test_share", test_share, 0.0, 1.0)
    positive_int("seed", seed, 0)
    inputs, targets, owners = _table(x, y, clients, "")
    names, index = np.unique(owners, return_inverse=True)
    if test is None:
        train_rows, test_rows = held_out(index, len(names), test_share, seed)
        tested = by_client(inputs, targets, index, len(names), test_rows)
        train = by_client(inputs, targets, index, len(names), train_rows)
    else:
        if not isinstance(test, tuple) or len(test) != 3:
            raise fail("test", type(test).__name__, "must be (x, y, clients)")
        test_inputs, test_targets, test_owners = _table(*test, "test: ")
        if (names.dtype.kind in "iub") != (test_owners.dtype.kind in "iub"):
            raise fail("test", f"clients of {test_owners.dtype}", f"must be of the kind of the others, {names.dtype}")
        if (strangers := np.setdiff1d(test_owners, names)).size:
            raise fail("test", str(strangers[0]), "is a client without training samples")
        train = by_client(inputs, targets, index, len(names), np.arange(len(index)))
        theirs = np.searchsorted(names, test_owners)
        tested = by_client(test_inputs, test_targets, theirs, len(names), np.arange(len(theirs)))
    return train, tested, tuple(str(name) for name in names)


def _table(x: Any, y: Any, clients: ArrayLike, where: str) -> tuple[Values, Values, NDArray[Any]]:
    inputs, targets = as_tensors(x, f"{where}x"), target_tensors(y, f"{where}y")
    owners = np.asarray(clients)
    if owners.dtype.kind == "f" and owners.size:
        allowed = 'must be integers or names: clients.astype("int64"), once rows without a client are left out'
        raise fail(f"{where}clients", f"{owners.dtype}", allowed)
    if owners.ndim != 1 or owners.size == 0 or owners.dtype.kind not in "iubUSO":
        raise fail(f"{where}clients", f"array of shape {owners.shape}, {owners.dtype}", "must be one name per sample")
    if owners.dtype.kind == "O":
        place = next((place for place, owner in enumerate(owners) if is_missing(owner)), None)
        if place is not None:
            raise fail(f"{where}clients[{place}]", None, "whose this row is is missing: name it, or leave the row out")
        # Integers as such, whatever pandas keeps them in: as text, 10 would come before 2.
        owners = owners.astype(np.int64 if all(map(_is_integer, owners)) else str)
    for argument, values in (("x", inputs), ("y", targets)):
        for tensor in tensors(values).values():
            if tensor.ndim == 0 or len(tensor) != len(owners):
                allowed = f"must have a row for each of the {len(owners)} samples that clients names"
                raise fail(f"{where}{argument}", f"shape {tuple(tensor.shape)}", allowed)
        check_finite(values, f"{where}{argument}")
    return inputs, targets, owners


def _is_integer(owner: Any) -> bool:
    return isinstance(owner, (int, np.integer)) and not isinstance(owner, bool) and -(2**63) <= int(owner) < 2**63


def held_out(owners: Ints, count: int, share: float, seed: int) -> tuple[Ints, Ints]:
    """Draw each client's test samples: round(share · n_i) of them, and never all."""
    test = np.zeros(len(owners), dtype=bool)
    for client in range(count):
        rows = np.flatnonzero(owners == client)
        wanted = min(round(share * len(rows)), len(rows) - 1)
        test[generator(seed, "held-out", client).permutation(rows)[:wanted]] = True
    if not test.any():
        raise fail("test_share", share, "leaves no client with a test sample: use more, or give test=(x, y, clients)")
    return np.flatnonzero(~test), np.flatnonzero(test)


def by_client(x: Values, y: Values, owners: Ints, count: int, rows: Ints) -> ClientData:
    """Put some rows into the order of their clients; rows that are all and in order are not copied."""
    order = rows[np.argsort(owners[rows], kind="stable")]
    sizes = np.bincount(owners[rows], minlength=count)

    def pick(tensor: Tensor) -> Tensor:
        whole = len(order) == len(tensor) and np.array_equal(order, np.arange(len(order)))
        return tensor if whole else tensor.index_select(0, torch.from_numpy(order))

    return ClientData(each(x, pick), each(y, pick), np.concatenate([[0], np.cumsum(sizes)]))


def as_numbers(split: ClientData) -> ClientData:
    """Return a split whose inputs are numbers with a fraction, as a linear model computes with them."""
    return ClientData(each(split.x, lambda x: x.to(torch.float32)), split.y, split.offsets)


def linear_model(train: ClientData, test: ClientData) -> Callable[[], nn.Module]:
    """Return what makes a linear model for the data: scores of classes, or as many numbers as a target has.

    A class counts though only test samples have it: which ones are held out is drawn.
    """
    x, y = single(train.x), single(train.y)
    if x is None or y is None:
        raise fail("model", None, "must be given where inputs or targets are not one array")
    inputs = int(np.prod(x.shape[1:]))
    if y.dtype == torch.int64 and y.ndim == 1:
        classes = 1 + max(int(part.max()) for part in (y, single(test.y)) if part is not None and len(part))
        return partial(_linear, inputs, max(2, classes))
    return partial(_linear, inputs, int(np.prod(y.shape[1:])), tuple(y.shape[1:]))


def _linear(inputs: int, outputs: int, shape: tuple[int, ...] | None = None) -> nn.Module:
    """Scores (n, outputs), or numbers in the shape of the targets, (n, *shape)."""
    linear = [nn.Flatten(), nn.Linear(inputs, outputs)]
    if shape is None:
        return nn.Sequential(*linear)
    return nn.Sequential(*linear, nn.Unflatten(1, shape) if shape else nn.Flatten(0))


def usual_loss(train: ClientData) -> Loss:
    """Return cross-entropy for classes, the squared error for numbers."""
    y = single(train.y)
    if y is None:
        raise fail("loss", None, "must be given where there are several targets")
    return functional.mse_loss if y.is_floating_point() else functional.cross_entropy
