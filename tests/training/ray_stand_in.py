"""Ray in one process, as far as the engine uses it: calls run when they are waited for, actors die when told to.

Arguments and results are pickled on their way, as between processes, and arrays come back read-only.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray import cloudpickle


class RayError(Exception):
    """Something is wrong with the cluster, or with a call."""


class RayActorError(RayError):
    """An actor is dead."""


class OutOfMemoryError(RayError):
    """An actor was killed because its machine had no memory left."""


class RayTaskError(RayError):
    """A call raised an error."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Reference:
    """Of an object, or of a call that is still to be made."""

    def __init__(self, data: bytes | None, call: Callable[[], bytes] | None = None, answers: bool = True) -> None:
        self.data, self.call, self.answers = data, call, answers


class StandIn:
    """The module.

    Parameters
    ----------
    processors
        Of the cluster.
    dies
        Called before every call of an actor with its number and how often it was called: whether it dies now.
    order
        Of a random stream: which of several calls ends first.
    starts
        Whether an actor of a number is ever there, or waits for a processor for ever.
    death
        What the caller of a dead actor gets.
    """

    def __init__(
        self,
        processors: int = 4,
        dies: Callable[[int, int], bool] | None = None,
        order: int = 0,
        starts: Callable[[int], bool] = lambda number: True,
        death: type[RayError] = RayActorError,
    ) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self._starts, self._death = starts, death
        self._processors, self._dies, self._order = processors, dies or (lambda *_: False), random.Random(order)
        self.actors: list[Any] = []
        self.puts: list[int] = []
        self.trained: list[int] = []
        self.used = 0

    def cluster_resources(self) -> dict[str, float]:
        """What there is."""
        return {"CPU": float(self._processors)}

    def available_resources(self) -> dict[str, float]:
        """What nobody uses."""
        return {"CPU": float(self._processors - self.used)}

    def put(self, value: Any) -> Reference:
        """Keep an object."""
        data = cloudpickle.dumps(value)
        self.puts.append(len(data))
        return Reference(data)

    def get(self, reference: Reference) -> Any:
        """Return an object, or do the call."""
        if reference.call is not None:
            call, reference.call = reference.call, None
            reference.data = call()
        assert reference.data is not None
        return _read_only(pickle.loads(reference.data))

    def wait(
        self, references: list[Reference], num_returns: int, timeout: float | None
    ) -> tuple[list[Reference], list[Reference]]:
        """Pick one, or any number of them where nobody waits."""
        answering = [one for one in references if one.answers]
        if not answering and timeout is None:
            raise AssertionError("nobody will ever answer")
        count = min(num_returns, len(answering)) if timeout != 0 else self._order.randint(0, len(answering))
        chosen = self._order.sample(answering, count)
        return chosen, [other for other in references if other not in chosen]

    def kill(self, actor: Any) -> None:
        """End an actor."""
        actor.dead = True

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """Make a class whose objects are actors."""
        return lambda kind: SimpleNamespace(remote=lambda *arguments: self._actor(kind, arguments))

    def _actor(self, kind: type, arguments: tuple[Any, ...]) -> Any:
        actor = SimpleNamespace(dead=False, calls=0, number=len(self.actors), pieces=0)
        there = self._starts(actor.number)
        made = kind(*(self.get(one) for one in arguments))
        self.actors.append(actor)

        def train(*given: Any) -> Reference:
            sent = cloudpickle.dumps(given[1:])
            actor.pieces += 1

            def call() -> bytes:
                actor.calls += 1
                if actor.dead or self._dies(actor.number, actor.calls):
                    actor.dead = True
                    raise self._death("the actor died")
                clients, own = pickle.loads(sent)
                try:
                    found = made.train(self.get(given[0]), clients, own)
                except Exception as error:
                    raise RayTaskError(error) from error
                self.trained += clients.tolist()
                return bytes(cloudpickle.dumps(found))

            return Reference(None, call, there)

        actor.train = SimpleNamespace(remote=train)
        actor.ready = SimpleNamespace(remote=lambda: Reference(cloudpickle.dumps(None), answers=there))
        return actor


def _read_only(value: Any) -> Any:
    parts = vars(value).values() if hasattr(value, "__dict__") else value if isinstance(value, (tuple, list)) else []
    for part in [value, *parts, *(value.values() if isinstance(value, dict) else [])]:
        if isinstance(part, np.ndarray):
            part.flags.writeable = False
    return value
