"""What a rule remembers: a small dataclass of arrays, numbers, memories, and states of the same kind inside it.

    @dataclass(eq=False, kw_only=True)
    class MeanState(RuleState):
        mean: Float                          # an array of any shape
        visits: Ints = per_client()          # one entry per client: grows when clients join
        rounds_lost: int = 0                 # a number

A state is found in one place, nests to any depth, and saves itself: every field becomes a tensor of the checkpoint, by
its path ("inner/beta/sums"). What is not a field cannot be set, so that nothing is forgotten by a save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import InvalidInput
from .memory import StaleMemory

_FILL, _HELD_BY_CLIENTS = "fill", "held by clients"
_KINDS: dict[str, type[RuleState]] = {}
"""Every class of state that was defined, by its name: a checkpoint names them, and nothing is imported for it."""


def per_client(fill: float | bool = 0) -> Any:
    """Declare an array with one entry or one row per client, shape (N, …); clients that join start with `fill`."""
    return field(metadata={_FILL: fill})


def held_by_clients() -> Any:
    """Declare a memory or an array that the clients keep: a server that runs the rule has no memory for it.

    The running sum of such a memory is the server's, where its rows count in it.
    """
    return field(metadata={_HELD_BY_CLIENTS: True})


@dataclass(eq=False, kw_only=True)
class RuleState:
    """What a rule, or a part of one, remembers; this one remembers nothing.

    A field holds an array, a number, a memory (`State.remember`), another `RuleState`, or None.
    """

    def __init_subclass__(cls) -> None:
        known = _KINDS.get(cls.__name__)
        if known is not None and known.__module__ != cls.__module__ and known.__module__.startswith("fedstale."):
            raise TypeError(f"{cls.__name__} is the name of a state of {known.__module__}: choose another")
        _KINDS[cls.__name__] = cls

    if not TYPE_CHECKING:  # a type checker finds such a line by itself

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in type(self).__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__} has no field {name!r}: declare what the rule remembers")
            if value is not None and not isinstance(value, (np.ndarray, bool, int, float, StaleMemory, RuleState)):
                allowed = "an array, a number, a memory, a RuleState or None"
                raise TypeError(f"{type(self).__name__}.{name} = {value!r}: must be {allowed}")
            object.__setattr__(self, name, value)

    def _leaves(self, path: str = "") -> Iterator[tuple[str, Any, bool]]:
        """Yield the path and the value of whatever is remembered, and whether clients hold it."""
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, RuleState):
                yield from value._leaves(f"{path}{part.name}/")
            elif value is not None:
                yield path + part.name, value, _HELD_BY_CLIENTS in part.metadata

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays and numbers by their paths, those of states inside included."""
        return {path: np.asarray(value) for path, value, _ in self._leaves() if not isinstance(value, StaleMemory)}

    def memories(self) -> dict[str, StaleMemory]:
        """All memories by their paths, those of states inside included."""
        return {path: value for path, value, _ in self._leaves() if isinstance(value, StaleMemory)}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, rows and running sums that the server keeps."""
        size = 0
        for _, value, elsewhere in self._leaves():
            if isinstance(value, StaleMemory) and (not elsewhere or value.masses.any()):
                size += value.total.nbytes
            if isinstance(value, (StaleMemory, np.ndarray)) and not elsewhere:
                size += value.nbytes
        return size

    def grow(self, num_clients: int) -> None:
        """Make room for clients that join, in place."""
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, (RuleState, StaleMemory)):
                value.grow(num_clients)
            elif _FILL in part.metadata:
                more = np.full((num_clients - len(value), *value.shape[1:]), part.metadata[_FILL], dtype=value.dtype)
                setattr(self, part.name, np.concatenate([value, more]))

    def forget(self, clients: ArrayLike) -> None:
        """Let clients leave, in place: what is kept per client is as before their first round."""
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, (RuleState, StaleMemory)):
                value.forget(clients)
            elif _FILL in part.metadata:
                value[clients] = part.metadata[_FILL]

    def describe(self) -> dict[str, Any]:
        """Say in JSON what there is to be read back by `rebuild`: the class, and what each field holds."""
        described: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, RuleState):
                described[part.name] = value.describe()
            elif isinstance(value, StaleMemory):
                described[part.name] = "memory"
            else:
                described[part.name] = None if value is None else "array" if isinstance(value, np.ndarray) else "number"
        return {"class": type(self).__name__, "fields": described}

    @staticmethod
    def rebuild(
        described: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        memory: Callable[[str], StaleMemory],
        num_clients: int,
        path: str = "",
    ) -> RuleState:
        """Make a state again.

        Parameters
        ----------
        described
            What `describe` said.
        arrays
            What `arrays` returned, by path.
        memory
            Gives the memory of a path.
        num_clients
            N: the length of what is kept per client.
        path
            Where the state is inside another.
        """
        kind = _KINDS.get(described["class"])
        if kind is None:
            what = f"the checkpoint holds a {described['class']}, which is not defined in this process"
            raise InvalidInput(f"{what}: import the module that defines its rule first")
        declared = {part.name: part for part in fields(kind)}
        if declared.keys() != described["fields"].keys():
            raise InvalidInput(
                f"the checkpoint holds a {kind.__name__} with other fields: {', '.join(described['fields'])}"
            )
        values: dict[str, Any] = {}
        for name, what in described["fields"].items():
            at = path + name
            if isinstance(what, Mapping):
                values[name] = RuleState.rebuild(what, arrays, memory, num_clients, f"{at}/")
            elif what == "memory":
                values[name] = memory(at)
            elif what is not None:
                values[name] = arrays[at].item() if what == "number" else arrays[at]
            else:
                values[name] = None
            if _FILL in declared[name].metadata and values[name].shape[:1] != (num_clients,):
                raise InvalidInput(
                    f"the checkpoint's {at} has shape {values[name].shape}, there are {num_clients} clients"
                )
        return kind(**values)


_KINDS[RuleState.__name__] = RuleState


@dataclass(eq=False, kw_only=True)
class MemoryState(RuleState):
    """What a rule with a memory and nothing else remembers."""

    stale: StaleMemory
    """h_i, the stale updates"""
