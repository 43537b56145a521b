"""The batches ξ_i^(t,k) of Algorithm 1: all of a round drawn at once, each client's from a stream of its own.

A client's batches are a function of (seed, round, client). They depend neither on the engine nor on who else
takes part, in which order, or in how many processes. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..checks import fail
from ..federation import Ints
from ..randomness import generator
from .local import LocalTraining


@dataclass(frozen=True, eq=False)
class Batches:
    """Which samples each of a round's clients trains on.

    Parameters
    ----------
    rows
        Sample numbers in the training split, shape (|S|, K, B).
    sizes
        How many of the B places are filled, shape (|S|, K): clients whose epochs have fewer steps or a smaller last
        batch leave places empty (their rows are 0). None when every place is filled.
    noise
        One seed per client, shape (|S|,), for models that draw numbers themselves (dropout).
    """

    rows: Ints
    sizes: Ints | None = None
    noise: Ints | None = None

    @property
    def steps(self) -> Ints:
        """Local steps of each client, shape (|S|,)."""
        if self.sizes is None:
            return np.full(len(self.rows), self.rows.shape[1], dtype=np.int64)
        return np.asarray((self.sizes > 0).sum(axis=1), dtype=np.int64)


def draw(
    training: LocalTraining, offsets: Ints, clients: Ints, round: int, seed: int, *, noise: bool = False
) -> Batches:
    """Draw the batches of one round.

    Parameters
    ----------
    training
        How many, how large, with or without replacement.
    offsets
        Client i's samples are offsets[i] … offsets[i+1] − 1.
    clients
        The round's participants S, shape (|S|,).
    round, seed
        Where in which run.
    noise
        Whether to draw `Batches.noise` too.
    """
    first = offsets[clients]
    counts = offsets[clients + 1] - first
    streams = [generator(seed, "batches", round, client) for client in clients.tolist()]
    _refuse(training, clients, counts)
    if training.epochs is None:
        batches = _steps(training, counts, streams)
    else:
        batches = _epochs(training.epochs, training.batch_size, counts, streams)
    rows = batches.rows
    rows += first[:, None, None]
    if batches.sizes is not None:
        rows[np.arange(rows.shape[2]) >= batches.sizes[:, :, None]] = 0
    if not noise:
        return batches
    seeds = np.array([stream.integers(2**63 - 1) for stream in streams], dtype=np.int64)
    return Batches(rows, batches.sizes, seeds)


def _refuse(training: LocalTraining, clients: Ints, counts: Ints) -> None:
    distinct = training.epochs is None and not training.replacement
    small = np.flatnonzero(counts < (training.batch_size if distinct else 1))
    if small.size:
        client, count = int(clients[small[0]]), int(counts[small[0]])
        remedy = "use a smaller batch, replacement=True or epochs" if count else "every client needs some"
        raise fail("batch_size", training.batch_size, f"client {client} has {count} training samples: {remedy}")


def _steps(training: LocalTraining, counts: Ints, streams: list[np.random.Generator]) -> Batches:
    shape = (training.steps or 0, training.batch_size)
    rows = np.empty((len(counts), *shape), dtype=np.int64)
    for own, count, stream in zip(rows, counts.tolist(), streams, strict=True):
        if training.replacement:
            own[:] = stream.integers(count, size=shape)
        else:
            for batch in own:
                batch[:] = stream.choice(count, shape[1], replace=False, shuffle=False)
    return Batches(rows)


def _epochs(epochs: int, batch_size: int, counts: Ints, streams: list[np.random.Generator]) -> Batches:
    width = int(min(batch_size, counts.max(initial=1)))
    per_epoch = -(-counts // width)
    steps = epochs * int(per_epoch.max(initial=0))
    rows = np.zeros((len(counts), steps, width), dtype=np.int64)
    sizes = np.zeros((len(counts), steps), dtype=np.int64)
    for i, (count, stream) in enumerate(zip(counts.tolist(), streams, strict=True)):
        full = np.full(int(per_epoch[i]), width)
        full[-1] = count - width * (len(full) - 1)
        for epoch in range(epochs):
            here = slice(epoch * len(full), (epoch + 1) * len(full))
            sizes[i, here] = full
            rows[i, here].reshape(-1)[:count] = stream.permutation(count)
    return Batches(rows, None if (sizes == width).all() else sizes)
