"""What a client does with the model it is sent: the local part of Algorithm 1 of the paper.

w ← w − η_c · schedule(t) · (∇F_i(w; ξ) + weight decay · w), K times or for E epochs. NumPy only, so that configs
can be checked without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..checks import fail, number, positive_int, unknown

Schedule = Callable[[int], float]
"""The factor on the learning rate in a round."""

DEFAULT_STEPS = 5
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
        False: the samples of a batch are distinct, which needs clients with at least B of them. Of no meaning for
        epochs.
    momentum
        Of the local optimiser; it starts from zero in every round, as clients keep no state between rounds.
    weight_decay
        Added to the gradient times w, as torch.optim.SGD does. (The authors' released code uses 5e-4.)
    schedule
        The factor on `lr` in round t (from 0): "constant"; "cosine:T", ½(1 + cos(πt/T)), 0 from round T on;
        "step:EVERY:FACTOR", FACTOR^⌊t/EVERY⌋; "inverse-sqrt", 1/√(1+t); or a function of t.
    """

    lr: float
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 128
    replacement: bool = True
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str | Schedule = "constant"

    def __post_init__(self) -> None:
        number("lr", self.lr, 0.0, open_low=True)
        if self.steps is not None and self.epochs is not None:
            raise fail("steps, epochs", (self.steps, self.epochs), "give one of the two, and None for the other")
        if self.epochs is not None:
            positive_int("epochs", self.epochs)
        elif self.steps is None:
            object.__setattr__(self, "steps", DEFAULT_STEPS)
        else:
            positive_int("steps", self.steps)
        positive_int("batch_size", self.batch_size)
        if number("momentum", self.momentum, 0.0, 1.0) == 1.0:
            raise fail("momentum", self.momentum, "must be below 1")
        number("weight_decay", self.weight_decay, 0.0)
        if isinstance(self.schedule, str):
            parse_schedule(self.schedule)
        elif not callable(self.schedule):
            raise fail("schedule", self.schedule, "must be a name or a function of the round")

    def rate(self, round: int) -> float:
        """Return the learning rate of a round."""
        schedule = parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule
        return self.lr * number(f"schedule({round})", schedule(round), 0.0)


def parse_schedule(text: str) -> Schedule:
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
