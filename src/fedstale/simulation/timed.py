"""A federation in virtual time: the round loop with a clock in it.

One event loop serves all servers (`fedstale.clock.servers`); a server's step is a round of `Simulation`, with the same
rules, memory, callbacks, store and checkpoints. Where all devices are alike and a round lasts long enough for
everybody, it is that loop, bit for bit. What is on its way when a checkpoint is written is part of it.
"""

from __future__ import annotations

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
    IdleDevices,
    Kind,
    Outcome,
    Server,
    Slots,
    Synchronous,
    Work,
)
from ..federation import Ints, Round
from ..participation import All, KnownProbabilities, UniformSample
from ..randomness import generator
from ..screening import fault
from ..state import State
from .history import Metrics
from .loop import Simulation, before_round
from .pending import PendingUpdates

_PREFIX = "clock/"
"""Of the arrays of a state that hold the clock."""
_LOTS = 4096
"""Random numbers that are drawn together."""


@dataclass
class TimedSimulation(Simulation):
    """A simulation in which work takes time.

    Parameters
    ----------
    server
        When the server steps.
    devices
        How fast the devices are.
    slot_seconds
        How long a round of the participation process lasts in time: clients come and leave then, also in the middle of
        their work. Default: for a synchronous server one round of the process is one of the server's, and nobody
        leaves; for the others, as long as the work of a typical device.
    model_bytes
        Bytes of a model on its way, if not those of the model that is trained.
    until
        Seconds of virtual time after which the run ends, if it has not come to its last round.
    """

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
        if isinstance(self.server, Buffered):
            self._check_asynchronous(self.server)
        if self.update_noise:
            raise fail("update_noise", self.update_noise, "is measured in rounds: a server in time draws nobody again")
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
            raise InvalidInput("the checkpoint holds no clock: it is that of a run without one")

    def _check_asynchronous(self, server: Buffered) -> None:
        """Refuse what an asynchronous server cannot have."""
        n, rule = self.federation.num_clients, self.rule
        if not rule.asynchronous:
            allowed = "needs updates that were computed from the server's present model: use a synchronous server"
            raise fail("rule", rule.name, allowed)
        if getattr(getattr(self.trainer, "engine", None), "buffers", None):
            raise fail(
                "task", "a model with running statistics", f"needs rounds: use a server that is not {server.name}"
            )
        if server.size > n:
            raise fail("size", server.size, f"a buffer must not be larger than the federation, {n} clients")
        if rule.selection() is not None or not isinstance(self.participation.selection, All):
            raise fail("selection", self.participation.selection, f"a {server.name} server asks by its concurrency")
        if isinstance(self.estimator, KnownProbabilities):
            allowed = f"how often a client is in a step of a {server.name} server is not known: use an estimator"
            raise fail("probabilities", "known", allowed)

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
        """Let time pass until the server steps."""
        self._counts = dict.fromkeys(self._counts, 0.0)
        self._counts["wasted"] = -self.clock.ledger.total_wasted
        self._answered = []
        begun = self.clock.now
        if isinstance(self.server, Buffered):
            round = self._fill_buffer(t, self.server)
        elif isinstance(self.server, Synchronous):
            round = self._one_round(t, self.server)
        else:
            raise fail("server", self.server, "must be Synchronous, Buffered or Asynchronous")
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

    # Rounds: ask, wait, step.

    def _one_round(self, t: int, server: Synchronous) -> Round:
        clock, deadline = self.clock, server.deadline
        self._take_late()
        end = float("inf") if deadline is None else clock.now + deadline
        asked = self._whom(t, server)
        while clock.availability is not None and not len(asked) and clock.now < end:
            if not self._next(end):  # nobody is there: the round begins when somebody comes
                if end == float("inf"):
                    raise InvalidInput("nobody is there any more, and nobody will come")
                break
            asked = self._whom(t, server)
        waiting = {work.device for work in self._ask(t, asked)}
        enough = len(waiting) if server.wait_for is None else min(server.wait_for, len(waiting))
        while waiting and len(self._answered) < enough:
            found = self._next(end)
            if found is None:
                break
            event, work = found
            if work is not None and work.device in waiting and work.version == t:
                waiting.discard(work.device)
                if event.kind is Kind.REPLY:
                    self._answered.append((work, clock.now))
        if not waiting and not self._answered and end < float("inf"):
            while self._next(end) is not None:  # a server that hears nothing waits for its deadline
                pass
        for work, when in self._answered:
            clock.ledger.add(work, when, Outcome.USED)
        self._let_finish(t, sorted(waiting), server)
        clients = np.array(sorted(work.device for work, _ in self._answered), dtype=np.int64)
        return self._train(t, clients, self._probabilities(clients))

    def _whom(self, t: int, server: Synchronous) -> Ints:
        """Whom the server asks: as in the round loop, among those who do not still work for an earlier round."""
        last_seen, who = self.state.last_seen, self.participation
        available = who.availability.available(self.seed, t)
        if self.clock.availability is not None:
            available = self.clock.everybody_there
        if self.clock.work:
            available = available[~np.isin(available, list(self.clock.work))]
        selection = who.selection if server.sample is None else UniformSample(server.sample)
        clients = selection.select(available, self.seed, t, last_seen)
        own = self.rule.selection()
        return clients if own is None else own.select(clients, self.seed, t, last_seen)

    def _let_finish(self, t: int, devices: list[int], server: Synchronous) -> None:
        """What becomes of those who have not answered: they go on, where their update has a place in the memory."""
        if server.late == "discard" or not self.rule.takes_late:
            for device in devices:
                self.clock.call_off(device)
            return
        late = np.array([device for device in devices if self.clock.work[device].replies], dtype=np.int64)
        if len(late):
            rows = self.trainer.updates(self.model, late, t, self.rule.local(self.state, late))
            self._pending.put(t, late, rows, self.trainer.steps_and_lr(late, t)[0].tolist())

    def _take_late(self) -> None:
        """Put what came late, since the last round began, into the memory: between two rounds, the oldest first."""
        arrived = sorted(self._late.take_all(), key=lambda update: (update.version, update.device))
        usable = [update for update in arrived if fault(update.row) is None]
        if usable:
            clients = np.array([update.device for update in usable], dtype=np.int64)
            rows = [update.row for update in usable]
            self.rule.remember_late(self.state, clients, rows, self._probabilities(clients))
        self._counts["late"] = float(len(usable))

    # No rounds: devices work all the time.

    def _fill_buffer(self, t: int, server: Buffered) -> Round:
        clock = self.clock
        end = float("inf") if server.deadline is None else clock.now + server.deadline
        self._ask_idle(t, server)
        while len(self._answered) < server.size:
            found = self._next(end)
            if found is None:
                if end == float("inf") and not self._answered:
                    raise InvalidInput("nobody works any more, and nobody will come")
                break
            event, work = found
            if event.kind is Kind.REPLY and work is not None:
                clock.ledger.add(work, clock.now, Outcome.USED)
                self._answered.append((work, clock.now))
            elif event.kind is Kind.PRESENCE:
                self._presence(event.device)
            if len(self._answered) < server.size:
                self._ask_idle(t, server)
        updates = [self._pending.take(work.device) for work, _ in self._answered]
        clients = np.array([update.device for update in updates], dtype=np.int64)
        rows = np.stack([update.row for update in updates]) if updates else np.empty((0, self.federation.num_params))
        if self.rule.answers_with_model:
            rows = self.model - rows
        return Round(
            t,
            clients,
            rows,
            probabilities=self._probabilities(clients),
            steps=[update.steps for update in updates],
            lr=self.trainer.steps_and_lr(clients[:1], t)[1],
            ages=[t - update.version for update in updates],
        )

    def _presence(self, device: int) -> None:
        """A device came, or left: those that idle can be asked, or no longer."""
        waits = device in self.clock.work or any(work.device == device for work, _ in self._answered)
        if waits or not self.clock.there(device):
            self._ready.remove(device)
        else:
            self._ready.add(device)

    def _ask_idle(self, t: int, server: Buffered) -> None:
        """Keep as many at work as there may be; who is asked is drawn from those that idle."""
        if not len(self._ready):
            return
        free = len(self._ready) if server.concurrency is None else server.concurrency - len(self.clock.work)
        if free >= len(self._ready):
            chosen = self._ready.take_all()
        else:
            chosen = [self._ready.take(self._lot()) for _ in range(max(free, 0))]
        if not chosen:
            return
        devices = np.array(sorted(chosen), dtype=np.int64)
        answering = np.array([work.device for work in self._ask(t, devices) if work.replies], dtype=np.int64)
        if len(answering):
            local = self.rule.local(self.state, answering)
            rows = self.trainer.updates(self.model, answering, t, local)
            if self.rule.answers_with_model:
                rows = self.model - rows
            self._pending.put(t, answering, rows, self.trainer.steps_and_lr(answering, t)[0].tolist())

    def _lot(self) -> float:
        """A uniform number, the next of this run's."""
        block, place = divmod(self._drawn, _LOTS)
        if self._lots[0] != block:
            self._lots = (block, generator(self.seed, "whom to ask", block).random(_LOTS).tolist())
        self._drawn += 1
        return self._lots[1][place]

    # Both.

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
        if event.kind is Kind.LOST:
            self._counts["lost"] += 1.0
        elif event.kind is Kind.REPLY and work is not None:
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
