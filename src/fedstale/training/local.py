"""What a client does with the model it is sent: the local part of Algorithm 1 of the paper.

w ← w − η_c · schedule(t) · (∇F_i(w; ξ) + weight decay · w), K times or for E epochs. All batches ξ of a round are drawn
at once, each client's from its own stream: they are a function of (seed, round, client), and depend neither on the
engine nor on who else takes part, in which order or in how many processes. NumPy only, so that configs can be checked
without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..checks import InvalidInput, fail, number, positive_int, unknown
from ..federation import Ints
from ..randomness import generator

Schedule = Callable[[int], float]
"""The factor on the learning rate in a round."""
SGD = "sgd"
"""The paper's local optimiser."""

_DEFAULT_STEPS = 5
"""K in the paper's experiments."""


@dataclass(frozen=True)
class LocalTraining:
    """The hyper-parameters of local training.

    Parameters
    ----------
    lr
        η_c, the client learning rate.
    steps
        K, the number of local steps; default 5, unless `epochs` is given.
    epochs
        E passes over the client's data instead: each pass goes through the shuffled samples in batches of
        `batch_size`, the last one smaller where they do not divide. Clients then differ in their number of steps.
    batch_size
        B.
    replacement
        How a batch of a step is drawn; batches of different steps are independent in either case. True, the
        default, is the paper's "sample data iid": a sample may appear twice, and any client can fill any batch.
        False: the samples of a batch are distinct, which needs clients with at least B of them. Ignored with
        epochs.
    momentum
        Of the local optimiser; it starts from zero in every round, as clients keep no state between rounds.
    weight_decay
        Added to the gradient times w, as torch.optim.SGD does. (The authors' released code uses 5e-4.)
    schedule
        The factor on `lr` in round t (from 0): "constant"; "cosine:T", ½(1 + cos(πt/T)), 0 from round T on;
        "step:EVERY:FACTOR", FACTOR^⌊t/EVERY⌋; "inverse-sqrt", 1/√(1+t); or a function of t.
    optimizer
        "sgd", another optimiser of torch such as "adam", or a function of (parameters, rate) that makes one.
        It starts anew in every round, as clients keep no state between rounds.
    optimizer_options
        Its options, such as {"betas": (0.9, 0.99)}.
    clip_gradient
        The largest ℓ2 norm of the gradient of the loss in a step; longer ones are shortened. None: any.
    """

    lr: float
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 128
    replacement: bool = True
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str | Schedule = "constant"
    optimizer: str | Callable[..., Any] = SGD
    optimizer_options: Mapping[str, Any] | None = None
    clip_gradient: float | None = None

    def __post_init__(self) -> None:
        number("lr", self.lr, 0.0, open_low=True)
        if self.steps is not None and self.epochs is not None:
            raise fail("steps, epochs", (self.steps, self.epochs), "give only one of the two")
        if self.epochs is not None:
            positive_int("epochs", self.epochs)
        elif self.steps is None:
            object.__setattr__(self, "steps", _DEFAULT_STEPS)
        else:
            positive_int("steps", self.steps)
        positive_int("batch_size", self.batch_size)
        if number("momentum", self.momentum, 0.0, 1.0) == 1.0:
            raise fail("momentum", self.momentum, "must be below 1")
        number("weight_decay", self.weight_decay, 0.0)
        if isinstance(self.schedule, str):
            _parse_schedule(self.schedule)
        elif not callable(self.schedule):
            raise fail("schedule", self.schedule, "must be a name or a function of the round")
        if not isinstance(self.optimizer, str) and not callable(self.optimizer):
            raise fail("optimizer", self.optimizer, "must be a name or a function of (parameters, rate)")
        if isinstance(self.optimizer, str) and self.optimizer.lower() == SGD:  # names count in any case
            object.__setattr__(self, "optimizer", SGD)
        if self.momentum and self.optimizer != SGD:
            raise fail("momentum", self.momentum, "is of sgd: other optimisers have options of their own")
        if self.weight_decay and not isinstance(self.optimizer, str):
            raise fail("weight_decay", self.weight_decay, "an optimiser of your own sets its own weight decay")
        if self.clip_gradient is not None:
            number("clip_gradient", self.clip_gradient, 0.0, open_low=True)

    @property
    def plain(self) -> bool:
        """Whether a step is w ← w − η (gradient + weight decay · w), with momentum at most: what `Descent` does."""
        return self.optimizer == SGD and not self.optimizer_options and self.clip_gradient is None

    def rate(self, round: int) -> float:
        """Return the learning rate of a round."""
        schedule = _parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule
        return self.lr * number(f"schedule({round})", schedule(round), 0.0)


@lru_cache
def _parse_schedule(text: str) -> Schedule:
    """Read "constant", "cosine:T", "step:EVERY:FACTOR" or "inverse-sqrt"."""
    name, *options = text.split(":")
    forms = {"constant": "constant", "cosine": "cosine:T", "step": "step:EVERY:FACTOR", "inverse-sqrt": "inverse-sqrt"}
    if name not in forms:
        raise unknown("schedule", name, forms)
    wrong = fail("schedule", text, f"must have the form {forms[name]}, with T and EVERY positive integers, FACTOR > 0")
    if len(options) != forms[name].count(":"):
        raise wrong
    try:
        period = int(options[0]) if options else 1
        factor = float(options[1]) if len(options) > 1 else 1.0
    except ValueError:
        raise wrong from None
    if period < 1 or not (math.isfinite(factor) and factor > 0):
        raise wrong
    schedules: dict[str, Schedule] = {
        "constant": lambda t: 1.0,
        "cosine": lambda t: 0.5 * (1.0 + math.cos(math.pi * min(t, period) / period)),
        "step": lambda t: factor ** (t // period),
        "inverse-sqrt": lambda t: 1.0 / math.sqrt(1.0 + t),
    }
    return schedules[name]


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
    distinct = training.epochs is None and not training.replacement
    small = np.flatnonzero(counts < (training.batch_size if distinct else 1))
    if small.size:
        raise _too_few(training.batch_size, int(clients[small[0]]), int(counts[small[0]]))
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


def _too_few(batch_size: int, client: int, count: int) -> InvalidInput:
    remedy = "use a smaller batch, replacement=True or epochs" if count else "every client needs at least one"
    return fail("batch_size", batch_size, f"client {client} has {count} training samples: {remedy}")


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


def steps_of(training: LocalTraining, counts: Ints) -> Ints:
    """Return the local steps K_i of clients that have so many samples, without drawing their batches."""
    if training.epochs is None:
        return np.full(len(counts), training.steps or 0, dtype=np.int64)
    return np.asarray(training.epochs * _epoch(training.batch_size, counts)[1], dtype=np.int64)


def smallest_batches(training: LocalTraining, counts: Ints) -> Ints:
    """Return the size of the smallest batch of clients that have so many samples."""
    if training.epochs is None:
        return np.full(len(counts), training.batch_size, dtype=np.int64)
    return np.asarray((counts - 1) % training.batch_size + 1, dtype=np.int64)


def _epoch(batch_size: int, counts: Ints) -> tuple[int, Ints]:
    """Return the width of the batches and how many of them each client has in an epoch."""
    width = int(min(batch_size, counts.max(initial=1)))
    return width, -(-counts // width)


def _epochs(epochs: int, batch_size: int, counts: Ints, streams: list[np.random.Generator]) -> Batches:
    width, per_epoch = _epoch(batch_size, counts)
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
