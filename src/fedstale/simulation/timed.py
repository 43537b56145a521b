"""A federation in virtual time: the round loop with a clock in it.

One event loop serves all servers (`fedstale.clock.servers`); a server's step is a round of `Simulation`, with the same
rules, memory, callbacks, store and checkpoints. Where all devices are alike and a round lasts long enough for
everybody, it is that loop, bit for bit. What is on its way when a checkpoint is written is part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..checks import InvalidInput, fail
from ..clock import Buffered, EventKind, Outcome, Synchronous
from ..federation import Ints, Round
from ..participation import All, KnownProbabilities, UniformSample
from ..randomness import generator
from ..screening import fault
from .in_time import InTime

_LOTS = 4096
"""Random numbers that are drawn together."""


@dataclass
class TimedSimulation(InTime):
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

    def _check_server(self) -> None:
        """Refuse what an asynchronous server cannot have."""
        n, rule, server = self.federation.num_clients, self.rule, self.server
        if not isinstance(server, Buffered):
            return
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

    def _until_step(self, t: int) -> Round:
        """Let time pass until the server steps."""
        if isinstance(self.server, Buffered):
            return self._fill_buffer(t, self.server)
        if isinstance(self.server, Synchronous):
            return self._one_round(t, self.server)
        raise fail("server", self.server, "must be Synchronous, Buffered or Asynchronous")

    # Rounds: ask, wait, step.

    def _one_round(self, t: int, server: Synchronous) -> Round:
        clock, deadline = self.clock, server.deadline
        self._take_late(t)
        end = float("inf") if deadline is None else clock.now + deadline
        asked = self._whom(t, server)
        while clock.availability is not None and not len(asked) and clock.now < end:
            if not self._next(end):  # nobody is there: the round begins when somebody comes
                if end == float("inf"):
                    raise InvalidInput("no client is available any more, and none will come back")
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
                if event.kind is EventKind.REPLY:
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

    def _take_late(self, t: int) -> None:
        """Put what came late, since the last round began, into the memory: between two rounds, the oldest first."""
        arrived = sorted(self._late.take_all(), key=lambda update: (update.version, update.device))
        usable = [update for update in arrived if fault(update.row) is None]
        if usable:
            clients = np.array([update.device for update in usable], dtype=np.int64)
            late = Round(
                t,
                clients,
                [update.row for update in usable],
                probabilities=self._probabilities(clients),
                steps=[update.steps for update in usable],
                ages=[t - update.version for update in usable],
            )
            self.rule.remember_late(self.state, late)
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
                    raise InvalidInput("no client is at work any more, and none will come back")
                break
            event, work = found
            if event.kind is EventKind.REPLY and work is not None:
                clock.ledger.add(work, clock.now, Outcome.USED)
                self._answered.append((work, clock.now))
            elif event.kind is EventKind.PRESENCE:
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
