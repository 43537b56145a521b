"""How fast devices are: local steps a second, bytes a second down and up.

A piece of work of device i that begins at time s takes

    down bytes / down_i(s)  +  K_i / steps_i(s)  +  up bytes / up_i(s)   seconds

with the speeds of the moment at which it begins. They are a function of (seed, device, time): constant, or drawn anew
every `period` seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, fraction, number, vector
from ..randomness import generator

_LEAST = 0.1
"""A measured connection is never slower than this share of its mean, however far it is said to deviate."""


@dataclass(frozen=True, eq=False)
class Speeds:
    """The speeds of all devices at a time, each of shape (N,)."""

    steps: Float
    """local steps a second"""
    down: Float
    """bytes a second from the server to the device"""
    up: Float
    """bytes a second from the device to the server"""


@dataclass(frozen=True, kw_only=True)
class Devices(ABC):
    """How fast the devices of a federation are.

    Parameters
    ----------
    steps_per_second
        Local steps a second of a typical device.
    down, up
        Bytes a second to and from a typical device.
    """

    steps_per_second: float = 10.0
    down: float = 500_000.0
    up: float = 400_000.0

    name: ClassVar[str]
    """The name in configs and on the command line."""

    def __post_init__(self) -> None:
        for name in ("steps_per_second", "down", "up"):
            number(name, getattr(self, name), 0.0, open_low=True)

    @property
    def changes_every(self) -> float:
        """Seconds after which speeds are drawn anew."""
        return float("inf")

    @abstractmethod
    def speeds(self, seed: int, num_devices: int, slot: int) -> Speeds:
        """Return the speeds of all devices in a stretch of `changes_every` seconds, the first of which is 0."""

    def _scaled(self, factors: Float) -> Speeds:
        """The typical speeds times a factor for each device."""
        return Speeds(self.steps_per_second * factors, self.down * factors, self.up * factors)


@dataclass(frozen=True, kw_only=True)
class Equal(Devices):
    """All devices are alike."""

    name: ClassVar[str] = "equal"

    def speeds(self, seed: int, num_devices: int, slot: int) -> Speeds:
        """Return the same speeds for all."""
        return self._scaled(np.ones(num_devices))


@dataclass(frozen=True, kw_only=True)
class TwoClasses(Devices):
    """Fast devices, and slow ones that take `slowdown` times as long for everything; who is slow is drawn.

    Parameters
    ----------
    slow_share
        The share of slow devices, rounded to whole devices.
    slowdown
        How many times as long they take.
    """

    slow_share: float = 0.25
    slowdown: float = 8.0

    name: ClassVar[str] = "two-classes"

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("slow_share", self.slow_share)
        number("slowdown", self.slowdown, 1.0)

    def speeds(self, seed: int, num_devices: int, slot: int) -> Speeds:
        """Return two kinds of speeds."""
        lots = generator(seed, "slow devices").random(num_devices)
        slow = np.argsort(lots, kind="stable")[: int(np.floor(self.slow_share * num_devices + 0.5))]
        factors = np.ones(num_devices)
        factors[slow] = 1.0 / self.slowdown
        return self._scaled(factors)


@dataclass(frozen=True, kw_only=True)
class LogNormal(Devices):
    """Speeds whose logarithms are normal: the typical device is the median, and some are very slow.

    Parameters
    ----------
    spread
        Standard deviation of the logarithm of a device's speed of computing; of its connection likewise, drawn apart.
    """

    spread: float = 1.0

    name: ClassVar[str] = "log-normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        number("spread", self.spread, 0.0)

    def speeds(self, seed: int, num_devices: int, slot: int) -> Speeds:
        """Return speeds that stay the same."""
        compute, connection = np.exp(self.spread * generator(seed, "device speeds").standard_normal((num_devices, 2))).T
        return Speeds(self.steps_per_second * compute, self.down * connection, self.up * connection)


@dataclass(frozen=True, kw_only=True)
class Measured(Devices):
    """Connections as they were measured: each device has the mean and deviation of a measured one, drawn at random.

    Every `period` seconds a device's bandwidth is drawn anew from a normal distribution with them, cut below at a tenth
    of the mean. How fast devices compute was not measured along with it: that is log-normal.

    Parameters
    ----------
    table
        One row per measured device, shape (m, 4): mean and deviation of the bandwidth down, then up, in bytes a second.
    spread
        Standard deviation of the logarithm of the speed of computing.
    period
        Seconds between two draws.
    """

    table: ArrayLike = field(default=())
    spread: float = 0.5
    period: float = 60.0

    name: ClassVar[str] = "measured"

    def __post_init__(self) -> None:
        super().__post_init__()
        table = np.array(self.table, dtype=np.float64)
        if table.ndim != 2 or table.shape[1:] != (4,) or not len(table):
            raise fail(
                "table", f"array of shape {table.shape}", "must have a row of 4 numbers for each measured device"
            )
        vector("table", table.ravel(), table.size)
        if (table[:, [0, 2]] <= 0).any() or (table < 0).any():
            raise fail("table", float(table.min()), "means must be positive, and deviations not negative")
        table.setflags(write=False)
        object.__setattr__(self, "table", table)
        number("spread", self.spread, 0.0)
        number("period", self.period, 0.0, open_low=True)

    @property
    def changes_every(self) -> float:
        """See `Devices`."""
        return self.period

    def speeds(self, seed: int, num_devices: int, slot: int) -> Speeds:
        """Return the speeds of a period."""
        kinds = generator(seed, "device kinds")
        table = np.asarray(self.table)[kinds.integers(len(np.asarray(self.table)), size=num_devices)]
        steps = self.steps_per_second * np.exp(self.spread * kinds.standard_normal(num_devices))
        lots = generator(seed, "bandwidth", slot).standard_normal((num_devices, 2))
        drawn = np.maximum(table[:, [0, 2]] + table[:, [1, 3]] * lots, _LEAST * table[:, [0, 2]])
        return Speeds(steps, drawn[:, 0], drawn[:, 1])


class Stopwatch:
    """How long work takes, from the speeds of the moment: one lookup for each piece of work."""

    def __init__(self, devices: Devices, seed: int, num_devices: int) -> None:
        self._devices, self._seed, self._count = devices, seed, num_devices
        self._slot = -1
        self._steps: list[float] = []
        self._down: list[float] = []
        self._up: list[float] = []

    def seconds(self, device: int, time: float, down_bytes: float, steps: float, up_bytes: float) -> float:
        """Return the seconds of a piece of work that begins at this time."""
        every = self._devices.changes_every
        slot = 0 if every == float("inf") else int(time // every)
        if slot != self._slot:
            speeds = self._devices.speeds(self._seed, self._count, slot)
            self._steps, self._down, self._up = speeds.steps.tolist(), speeds.down.tolist(), speeds.up.tolist()
            self._slot = slot
        return down_bytes / self._down[device] + steps / self._steps[device] + up_bytes / self._up[device]
