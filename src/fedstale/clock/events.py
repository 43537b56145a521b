"""What happens when: a queue of events in one total order.

Events are ordered by time, then by kind, then by device. A device has at most one event of each kind, so no two events
are equal, and the order in which events were put in says nothing about the order in which they come out: equal times
give the same run whatever the interleaving. Everything in the queue follows from what the devices are doing, so that a
checkpoint does not hold the queue: it is made again.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class EventKind(IntEnum):
    """What may happen, in the order in which events of the same time happen.

    Presence first: who leaves at a moment is not asked in it.
    """

    PRESENCE = 0
    """a device comes or leaves (or it is time to look again)"""
    REPLY = 1
    """a device's update has reached the server"""
    LOST = 2
    """a device left before its update had reached the server"""


class Event(NamedTuple):
    """Something happens."""

    time: float
    kind: EventKind
    device: int
    number: int
    """which piece of work it ends, so that the end of work that was called off can be told from another"""


class EventQueue:
    """A heap of events; a million of them go through it in a few seconds."""

    def __init__(self, events: list[Event] | None = None) -> None:
        self._heap: list[Event] = list(events or ())
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, event: Event) -> None:
        """Put an event in."""
        heappush(self._heap, event)

    def pop(self) -> Event:
        """Take the next event out."""
        return heappop(self._heap)

    @property
    def next_time(self) -> float:
        """When the next event is; infinity where there is none."""
        return self._heap[0].time if self._heap else float("inf")
