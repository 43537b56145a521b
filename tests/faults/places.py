"""Where a process is hit: named places of the product, wrapped from outside, so that the product has no hook.

A place is crossed whenever one of its functions is called. A `Trap` counts the crossings of one place and, at a chosen
one, sends its own process a signal: before the call, during it (from a second thread, after a moment), or after it.
SIGKILL ends it there; after SIGINT it goes on, as after Ctrl-C.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

PLACES: dict[str, tuple[str, ...]] = {
    "training": (
        "fedstale.simulation.trainers:EngineTrainer.updates",
        "fedstale.simulation.trainers:QuadraticTrainer.updates",
        "fedstale.sweeps.lockstep:Lockstep._train",
        "tests.flower.grid:Trainer.model",
    ),
    "rule": (
        "fedstale.rules.base:Rule.combine",
        "fedstale.memory.kernel:exchange",
        "fedstale.memory.store:Memory._move",
        "fedstale.beta:Auto.observe",
        "fedstale.sweeps.batched_server:BatchedServer.combine",
        "fedstale.sweeps.batched_server:BatchedServer._learn",
    ),
    "checkpoint": (
        "fedstale.state:State.save",
        "fedstale.tensor_file:write_tensors",
        "fedstale.durable:move",
        "fedstale.state:_sweep",
        "fedstale.memory.store:Memory.table",
        "fedstale.memory.store:Memory.saved",
        "fedstale.memory.rows:FileRows.flush",
        "os:replace",
        "os:fsync",
        "os:posix_fallocate",
    ),
    "saved": ("fedstale.state:State.save",),
    "store": (
        "fedstale.store.database:Database.write",  # before BEGIN, before COMMIT, after COMMIT
        "fedstale.store.run:Run.save",
        "fedstale.store.store:Store.flush",
        "fedstale.store.store:Store._claim",
    ),
}
CONTEXTS = frozenset({"fedstale.store.database:Database.write"})
LONGEST = 0.004
"""Seconds after which a kill "during" a call happens at the latest."""


@dataclass
class Trap:
    """Counts crossings of a place and springs at one of them.

    Parameters
    ----------
    place
        One of `PLACES`; None only counts, all of them.
    crossing
        Which crossing ends the process, from 1.
    moment
        "before", "during" or "after" the call.
    signal
        Which one is sent.
    """

    place: str | None = None
    crossing: int = 0
    moment: str = "before"
    signal: int = signal.SIGKILL

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def set(self) -> Trap:
        """Wrap the functions of the place (of all of them, when only counting)."""
        for place, names in PLACES.items():
            if self.place in (None, place):
                for name in names:
                    self._wrap(place, name)
        return self

    def _wrap(self, place: str, name: str) -> None:
        module, _, path = name.partition(":")
        owner: Any = import_module(module)
        *parents, last = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        real = getattr(owner, last)
        wrapped = self._context(place, real) if name in CONTEXTS else self._call(place, real)
        setattr(owner, last, wrapped)

    def _call(self, place: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            due = self._crossed(place)
            if due:
                self._spring()
            result = real(*args, **kwargs)
            if due and self._late:
                self._hit()
            return result

        return call

    def _context(self, place: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def hold(*args: Any, **kwargs: Any) -> Iterator[Any]:
            due = self._crossed(place)
            if due and self.moment == "before":
                self._hit()
            with real(*args, **kwargs) as inner:
                yield inner
                if due and self.moment == "during":  # everything is written, nothing is committed
                    if random.random() < 0.5:
                        self._hit()
                    else:
                        self._spring()
            if due and self._late:
                self._hit()

        return hold

    def _crossed(self, place: str) -> bool:
        self.counts[place] += 1
        return place == self.place and self.counts[place] == self.crossing

    def _spring(self) -> None:
        if self.moment == "before":
            self._hit()
        if self.moment == "during":
            threading.Timer(random.uniform(0.0, LONGEST), self._hit).start()

    @property
    def _late(self) -> bool:
        """Whether to hit after the call: who is to be killed during it may have been quicker."""
        return self.moment == "after" or self.signal == signal.SIGKILL

    def _hit(self) -> None:
        os.kill(os.getpid(), self.signal)
        if self.signal == signal.SIGKILL:
            threading.Event().wait()  # never runs on
