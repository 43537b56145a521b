"""When devices are there: always, in given intervals, or as a participation process says, slot by slot.

An availability answers one question: is device i there at time s, and until when is that sure? What follows after it is
asked again. The answer is a function of (seed, device, time).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, InvalidInput, client_count, fail, number
from ..federation import Ints
from ..participation import Process, Trace

_SLOTS = 64
"""Slots of a process that are looked at together."""
_BLOCKS = 3
"""Blocks of slots that are kept."""


class Availability(ABC):
    """When the devices of a federation are there."""

    num_devices: int

    @abstractmethod
    def span(self, seed: int, device: int, time: float) -> tuple[bool, float]:
        """Return whether the device is there at a time, and until when (later than `time`) this surely lasts."""

    def stays(self, seed: int, device: int, time: float, wanted: float) -> float:
        """Return when a device that is there at `time` leaves; some time from `wanted` on if it stays that long."""
        here, until = self.span(seed, device, time)
        if not here:
            return time
        while until < wanted:
            here, later = self.span(seed, device, until)
            if not here:
                break
            until = later
        return until


@dataclass(frozen=True)
class Always(Availability):
    """Everybody is always there."""

    num_devices: int

    def __post_init__(self) -> None:
        client_count("num_devices", self.num_devices)

    def span(self, seed: int, device: int, time: float) -> tuple[bool, float]:
        """For ever."""
        return True, float("inf")


@dataclass(frozen=True, eq=False)
class Intervals(Availability):
    """Each device is there in intervals [begin, end) of time; before, between and after them it is not.

    Parameters
    ----------
    num_devices
        N.
    devices, begins, ends
        The intervals, three arrays of equal length in any order; those of a device must not overlap.
    """

    num_devices: int
    devices: ArrayLike
    begins: ArrayLike
    ends: ArrayLike

    def __post_init__(self) -> None:
        n = client_count("num_devices", self.num_devices)
        devices: Ints = np.asarray(self.devices, dtype=np.int64)
        begins: Float = np.asarray(self.begins, dtype=np.float64)
        ends: Float = np.asarray(self.ends, dtype=np.float64)
        if not devices.shape == begins.shape == ends.shape or devices.ndim != 1:
            raise fail("ends", f"array of shape {ends.shape}", "devices, begins and ends must be equally long")
        if devices.size and (devices.min() < 0 or devices.max() >= n):
            raise fail("devices", int(devices.max()), f"must lie in 0 … {n - 1}")
        if not (np.isfinite(begins).all() and (ends > begins).all()):
            raise fail("ends", self.ends, "every interval must end after it begins")
        order = np.lexsort((begins, devices))
        devices, begins, ends = devices[order], begins[order], ends[order]
        if ((devices[1:] == devices[:-1]) & (begins[1:] < ends[:-1])).any():
            raise fail("begins", self.begins, "intervals of a device must not overlap")
        bounds = np.searchsorted(devices, np.arange(n + 1))
        for name, value in (("devices", devices), ("begins", begins), ("ends", ends), ("_bounds", bounds)):
            object.__setattr__(self, name, value)

    _bounds: ClassVar[Ints]

    def span(self, seed: int, device: int, time: float) -> tuple[bool, float]:
        """Look the time up among the device's intervals; the seed plays no part."""
        low, high = int(self._bounds[device]), int(self._bounds[device + 1])
        begins, ends = np.asarray(self.begins)[low:high], np.asarray(self.ends)[low:high]
        k = int(np.searchsorted(begins, time, side="right"))
        if k and time < ends[k - 1]:
            return True, float(ends[k - 1])
        return False, float(begins[k]) if k < len(begins) else float("inf")


class Slots(Availability):
    """A participation process in time: one of its rounds lasts so many seconds.

    A trace, half-hour by half-hour, is such a process; so are Markov chains and diurnal windows.

    Parameters
    ----------
    process
        Who is there in each slot.
    seconds
        How long a slot lasts.
    """

    def __init__(self, process: Process, seconds: float) -> None:
        self.process = process
        self.seconds = number("seconds", seconds, 0.0, open_low=True)
        self.num_devices = process.num_clients
        self._blocks: OrderedDict[tuple[int, int], NDArray[np.bool_]] = OrderedDict()

    def span(self, seed: int, device: int, time: float) -> tuple[bool, float]:
        """Look for the first slot in which it is otherwise, among those that are known together."""
        slot = self.slot(time)
        block, first = divmod(slot, _SLOTS)
        row = self._block(seed, block)[device, first:]
        if not len(row):
            raise InvalidInput(f"the trace has ended after {slot} slots of {self.seconds:g} s: repeat=True starts over")
        here = bool(row[0])
        change = int((row != here).argmax())
        return here, (slot + (change or len(row))) * self.seconds

    def slot(self, time: float) -> int:
        """Return the slot of a time; at the boundary k·seconds, as `span` computes it, it is slot k."""
        slot = int(time // self.seconds)
        return slot + ((slot + 1) * self.seconds <= time)

    def _block(self, seed: int, block: int) -> NDArray[np.bool_]:
        """Who is there in the slots of a block, shape (N, slots); a trace may end within it."""
        found = self._blocks.get((seed, block))
        if found is None:
            length, trace = _SLOTS, self.process
            if isinstance(trace, Trace) and not trace.repeat:
                length = max(0, min(_SLOTS, trace.num_rounds - block * _SLOTS))
            found = np.zeros((self.num_devices, length), dtype=np.bool_)
            for k in range(length):
                found[self.process.available(seed, block * _SLOTS + k), k] = True
            self._blocks[seed, block] = found
            while len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        return found
