"""What became of the devices' time: worked, wasted, idle; and how old the server's information of each device is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clock import Work


class Outcome(Enum):
    """What became of a piece of work."""

    USED = "used"
    """the update was part of a step"""
    LATE = "late"
    """it came after its round, and was remembered"""
    LOST = "lost"
    """the device left before it had answered"""
    DISCARDED = "discarded"
    """nobody waited for it any more"""


class Ledger:
    """The time of each device, in seconds.

    Attributes
    ----------
    total_wasted
        Seconds of work, of all devices, whose result was of no use.
    watch
        Told of every piece of work that ends, when, and what became of it.
    """

    def __init__(self, num_devices: int) -> None:
        self._busy = [0.0] * num_devices
        self._wasted = [0.0] * num_devices
        self._present = [0.0] * num_devices
        self._since = [0.0] * num_devices
        self._fresh = [0.0] * num_devices
        self._sum_fresh = 0.0
        self.total_wasted = 0.0
        self.watch: Callable[[Work, float, Outcome], None] | None = None

    def add(self, work: Work, end: float, outcome: Outcome) -> None:
        """Take down a piece of work that ended."""
        device, seconds = work.device, end - work.start
        self._busy[device] += seconds
        if outcome is Outcome.LOST or outcome is Outcome.DISCARDED:
            self._wasted[device] += seconds
            self.total_wasted += seconds
        elif work.start > self._fresh[device]:
            self._sum_fresh += work.start - self._fresh[device]
            self._fresh[device] = work.start
        if self.watch is not None:
            self.watch(work, end, outcome)

    def comes(self, device: int, now: float) -> None:
        """Take down that a device is there from now on."""
        self._since[device] = now

    def leaves(self, device: int, now: float) -> None:
        """Take down that a device has been there until now."""
        self._present[device] += now - self._since[device]
        self._since[device] = now

    def there_for(self, seconds: Float) -> None:
        """Take down seconds of presence of each device, shape (N,), where presence is counted by rounds."""
        self._present = (np.asarray(self._present) + seconds).tolist()

    @property
    def busy(self) -> Float:
        """Seconds of work that has ended, shape (N,)."""
        return np.array(self._busy)

    @property
    def wasted(self) -> Float:
        """Those of them whose result was lost or discarded, shape (N,)."""
        return np.array(self._wasted)

    @property
    def present(self) -> Float:
        """Seconds for which a device was there, up to when it last came or left, shape (N,)."""
        return np.array(self._present)

    @property
    def since(self) -> Float:
        """When that was, shape (N,)."""
        return np.array(self._since)

    def information_age(self, now: float) -> float:
        """Mean seconds since the work began whose update the server used or remembered last; all count from 0 on."""
        return now - self._sum_fresh / len(self._fresh)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything, to be saved."""
        sums = np.array([self._sum_fresh, self.total_wasted])
        return {name: np.array(getattr(self, f"_{name}")) for name in _COLUMNS} | {"sums": sums}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what was saved."""
        for name in _COLUMNS:
            setattr(self, f"_{name}", arrays[name].tolist())
        self._sum_fresh, self.total_wasted = arrays["sums"].tolist()


_COLUMNS = ("busy", "wasted", "present", "since", "fresh")
