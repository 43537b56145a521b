"""Processes whose probabilities change with the round: diurnal windows and schedules (spec §5).

Given the round, the clients are independent; p_i(t) is an exact function of t, and the long-run p_i is its
mean. Known probabilities are those of the round (`Participation.known`): with the mean, a client would count for too
much in the rounds in which it comes often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, client_count, fail, positive_int, probability, vector
from ..federation import Ints
from .processes import Process, below, frozen

_LONGEST_HORIZON = 1_000_000
"""Rounds over which a mean is taken one by one."""


@dataclass(frozen=True, eq=False)
class Cyclic(Process):
    """Diurnal availability: each client has a window in every period, as when phones charge at night.

    In round t the clock of client i stands at (t + phases_i) mod period; its window is open while the clock
    is below the number of open rounds. It comes with probability `inside` while open and `outside` while
    closed.

    Parameters
    ----------
    phases
        Clock of each client in round 0, non-negative integers (rounds), shape (N,).
    period
        Rounds per cycle.
    open_fraction
        Share of the period that is open, in (0, 1]; rounded to whole rounds (halves up), at least one.
    inside
        Probability while open, in (0, 1]; one number or shape (N,).
    outside
        Probability while closed, in [0, 1]; one number or shape (N,).
    """

    varies: ClassVar[bool] = True
    phases: ArrayLike
    period: int
    open_fraction: float = 0.5
    inside: ArrayLike = 1.0
    outside: ArrayLike = 0.0

    def __post_init__(self) -> None:
        positive_int("period", self.period)
        probability("open_fraction", self.open_fraction)
        phases = np.asarray(self.phases)
        if phases.ndim != 1 or not phases.size or phases.dtype.kind not in "iu" or (phases < 0).any():
            raise fail("phases", self.phases, "must be non-negative integers (rounds), one per client")
        object.__setattr__(self, "phases", frozen(phases.astype(np.int64)))
        object.__setattr__(self, "num_clients", phases.size)
        inside = vector("inside", self.inside, phases.size)
        if (inside <= 0.0).any() or (inside > 1.0).any():
            raise fail("inside", self.inside, "must lie in (0, 1]: a client that never comes has no weight 1/p")
        outside = _unit_interval("outside", self.outside, phases.size)
        object.__setattr__(self, "inside", frozen(inside))
        object.__setattr__(self, "outside", frozen(outside))

    @classmethod
    def spread(
        cls,
        num_clients: int,
        period: int,
        open_fraction: float = 0.5,
        inside: ArrayLike = 1.0,
        outside: ArrayLike = 0.0,
    ) -> Cyclic:
        """Return N clients whose windows are spread evenly over the period, as over time zones."""
        n, length = client_count("num_clients", num_clients), positive_int("period", period)
        return cls(np.arange(n, dtype=np.int64) * length // n, length, open_fraction, inside, outside)

    @property
    def open_rounds(self) -> int:
        """Rounds of each period in which a client's window is open."""
        return max(1, int(np.floor(self.open_fraction * self.period + 0.5)))

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        return below(seed, round, self.probabilities(round))

    def probabilities(self, round: int | None = None) -> Float:
        """Return p_i(t), which may be 0 while closed, or with None the mean over a period."""
        inside, outside = np.asarray(self.inside), np.asarray(self.outside)
        if round is None:
            return np.asarray(outside + (inside - outside) * (self.open_rounds / self.period))
        clock = (positive_int("round", round, 0) + np.asarray(self.phases)) % self.period
        return np.where(clock < self.open_rounds, inside, outside)

    @property
    def open_share(self) -> Float:
        """The part of the period in which a client can come."""
        return np.where(np.asarray(self.outside) > 0.0, 1.0, self.open_rounds / self.period)

    def _mean_rounds(self) -> range:
        return range(self.period)


@dataclass(frozen=True, eq=False)
class Breakpoints:
    """A table of probabilities: a schedule p(t) that is constant or linear between given rounds.

    Parameters
    ----------
    rounds
        Rounds of the rows, increasing, the first 0, shape (B,). After the last one its row stays.
    values
        Probabilities in [0, 1], shape (B, N).
    kind
        "constant": a row holds from its round on; "linear": interpolated between rows.
    """

    rounds: ArrayLike
    values: ArrayLike
    kind: Literal["constant", "linear"] = "constant"

    def __post_init__(self) -> None:
        rounds = np.asarray(self.rounds)
        increasing = rounds.ndim == 1 and rounds.size > 0 and rounds.dtype.kind in "iu"
        if not increasing or rounds[0] != 0 or (np.diff(rounds.astype(np.int64)) <= 0).any():
            raise fail("rounds", self.rounds, "must be increasing integers that begin with 0")
        values = _table("values", self.values)
        if values.ndim != 2 or values.shape[0] != rounds.size or not values.shape[1]:
            raise fail("values", f"array of shape {values.shape}", f"must have shape ({rounds.size}, num_clients)")
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise fail("values", self.values, "probabilities must lie in [0, 1]")
        if self.kind not in ("constant", "linear"):
            raise fail("kind", self.kind, 'must be "constant" or "linear"')
        object.__setattr__(self, "rounds", frozen(rounds.astype(np.int64)))
        object.__setattr__(self, "values", frozen(values))

    @property
    def last(self) -> int:
        """The round from which on nothing changes."""
        return int(np.asarray(self.rounds)[-1])

    def __call__(self, round: int) -> Float:
        """Return p(t), shape (N,)."""
        rounds, values = np.asarray(self.rounds), np.asarray(self.values)
        row = int(np.searchsorted(rounds, round, side="right")) - 1
        if self.kind == "constant" or row == rounds.size - 1:
            return np.asarray(values[row]).copy()
        step = (round - rounds[row]) / (rounds[row + 1] - rounds[row])
        return np.asarray((1.0 - step) * values[row] + step * values[row + 1])


