"""Who idles: a set of devices from which one is drawn at random, in constant time."""

from __future__ import annotations

import numpy as np

from ..federation import Ints


class IdleDevices:
    """The devices that idle, in an order that is saved; one is added, removed or drawn without a look at the others."""

    def __init__(self, devices: list[int] | None = None) -> None:
        self._devices = list(devices or ())
        self._places = {device: place for place, device in enumerate(self._devices)}

    def __len__(self) -> int:
        return len(self._devices)

    def add(self, device: int) -> None:
        """Let a device idle."""
        if device not in self._places:
            self._places[device] = len(self._devices)
            self._devices.append(device)

    def remove(self, device: int) -> None:
        """Take a device out, if it is there: the last one takes its place."""
        place = self._places.pop(device, None)
        if place is None:
            return
        last = self._devices.pop()
        if last != device:
            self._devices[place], self._places[last] = last, place

    def take(self, lot: float) -> int:
        """Draw one, by a uniform number in [0, 1)."""
        device = self._devices[int(lot * len(self._devices))]
        self.remove(device)
        return device

    def take_all(self) -> list[int]:
        """Take all of them."""
        found, self._devices, self._places = self._devices, [], {}
        return found

    def array(self) -> Ints:
        """Return them in their order."""
        return np.array(self._devices, dtype=np.int64)
