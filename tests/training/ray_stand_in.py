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


class RayActorError(Exception):
    """An actor is dead."""


class ObjectLostError(Exception):
    """A result is gone."""


class RayTaskError(Exception):
    """A call raised an error."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Reference:
    """Of an object, or of a call that is still to be made."""

    def __init__(self, data: bytes | None, call: Callable[[], bytes] | None = None) -> None:
        self.data, self.call = data, call


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
    """

    def __init__(self, processors: int = 4, dies: Callable[[int, int], bool] | None = None, order: int = 0) -> None:
        self.exceptions = SimpleNamespace(
            RayActorError=RayActorError, ObjectLostError=ObjectLostError, RayTaskError=RayTaskError
        )
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

    def wait(self, references: list[Reference], num_returns: int) -> tuple[list[Reference], list[Reference]]:
        """Pick one."""
        chosen = self._order.choice(references)
        return [chosen], [other for other in references if other is not chosen]

    def kill(self, actor: Any) -> None:
        """End an actor."""
        actor.dead = True

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """Make a class whose objects are actors."""
        return lambda kind: SimpleNamespace(remote=lambda *arguments: self._actor(kind, arguments))

    def _actor(self, kind: type, arguments: tuple[Any, ...]) -> Any:
        actor = SimpleNamespace(dead=False, calls=0, number=len(self.actors))
        made = kind(*(self.get(one) for one in arguments))
        self.actors.append(actor)

        def train(*given: Any) -> Reference:
            sent = cloudpickle.dumps(given[1:])

            def call() -> bytes:
                actor.calls += 1
                if actor.dead or self._dies(actor.number, actor.calls):
                    actor.dead = True
                    raise RayActorError("the actor died")
                clients, own = pickle.loads(sent)
                try:
                    found = made.train(self.get(given[0]), clients, own)
                except Exception as error:
                    raise RayTaskError(error) from error
                self.trained += clients.tolist()
                return bytes(cloudpickle.dumps(found))

            return Reference(None, call)

        actor.train = SimpleNamespace(remote=train)
        return actor


def _read_only(value: Any) -> Any:
    parts = vars(value).values() if hasattr(value, "__dict__") else value if isinstance(value, (tuple, list)) else []
    for part in [value, *parts, *(value.values() if isinstance(value, dict) else [])]:
        if isinstance(part, np.ndarray):
            part.flags.writeable = False
    return value
