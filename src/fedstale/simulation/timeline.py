"""The first hour of a federation: who was there, who worked, what was used, what was late, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..checks import InvalidInput, number
from ..clock import Outcome, Work
from .history import Record
from .interfaces import Callback
from .loop import Simulation
from .timed import TimedSimulation

_UNDER_WAY = "under way"
"""What has become of work that had not ended."""


class _Stretch(NamedTuple):
    """A device from one time to another."""

    device: int
    begin: float
    end: float
    what: str
    """"there", or what became of the work: "used", "late", "lost", "discarded" or "under way" """


@dataclass
class Timeline(Callback):
    """A callback that takes down what the devices did: `fs.simulate(…, callbacks=[timeline])`, then `timeline.plot()`.

    Parameters
    ----------
    seconds
        How much of the virtual time is taken down.

    Attributes
    ----------
    num_devices
        N.
    stretches
        Presence and work of the devices.
    steps
        When the server stepped.
    """

    seconds: float = 3600.0
    num_devices: int = 0
    stretches: list[_Stretch] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    _last: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        number("seconds", self.seconds, 0.0, open_low=True)

    def on_start(self, simulation: Simulation) -> None:
        """Begin to listen."""
        if not isinstance(simulation, TimedSimulation):
            raise InvalidInput("a timeline needs a server that knows time: set server to synchronous, buffered, …")
        self.num_devices, self._last = simulation.federation.num_clients, simulation.clock.now
        simulation.clock.ledger.watch = self._ended

    def _ended(self, work: Work, end: float, outcome: Outcome) -> None:
        if work.start < self.seconds:
            self.stretches.append(_Stretch(work.device, work.start, min(end, self.seconds), outcome.value))

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Take down the step, and who was there where presence is counted by rounds."""
        if not isinstance(simulation, TimedSimulation) or self._last >= self.seconds:
            return
        now = simulation.clock.now
        if now <= self.seconds:
            self.steps.append(now)
        if simulation.clock.availability is None:
            there = simulation.participation.availability.available(simulation.seed, record.round).tolist()
            end = min(now, self.seconds)
            self.stretches += [_Stretch(device, self._last, end, "there") for device in there]
        self._last = now

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """Take down who was there in time, and what had not ended."""
        if not isinstance(simulation, TimedSimulation):
            return
        clock = simulation.clock
        clock.ledger.watch = None
        last = min(clock.now, self.seconds)
        for work in clock.work.values():
            if work.start < last:
                self.stretches.append(_Stretch(work.device, work.start, last, _UNDER_WAY))
        if clock.availability is not None:
            for device in range(self.num_devices):
                time = 0.0
                while time < last:
                    here, until = clock.availability.span(simulation.seed, device, time)
                    if here:
                        self.stretches.append(_Stretch(device, time, min(until, last), "there"))
                    time = until

    def plot(self, ax: Any = None) -> Any:
        """Draw a line for every device with Matplotlib, and return the axes.

        Parameters
        ----------
        ax
            The axes to draw on; default: new ones.
        """
        from ..plots import plot_timeline

        return plot_timeline(self, ax)
