"""Time in the round loop: the clock, the work that is under way, what the time was spent on, and checkpoints of it all.

When a server steps is said by `TimedSimulation`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, InvalidInput, fail, number
from ..clock import (
    Always,
    Availability,
    Buffered,
    Clock,
    Devices,
    Equal,
    Event,
    EventKind,
    IdleDevices,
    Outcome,
    Server,
    Slots,
    Synchronous,
    Work,
)
from ..federation import Ints, Round
from ..participation import KnownProbabilities
from ..state import State
from .history import Metrics
from .loop import Simulation, before_round
from .pending import PendingUpdates

_PREFIX = "clock/"
"""Of the arrays of a state that hold the clock."""


@dataclass
class InTime(Simulation):
    """A simulation in which work takes time, without a server: see `TimedSimulation`."""

    server: Server = field(default_factory=Synchronous)
    devices: Devices = field(default_factory=Equal)
    slot_seconds: float | None = None
    model_bytes: float | None = None
    until: float | None = None
    clock: Clock = field(init=False)

    def __post_init__(self, resume_from: State | None) -> None:
        self.rule = self.rule.on_clock()
        super().__post_init__(resume_from)
        for name in ("slot_seconds", "model_bytes", "until"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), 0.0, open_low=True)
        self._check_server()
        if self.update_noise:
            raise fail("update_noise", self.update_noise, "cannot be measured with a clock: set server to 'rounds'")
        self._pending = PendingUpdates(self.federation.num_params, self.model.dtype)
        self._late = PendingUpdates(self.federation.num_params, self.model.dtype)
        self._answered: list[tuple[Work, float]] = []
        self._counts = dict.fromkeys(("late", "lost", "wasted", "up", "down"), 0.0)
        self._drawn, self._lots = 0, (-1, list[float]())
        self.clock = Clock(self.devices, self._availability(), self.federation.num_clients, self.seed)
        self._ready = IdleDevices()
        saved = {name: self.state.arrays.pop(name) for name in [*self.state.arrays] if name.startswith(_PREFIX)}
        if resume_from is None:
            for device in self.clock.everybody_there.tolist():
                self._ready.add(device)
        elif saved:
            self._restore({name.removeprefix(_PREFIX): array for name, array in saved.items()})
        else:
            raise InvalidInput("the checkpoint was written by a run without a clock")

    @abstractmethod
    def _check_server(self) -> None:
        """Refuse what the server cannot have."""

    def _availability(self) -> Availability | None:
        """Who is there in time; None where rounds of the process are those of the server."""
        process, seconds = self.participation.availability, self.slot_seconds
        if seconds is None and isinstance(self.server, Synchronous):
            return None
        if not process.varies and (process.probabilities() == 1.0).all():
            return Always(process.num_clients)
        return Slots(process, seconds or self.typical_seconds())

    def typical_seconds(self) -> float:
        """How long the work of a typical device takes: the median over the devices."""
        everyone = np.arange(self.federation.num_clients)
        watch = Clock(self.devices, None, len(everyone), self.seed).stopwatch
        steps, _ = self.trainer.steps_and_lr(everyone[:1], 0)
        up, down = self.rule.upload * self._vector, self.rule.download * self._vector
        return float(np.median([watch.seconds(i, 0.0, down, float(steps[0]), up) for i in everyone.tolist()]))

    @property
    def _vector(self) -> float:
        """Bytes of a vector of length d on its way."""
        return float(self.federation.num_params * self.model.itemsize) if self.model_bytes is None else self.model_bytes

    def _gather(self, t: int) -> tuple[Round, Metrics]:
        """Let time pass until the server steps, and say what happened."""
        self._counts = dict.fromkeys(self._counts, 0.0)
        self._counts["wasted"] = -self.clock.ledger.total_wasted
        self._answered = []
        begun = self.clock.now
        round = self._until_step(t)
        clients = np.asarray(round.clients, dtype=np.int64)
        metrics = before_round(self.rule, self.state, t, clients, self.model.itemsize)
        ages: Float = np.zeros(len(clients)) if round.ages is None else np.asarray(round.ages, dtype=np.float64)
        metrics |= {
            "bytes_up": self._counts["up"],
            "bytes_down": self._counts["down"],
            "virtual_seconds": self.clock.now,
            "late": self._counts["late"],
            "lost": self._counts["lost"],
            "age_mean": float(ages.mean()) if ages.size else 0.0,
            "age_max": float(ages.max(initial=0.0)),
        }
        if self.clock.availability is None:
            there = self.participation.availability.available(self.seed, t)
            seconds = np.zeros(self.federation.num_clients)
            seconds[there] = self.clock.now - begun
            self.clock.ledger.there_for(seconds)
        return round, metrics

    @abstractmethod
    def _until_step(self, t: int) -> Round:
        """Let time pass until the server steps, and return with what."""

    def _ask(self, t: int, devices: Ints) -> list[Work]:
        """Let devices begin to work on the present model."""
        if not len(devices):
            return []
        steps, _ = self.trainer.steps_and_lr(devices, t)
        begun = []
        for place, (device, count) in enumerate(zip(devices.tolist(), steps.tolist(), strict=True)):
            up, down = self.rule.traffic(self.state, devices[place : place + 1])
            begun.append(self.clock.ask(device, t, down * self._vector, count, up * self._vector))
            self._counts["down"] += down * self._vector
        return begun

    def _next(self, before: float) -> tuple[Event, Work | None] | None:
        """Go on to the next event; what came late for a synchronous server is put aside."""
        found = self.clock.next(before)
        if found is None:
            return None
        event, work = found
        if event.kind is EventKind.LOST:
            self._counts["lost"] += 1.0
        elif event.kind is EventKind.REPLY and work is not None:
            self._counts["up"] += work.up_bytes
            if isinstance(self.server, Synchronous) and work.version < self.state.round:
                self.clock.ledger.add(work, self.clock.now, Outcome.LATE)
                self._late.add(self._pending.take(work.device))
        return found

    def _after_step(self) -> Metrics:
        """Those who were in the step can be asked again; say what the time was spent on."""
        if isinstance(self.server, Buffered):
            for work, _ in self._answered:
                if self.clock.there(work.device):
                    self._ready.add(work.device)
        self._answered = []
        ledger = self.clock.ledger
        if self.until is not None and self.clock.now >= self.until:
            self.stop = True
        return {
            "wasted_seconds": self._counts["wasted"] + ledger.total_wasted,
            "information_age": ledger.information_age(self.clock.now),
        }

    @property
    def knows_probabilities(self) -> bool:
        """How often clients answer in time is not known, unless somebody says that it is."""
        return isinstance(self.estimator, KnownProbabilities)

    def _is_evaluated(self, t: int) -> bool:
        return super()._is_evaluated(t) or (self.until is not None and self.clock.now >= self.until)

    def client_metrics(self) -> dict[str, Float]:
        """Seconds that each device worked, worked in vain, and was there without work, so far."""
        ledger = self.clock.ledger
        return {"busy_seconds": ledger.busy, "wasted_seconds": ledger.wasted, "idle_seconds": self.clock.idle}

    def save(self, folder: Path) -> None:
        """Write a checkpoint, with all work that is under way."""
        held = {
            "": self.clock.arrays(),
            "pending/": self._pending.arrays(),
            "late/": self._late.arrays(),
        }
        arrays = {f"{_PREFIX}{part}{name}": array for part, found in held.items() for name, array in found.items()}
        arrays[f"{_PREFIX}ready"] = self._ready.array()
        arrays[f"{_PREFIX}drawn"] = np.array([self._drawn], dtype=np.int64)
        self.state.arrays |= arrays
        try:
            super().save(folder)
        finally:
            for name in arrays:
                del self.state.arrays[name]

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        self.clock.restore({name: array for name, array in arrays.items() if "/" not in name})
        self._pending.restore(part("pending/"))
        self._late.restore(part("late/"))
        self._ready = IdleDevices(arrays["ready"].tolist())
        self._drawn = int(arrays["drawn"][0])
