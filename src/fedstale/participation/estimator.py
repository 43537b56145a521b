"""Where the p_i come from: the interface of the estimators, their state, and the p_i that are known (spec §4).

In round t a rule asks `probabilities` for the participants first and `observe` counts the round afterwards,
so that the present participation never enters its own weight. The state is plain arrays: what is saved is all
there is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_count, client_ids, fail, positive_int
from ..checks import probabilities as check_probabilities
from ..federation import Ints
from .processes import frozen

if TYPE_CHECKING:
    from .selection import Participation

Columns = dict[str, NDArray[Any]]


@dataclass(eq=False)
class EstimatorState:
    """All that an estimator remembers.

    Attributes
    ----------
    num_clients
        N.
    round
        The next round to observe: rounds 0 … round − 1 are counted.
    columns
        Per-client arrays of shape (N,), named by the estimator.
    """

    num_clients: int
    round: int = 0
    columns: Columns = field(default_factory=dict)

    def arrays(self) -> Columns:
        """Return everything as named arrays (copies), to be saved."""
        scalars = {
            "num_clients": np.array([self.num_clients], dtype=np.int64),
            "round": np.array([self.round], dtype=np.int64),
        }
        return scalars | {name: column.copy() for name, column in self.columns.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> EstimatorState:
        """Rebuild a state from `arrays`, bit for bit."""
        for name in ("num_clients", "round"):
            if name not in arrays or arrays[name].shape != (1,):
                raise fail("arrays", sorted(arrays), f"must hold {name!r} with one number")
        num_clients = client_count("num_clients", int(arrays["num_clients"][0]))
        columns = {name: column.copy() for name, column in arrays.items() if name not in ("num_clients", "round")}
        for name, column in columns.items():
            if column.shape != (num_clients,):
                raise fail(f"arrays[{name!r}]", f"array of shape {column.shape}", f"must have shape ({num_clients},)")
        return cls(num_clients, positive_int("round", int(arrays["round"][0]), 0), columns)


class Estimator(ABC):
    """How p_i is known or learned: hyper-parameters only, everything that changes is in the state."""

    def init(self, num_clients: int) -> EstimatorState:
        """Return the state before round 0."""
        n = client_count("num_clients", num_clients)
        return EstimatorState(n, 0, self._columns(0, n))

    def probabilities(self, state: EstimatorState, clients: ArrayLike) -> Float:
        """Return p̂_i in (0, 1] of the given clients, from the rounds observed so far."""
        ids = client_ids("clients", clients, state.num_clients)
        self._check(state)
        return self._estimate(state, ids)

    clocks: ClassVar[tuple[str, ...]] = ()
    """Columns that hold a round: they go along with the rounds that do not count for a client."""

    def observe(self, state: EstimatorState, participants: ArrayLike, round: int, skipped: ArrayLike = ()) -> None:
        """Count a round, in place; rounds come one by one from 0, those in which nobody came included.

        For the clients in `skipped` it does not count: nothing was seen of whether they would have come.
        """
        ids = client_ids("participants", participants, state.num_clients)
        others = client_ids("skipped", np.asarray(skipped, dtype=np.int64), state.num_clients)
        self._check(state)
        if positive_int("round", round, 0) != state.round:
            raise fail("round", round, f"rounds are observed once and in order: the next is {state.round}")
        self._count(state, ids)
        for name in self.clocks:
            state.columns[name][others] += 1
        state.round += 1

    def grow(self, state: EstimatorState, num_clients: int) -> None:
        """Add clients, in place: they start fresh with the next round."""
        if client_count("num_clients", num_clients) < state.num_clients:
            raise fail("num_clients", num_clients, f"a state of {state.num_clients} clients does not shrink")
        self._check(state)
        fresh = self._columns(state.round, num_clients - state.num_clients)
        state.columns = {name: np.concatenate([old, fresh[name]]) for name, old in state.columns.items()}
        state.num_clients = num_clients

    def forget(self, state: EstimatorState, clients: ArrayLike) -> None:
        """Let clients leave, in place: whoever comes back starts fresh."""
        ids = client_ids("clients", clients, state.num_clients)
        self._check(state)
        for name, fresh in self._columns(state.round, len(ids)).items():
            state.columns[name][ids] = fresh

    @abstractmethod
    def _columns(self, round: int, count: int) -> Columns:
        """Return fresh columns for clients that join before the given round."""

    @abstractmethod
    def _estimate(self, state: EstimatorState, ids: Ints) -> Float: ...

    @abstractmethod
    def _count(self, state: EstimatorState, ids: Ints) -> None: ...

    @cached_property
    def _kinds(self) -> dict[str, np.dtype[Any]]:
        """The columns of a state and what they hold."""
        return {name: column.dtype for name, column in self._columns(0, 0).items()}

    def _check(self, state: EstimatorState) -> None:
        if {name: column.dtype for name, column in state.columns.items()} != self._kinds:
            allowed = f"a state of {type(self).__name__} has the columns {sorted(self._kinds)}"
            raise fail("state", sorted(state.columns), allowed)


@dataclass(frozen=True, eq=False)
class KnownProbabilities(Estimator):
    """The p_i are given.

    Parameters
    ----------
    p
        Probabilities in (0, 1], in the order of the clients, shape (N,), or one number for all; or a function from the
        round to N probabilities in [0, 1], where they change (0: this client cannot come in this round).
    """

    p: ArrayLike | Callable[[int], Float]

    def __post_init__(self) -> None:
        if callable(self.p):
            return
        common = np.ndim(self.p) == 0
        p = check_probabilities("p", self.p, 1 if common else None)
        object.__setattr__(self, "p", frozen(p.reshape(()) if common else p))

    def init(self, num_clients: int) -> EstimatorState:
        """Return an empty state, after checking that there is one p_i per client."""
        count = self._num_known()
        if count not in (None, num_clients):
            raise fail("num_clients", num_clients, f"{count} known probabilities were given, one per client")
        return super().init(num_clients)

    @classmethod
    def of(cls, participation: Participation) -> KnownProbabilities:
        """Return the p_i of a participation: of the round, p_i(t), where they change with it; 0 for who never comes."""
        if participation.varies:
            return cls(participation.known)
        p = participation.known(0)
        return cls(p if p.all() else lambda round: p)

    def grow(self, state: EstimatorState, num_clients: int) -> None:
        """Add clients; possible only when one number holds for all."""
        count = self._num_known()
        if count is not None and num_clients != count:
            raise fail("num_clients", num_clients, f"only {count} probabilities are known")
        super().grow(state, num_clients)

    def _num_known(self) -> int | None:
        """N, or None where one number holds for all."""
        p = self.p(0) if callable(self.p) else self.p
        return int(np.size(p)) if np.ndim(p) else None

    def _columns(self, round: int, count: int) -> Columns:
        return {}

    def _estimate(self, state: EstimatorState, ids: Ints) -> Float:
        p = np.asarray(self.p(state.round) if callable(self.p) else self.p, dtype=np.float64)
        return np.full(ids.size, float(p)) if p.ndim == 0 else p[ids]

    def _count(self, state: EstimatorState, ids: Ints) -> None:
        return