@dataclass(frozen=True, eq=False)
class TimeVarying(Process):
    """Independent clients with probabilities p_i(t) that follow a schedule.

    Parameters
    ----------
    schedule
        A pure function from the round to N probabilities in [0, 1], shape (N,): `Breakpoints` or your own.
    horizon
        Length of the run over which the mean p_i is taken. Without it a table's long-run mean is its last
        row, which stays for ever, and a function has none.
    """

    varies: ClassVar[bool] = True
    schedule: Callable[[int], ArrayLike]
    horizon: int | None = None

    def __post_init__(self) -> None:
        schedule: object = self.schedule
        if not callable(schedule):
            allowed = "must be a function of the round; TimeVarying.table takes arrays"
            raise fail("schedule", schedule, allowed)
        if self.horizon is not None and positive_int("horizon", self.horizon) > _LONGEST_HORIZON:
            raise fail("horizon", self.horizon, f"must be at most {_LONGEST_HORIZON:,} rounds: they are added up")
        first = vector("schedule(0)", self.schedule(0))
        object.__setattr__(self, "num_clients", positive_int("clients in schedule(0)", first.size))
        self.probabilities(0)
        has_mean = self.horizon is not None or isinstance(self.schedule, Breakpoints)
        if has_mean and (never := np.flatnonzero(self.probabilities() == 0.0)).size:
            allowed = "every client must come with a positive probability in the long run"
            raise fail(f"mean of schedule[{never[0]}]", 0.0, allowed)

    @classmethod
    def table(
        cls,
        rounds: ArrayLike,
        values: ArrayLike,
        *,
        num_clients: int | None = None,
        kind: Literal["constant", "linear"] = "constant",
        horizon: int | None = None,
    ) -> TimeVarying:
        """Return the process of a table (`Breakpoints`); values of shape (B,) go to each of `num_clients`."""
        rows = _table("values", values)
        if rows.ndim == 1 and num_clients is not None:
            rows = np.repeat(rows[:, None], client_count("num_clients", num_clients), axis=1)
        schedule = Breakpoints(rounds, rows, kind)
        if num_clients is not None and rows.shape[1] != num_clients:
            raise fail("num_clients", num_clients, f"the table has {rows.shape[1]} columns, one per client")
        return cls(schedule, horizon)

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        return below(seed, round, self.probabilities(round))

    def probabilities(self, round: int | None = None) -> Float:
        """Return p_i(t), or with None the mean over the horizon."""
        if round is not None:
            t = positive_int("round", round, 0)
            return _unit_interval(f"schedule({t})", self.schedule(t), self.num_clients)
        rounds = self._mean_rounds()
        return np.asarray(sum((self.probabilities(t) for t in rounds), np.zeros(self.num_clients)) / len(rounds))

    @cached_property
    def open_share(self) -> Float:  # looked up once: a long horizon is a long sum
        """The share of the horizon's rounds in which a client can come; 1 without a horizon."""
        if self.horizon is None:
            return np.ones(self.num_clients)
        return np.asarray(np.mean([self.probabilities(t) > 0.0 for t in range(self.horizon)], axis=0))

    def _mean_rounds(self) -> range:
        if self.horizon is not None:
            return range(self.horizon)
        if isinstance(self.schedule, Breakpoints):
            return range(self.schedule.last, self.schedule.last + 1)
        raise fail("horizon", None, "a schedule given as a function needs the number of rounds to average over")


def _unit_interval(argument: str, value: ArrayLike, length: int) -> Float:
    """Check numbers in [0, 1]; a scalar is spread."""
    array = vector(argument, value, length)
    bad = np.flatnonzero((array < 0.0) | (array > 1.0))
    if bad.size:
        raise fail(f"{argument}[{bad[0]}]", float(array[bad[0]]), "must lie in [0, 1]")
    return array


def _table(argument: str, value: ArrayLike) -> Float:
    """Read an array of numbers of any shape."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(argument, value, "must be an array of numbers, one row per breakpoint") from None
