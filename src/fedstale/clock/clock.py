"""The virtual clock: who is there, who works on what until when, and what is next. Nothing sleeps.

The future of a piece of work is known when it begins: speeds and presence are functions of (seed, device, time). So
work ends in a reply, or in a loss where the device leaves before, and both are put into the queue at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail
from ..federation import Ints
from .availability import Always, Availability
from .devices import Devices, Stopwatch
from .events import Event, EventKind, EventQueue
from .ledger import Ledger, Outcome

_FOREVER = float("inf")


class Work(NamedTuple):
    """What a device is doing: from `start` to `end`, on the model of server step `version`."""

    device: int
    version: int
    start: float
    end: float
    replies: bool
    """whether it ends in a reply; otherwise the device leaves before"""
    number: int
    """pieces of work are counted"""
    up_bytes: float
    """what a reply sends"""


class Clock:
    """The time of a federation.

    Parameters
    ----------
    devices
        How fast the devices are.
    availability
        When they are there; None where somebody else says who is asked and nobody leaves (rounds).
    num_devices
        N.
    seed
        Decides speeds and presence.
    """

    def __init__(self, devices: Devices, availability: Availability | None, num_devices: int, seed: int = 0) -> None:
        self.availability, self.seed, self.num_devices = availability, seed, num_devices
        if availability is not None and availability.num_devices != num_devices:
            raise fail("availability", f"{availability.num_devices} devices", f"there are {num_devices} clients")
        self.stopwatch = Stopwatch(devices, seed, num_devices)
        self.now = 0.0
        self.work: dict[int, Work] = {}
        self.ledger = Ledger(num_devices)
        self._begun = 0
        self._queue = EventQueue()
        self._there = [True] * num_devices
        self._changes: list[float] = []
        if availability is not None:
            self._look_at_all()

    def _look_at_all(self) -> None:
        """Find out who is there now, and when that changes next."""
        availability = self.availability
        if availability is None or isinstance(availability, Always):
            return
        spans = [availability.span(self.seed, device, self.now) for device in range(self.num_devices)]
        self._there = [here for here, _ in spans]
        self._changes = [until for _, until in spans]
        self._refill()

    def _refill(self) -> None:
        """Make the queue of what is known: changes of presence, and ends of work."""
        events = [
            Event(time, EventKind.PRESENCE, device, 0) for device, time in enumerate(self._changes) if time < _FOREVER
        ]
        events += [_end(work) for work in self.work.values()]
        self._queue = EventQueue(events)

    def there(self, device: int) -> bool:
        """Whether a device is there now."""
        return self._there[device]

    @property
    def everybody_there(self) -> Ints:
        """The devices that are there now, sorted."""
        return np.flatnonzero(self._there).astype(np.int64)

    @property
    def queued(self) -> int:
        """How many events are in the queue, those of work that was called off included."""
        return len(self._queue)

    @property
    def idle(self) -> Float:
        """Seconds for which each device was there and did not work (on what has ended), shape (N,)."""
        if self._changes:
            here = np.where(self._there, self.now - self.ledger.since, 0.0)
            present = self.ledger.present + here
        else:
            present = self.ledger.present if self.availability is None else np.full(self.num_devices, self.now)
        under_way = np.zeros(self.num_devices)
        for work in self.work.values():
            under_way[work.device] = self.now - work.start
        return np.maximum(present - self.ledger.busy - under_way, 0.0)

    def ask(self, device: int, version: int, down_bytes: float, steps: float, up_bytes: float) -> Work:
        """Let a device begin to work now, and return what will come of it."""
        if device in self.work:
            raise fail("device", device, "is still at work: a device trains one model at a time")
        start = self.now
        end = start + self.stopwatch.seconds(device, start, down_bytes, steps, up_bytes)
        replies = True
        if self._changes:
            leaves = self._changes[device]
            if leaves < end and self.availability is not None:
                leaves = self.availability.stays(self.seed, device, start, end)
            if leaves < end:
                end, replies = leaves, False
        self._begun += 1
        work = Work(device, version, start, end, replies, self._begun, up_bytes)
        self.work[device] = work
        self._queue.push(_end(work))
        return work

    def call_off(self, device: int) -> None:
        """End a device's work now: what it has done is wasted."""
        work = self.work.pop(device)
        self.ledger.add(work, self.now, Outcome.DISCARDED)

    def next(self, before: float = _FOREVER) -> tuple[Event, Work | None] | None:
        """Go on to the next event until `before`; None, and the time is `before`, if there is none till then.

        The work that it ends is returned with it; to say what became of a reply is left to who gets it.
        """
        while self._queue.next_time <= before and len(self._queue):
            event = self._queue.pop()
            if event.kind is EventKind.PRESENCE:
                self.now = event.time
                self._look_again(event.device)
                return event, None
            work = self.work.get(event.device)
            if work is None or work.number != event.number:  # called off
                continue
            self.now = event.time
            del self.work[event.device]
            if event.kind is EventKind.LOST:
                self.ledger.add(work, self.now, Outcome.LOST)
            return event, work
        if before < _FOREVER:
            self.now = before
        return None

    def _look_again(self, device: int) -> None:
        if self.availability is None:
            raise RuntimeError("presence changes only where there is an availability")
        here, until = self.availability.span(self.seed, device, self.now)
        if self._there[device]:
            self.ledger.leaves(device, self.now)
        if here and not self._there[device]:
            self.ledger.comes(device, self.now)
        self._there[device], self._changes[device] = here, until
        if until < _FOREVER:
            self._queue.push(Event(until, EventKind.PRESENCE, device, 0))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that a checkpoint must hold."""
        work = sorted(self.work.values())
        return {
            "now": np.array([self.now]),
            "begun": np.array([self._begun], dtype=np.int64),
            "work_devices": np.array([w.device for w in work], dtype=np.int64),
            "work_versions": np.array([w.version for w in work], dtype=np.int64),
            "work_numbers": np.array([w.number for w in work], dtype=np.int64),
            "work_replies": np.array([w.replies for w in work], dtype=np.bool_),
            "work_times": np.array([(w.start, w.end, w.up_bytes) for w in work]).reshape(len(work), 3),
            "there": np.array(self._there, dtype=np.bool_),
            "changes": np.array(self._changes),
            **{f"ledger_{name}": array for name, array in self.ledger.arrays().items()},
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `arrays` returned: the queue is made again."""
        self.now, self._begun = float(arrays["now"][0]), int(arrays["begun"][0])
        names = ("work_devices", "work_versions", "work_replies", "work_numbers")
        rows: Iterable[Any] = zip(
            *(arrays[name].tolist() for name in names), arrays["work_times"].tolist(), strict=True
        )
        self.work = {
            device: Work(device, version, start, end, replies, number, up_bytes)
            for device, version, replies, number, (start, end, up_bytes) in rows
        }
        self._there, self._changes = arrays["there"].tolist(), arrays["changes"].tolist()
        if len(self._there) != self.num_devices or len(self._changes) not in (0, self.num_devices):
            raise fail("checkpoint", f"{len(self._there)} devices", f"there are {self.num_devices} clients")
        prefix = "ledger_"
        self.ledger.restore({name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)})
        self._refill()


def _end(work: Work) -> Event:
    return Event(work.end, EventKind.REPLY if work.replies else EventKind.LOST, work.device, work.number)
