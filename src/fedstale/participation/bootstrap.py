"""A log made as long and as large as needed: whole days of it drawn again and again (a block bootstrap by days).

The days of the run are the log's days in random order, then all of them in another order, and so on, *the same for
everybody*; client i does on a day what its own device did. So a client keeps its own pattern (its hours, how long it
stays, that it came on one day of five), the clock stays right, and devices that came together on a day come together.
Where nothing is known of a device at some time of the day, others of its own days are looked at in random order (each
client by itself) and the first that is known there is taken; where it is known on no day, the nearest time of the day
at which it is. A stay that goes on over the end of a day is cut there: the next day is another one of the log.

With more clients than devices some clients have the same device. The first of them follows the shared days; the others
have orders of their own, else they would do exactly the same: they share the hour of the day, not the day.

All probabilities are exact. With x_i(d, h) = 1, 0 or unknown and e_i(d, h) = x_i(d, h), where unknown the mean over the
known days:

    p_i(h)        = mean over the days of e_i(d, h) = mean of what is known
    P(i and j)(h) = mean over the days of e_i(d, h) e_j(d, h)      both on shared days; else p_i(h) p_j(h)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_count, fail, positive_int
from ..federation import Ints
from ..randomness import generator
from .inclusion import expected_inclusion
from .processes import Process, frozen
from .trace import NOTHING_KNOWN, Trace


@dataclass(frozen=True, eq=False)
class Bootstrap(Process):
    """Days of a log, drawn again: each client keeps its own pattern, all share the day.

    Parameters
    ----------
    trace
        The log; its last rounds that make no whole day are left out.
    members
        The device of each client, shape (N,); one may be given several times.
    period
        Rounds of a day; default: what the log's times say.
    """

    varies: ClassVar[bool] = True
    trace: Trace
    members: ArrayLike
    period: int | None = None
    _memo: dict[tuple[int, int], NDArray[np.bool_]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.trace, Trace):
            raise fail("trace", self.trace, "must be a Trace")
        period = self.trace.rounds_per_day if self.period is None else self.period
        if period is None:
            raise fail("period", None, "the log has no times: give the number of rounds in a day")
        if positive_int("period", period) > self.trace.num_rounds:
            raise fail("period", period, f"the log has only {self.trace.num_rounds} rounds, less than one day")
        members = np.asarray(self.members)
        if members.ndim != 1 or not members.size or members.dtype.kind not in "iu":
            raise fail("members", self.members, "must be one device of the log per client")
        if (members < 0).any() or (members >= self.trace.num_clients).any():
            raise fail("members", self.members, f"must lie in 0 … {self.trace.num_clients - 1}")
        object.__setattr__(self, "period", int(period))
        object.__setattr__(self, "members", frozen(members.astype(np.int64)))
        object.__setattr__(self, "num_clients", client_count("number of clients", members.size))

    @classmethod
    def sample(
        cls, trace: Trace, num_clients: int, *, seed: int = 0, period: int | None = None, only_seen: bool = False
    ) -> Bootstrap:
        """Return N clients whose devices are drawn from the log, each at most once more often than any other.

        Parameters
        ----------
        trace
            The log.
        num_clients
            N, more or fewer than the log has.
        seed
            Decides which devices: the clients stay the same in all runs.
        period
            As in `Bootstrap`.
        only_seen
            Whether devices that never came are left out. They are part of the log: without them coverage looks better.
        """
        return cls(trace, drawn_devices(trace, num_clients, seed, only_seen), period)

    @cached_property
    def _days(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether the devices that are used were there, and where that is known, shape (days, period, devices)."""
        days = self.trace.num_rounds // self._day
        shape, used = (days, self._day, -1), self._devices[0]
        there = self.trace.matrix()[: days * self._day, used].reshape(shape)
        known = self.trace.known()[: days * self._day, used].reshape(shape)
        times = np.asarray(known.any(axis=0))
        for device in np.flatnonzero(~times.all(axis=0)):  # a time of the day that is known on no day
            at = np.flatnonzero(times[:, device])
            if not at.size:
                raise fail("trace", self.trace.name(int(used[device])), NOTHING_KNOWN)
            for h in np.flatnonzero(~times[:, device]):
                gap = np.abs(at - h)
                nearest = at[np.argmin(np.minimum(gap, self._day - gap))]
                there[:, h, device], known[:, h, device] = there[:, nearest, device], known[:, nearest, device]
        return there & known, known

    @cached_property
    def _expected(self) -> Float:
        """e_i(d, h) of the devices that are used, shape (days, period, devices)."""
        there, known = self._days
        return np.where(known, there, there.sum(axis=0) / known.sum(axis=0))

    @property
    def _day(self) -> int:
        return int(self.period or 1)

    @cached_property
    def _devices(self) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """The devices that are used, each client's place among them, and who follows the shared days."""
        members = np.asarray(self.members)
        used, place = np.unique(members, return_inverse=True)
        follows = np.zeros(members.size, dtype=np.bool_)
        follows[np.unique(members, return_index=True)[1]] = True
        return used, place.astype(np.int64), follows

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        day, hour = divmod(positive_int("round", round, 0), self._day)
        return np.flatnonzero(self._whole_day(seed, day)[hour])

    def _whole_day(self, seed: int, day: int) -> NDArray[np.bool_]:
        """Who is there in each round of a day of the run, shape (period, N); the last day is kept."""
        if (seed, day) not in self._memo:
            there, known = self._days
            _, place, follows = self._devices
            turn, position = divmod(day, len(there))
            order = generator(seed, "days of a log", turn).permutation(len(there))
            every = np.tile(np.arange(len(there)), (self.num_clients, 1))
            own = generator(seed, "own days of a log", turn).permuted(every, axis=1)
            days = np.where(follows, order[position], own[:, position])
            found, waiting = there[days, :, place], ~known[days, :, place]
            for other in generator(seed, "days instead", day).permuted(every, axis=1).T:
                take = waiting & known[other, :, place]
                found[take] = there[other, :, place][take]
                waiting &= ~take
            self._memo.clear()
            self._memo[seed, day] = found.T
        return self._memo[seed, day]

    def probabilities(self, round: int | None = None) -> Float:
        """Return p_i of the time of the day, or with None the mean over the day."""
        _, place, _ = self._devices
        if round is None:
            return np.asarray(self._expected.mean(axis=(0, 1))[place])
        return np.asarray(self._expected[:, positive_int("round", round, 0) % self._day].mean(axis=0)[place])

    def pairwise(self, round: int | None = None) -> Float:
        """Return P(i and j are both there) at the time of the day, or with None the mean over the day."""
        hours = range(self._day) if round is None else [positive_int("round", round, 0) % self._day]
        _, place, follows = self._devices
        total = np.zeros((self.num_clients, self.num_clients))
        for h in hours:
            each = self._expected[:, h][:, place]
            p = each.mean(axis=0)
            together = each.T @ each / len(each)
            both = np.where(follows[:, None] & follows[None, :], together, np.outer(p, p))
            np.fill_diagonal(both, p)
            total += both
        return total / len(hours)

    def expected(self, asked: Callable[[Ints], Float], round: int | None = None) -> Float:
        """Return E[X_i · asked(ΣX)]: given the shared day the clients are independent."""
        hours = range(self._day) if round is None else [positive_int("round", round, 0) % self._day]
        _, place, follows = self._devices
        total = np.zeros(self.num_clients)
        for h in hours:
            each = self._expected[:, h][:, place]
            mean = each.mean(axis=0)
            for day in each:
                total += expected_inclusion(np.where(follows, day, mean), asked)
        return total / (len(hours) * len(self._expected))

    @property
    def open_share(self) -> Float:
        """The share of the day in which a client can come; 1 for one that never comes, which has no weight anyway."""
        share = (self._expected.mean(axis=0) > 0.0).mean(axis=0)
        return np.asarray(np.where(share > 0.0, share, 1.0)[self._devices[1]])

    def _mean_rounds(self) -> range:
        return range(self._day)


def drawn_devices(trace: Trace, num_clients: int, seed: int, only_seen: bool) -> Ints:
    """Draw the device of each client: all devices once in random order, then all again, as far as needed."""
    n = client_count("num_clients", num_clients)
    devices: Any = np.flatnonzero(trace.counts() > 0) if only_seen else np.arange(trace.num_clients)
    if not devices.size:
        raise fail("only_seen", only_seen, "no device of the log ever came")
    turns = -(-n // devices.size)
    order = [devices[generator(seed, "devices of a log", turn).permutation(devices.size)] for turn in range(turns)]
    return np.concatenate(order)[:n].astype(np.int64)
