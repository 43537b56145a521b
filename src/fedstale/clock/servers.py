"""When a server steps: after a round with a deadline, or whenever enough replies have come.

Synchronous   asks at the beginning of a round, and steps when all have answered, when `wait_for` have, or at the
              deadline; who has not answered by then is late
Buffered      keeps devices at work all the time, and steps when `size` replies have come (FedBuff)
Asynchronous  steps with every reply: a buffer of one
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..checks import fail, number, positive_int


@dataclass(frozen=True, kw_only=True)
class Server:
    """What all servers have in common.

    Parameters
    ----------
    deadline
        Seconds after which a server steps with what it has; default: it waits.
    """

    deadline: float | None = None

    name: ClassVar[str]
    """The name in configs and on the command line."""

    def __post_init__(self) -> None:
        if self.deadline is not None:
            number("deadline", self.deadline, 0.0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class Synchronous(Server):
    """Rounds: ask, wait, step.

    Parameters
    ----------
    wait_for
        k: the round ends with the k-th reply; default: when all who were asked have answered.
    over_select
        Ask ⌈(1 + over_select)·k⌉ of the available devices, drawn uniformly, instead of those whom the selection asks;
        needs `wait_for`.
    late
        What becomes of replies after their round: "remember" lets the devices finish, and a rule with a memory stores
        their updates; "discard" calls the work off when the round ends. Rules without a memory cannot remember.
    """

    wait_for: int | None = None
    over_select: float | None = None
    late: Literal["remember", "discard"] = "remember"

    name: ClassVar[str] = "synchronous"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_for is not None:
            positive_int("wait_for", self.wait_for)
        if self.over_select is not None:
            number("over_select", self.over_select, 0.0)
            if self.wait_for is None:
                raise fail("over_select", self.over_select, "needs wait_for, the number of replies that are enough")
        if self.late not in ("remember", "discard"):
            raise fail("late", self.late, 'must be "remember" or "discard"')

    @property
    def sample(self) -> int | None:
        """How many devices are asked; None where the selection says so."""
        if self.over_select is None or self.wait_for is None:
            return None
        return math.ceil((1.0 + self.over_select) * self.wait_for - 1e-9)


@dataclass(frozen=True, kw_only=True)
class Buffered(Server):
    """Devices work all the time, each from the newest model at the time it is asked; K replies make a step.

    A device whose reply waits in the buffer is asked again after the step: before, there is no newer model.

    Parameters
    ----------
    size
        K.
    concurrency
        How many devices work at a time, drawn uniformly from those that are there and idle; default: all of them.
    """

    size: int = 10
    concurrency: int | None = None

    name: ClassVar[str] = "buffered"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("size", self.size)
        if self.concurrency is not None:
            positive_int("concurrency", self.concurrency)


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Buffered):
    """Every reply is a step."""

    size: int = 1

    name: ClassVar[str] = "asynchronous"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size != 1:
            raise fail("size", self.size, "an asynchronous server steps with every reply: use Buffered")
