"""Replay of a participation log, and what it holds: who was there, of whom nothing is known, names, times (spec §5).

How logs are read: `log_files` (CSV), `logs` (names, times, intervals, matrices).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_count, counted, fail, number, positive_int
from ..durable import replacing
from ..federation import Ints
from . import logs
from .log_files import LARGEST_ROUND, log_text, read_log
from .log_times import DAY, duration_text
from .processes import Process, frozen

NOTHING_KNOWN = "nothing is known of this device: take it out of the log (in Python: Trace.subset)"


class Participants(Protocol):
    """Whatever can say who takes part in a round: a `Participation`."""

    @property
    def num_clients(self) -> int:
        """The number of clients N."""

    def participants(self, seed: int, round: int, last_seen: ArrayLike | None = None) -> Ints:
        """Return the participants of a round."""


@dataclass(frozen=True, eq=False)
class Trace(Process):
    """The clients of a log, round by round; the seed plays no part.

    Parameters
    ----------
    num_clients
        N; clients without a pair never come.
    num_rounds
        Length of the log T; rounds without a pair are empty.
    rounds, clients
        The pairs, two integer arrays of equal length in any order; double pairs count once.
    repeat
        After the end: False refuses (the log says nothing about those rounds), True starts over.
    unknown
        Where nothing is known of a client: rows (client, first round, round after the last), shape (G, 3). A replay
        takes these rounds as absent; `frequencies` leaves them out.
    names
        What the devices are called, N texts.
    round_seconds, start_seconds
        How long a round is, and how long after midnight round 0 begins, where the log has times.

    Attributes
    ----------
    source
        What was read: (rows, first time, last time), the times as text or None; None where nothing was read.
    """

    num_clients: int
    num_rounds: int
    rounds: ArrayLike
    clients: ArrayLike
    repeat: bool = False
    unknown: ArrayLike | None = field(default=None, kw_only=True)
    names: Sequence[str] | None = field(default=None, kw_only=True)
    round_seconds: float | None = field(default=None, kw_only=True)
    start_seconds: float = field(default=0.0, kw_only=True)
    source: logs.LogSource | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        n, length = client_count("num_clients", self.num_clients), positive_int("num_rounds", self.num_rounds)
        if length > LARGEST_ROUND:
            raise fail("num_rounds", length, f"must be at most {LARGEST_ROUND:,}")
        rounds = _indices("rounds", self.rounds, length)
        clients = _indices("clients", self.clients, n)
        if rounds.size != clients.size:
            raise fail("clients", f"{clients.size} numbers", f"must be as many as there are rounds ({rounds.size})")
        order = np.lexsort((clients, rounds))
        rounds, clients = rounds[order], clients[order]
        first = np.ones(rounds.size, dtype=np.bool_)
        first[1:] = (np.diff(rounds) != 0) | (np.diff(clients) != 0)
        object.__setattr__(self, "rounds", frozen(rounds[first]))
        object.__setattr__(self, "clients", frozen(clients[first]))
        if self.unknown is not None:
            object.__setattr__(self, "unknown", self._gaps(np.asarray(self.unknown), n, length))
        if self.names is not None:
            names = tuple(str(name) for name in self.names)
            if len(names) != n:
                raise fail("names", f"{len(names)} names", f"must be one per client ({n})")
            object.__setattr__(self, "names", names)
        if self.round_seconds is not None:
            number("round_seconds", self.round_seconds, 0.0, open_low=True)
        number("start_seconds", self.start_seconds, 0.0)

    @staticmethod
    def _gaps(rows: NDArray[Any], num_clients: int, num_rounds: int) -> Ints | None:
        if not rows.size:
            return None
        if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype.kind not in "iu":
            raise fail("unknown", f"array of shape {rows.shape}", "must be rows of three integers: client, first, stop")
        who, first, stop = rows.astype(np.int64).T
        bad = np.flatnonzero((who < 0) | (who >= num_clients) | (first < 0) | (first >= stop) | (stop > num_rounds))
        if bad.size:
            allowed = f"must be a client below {num_clients} and rounds within 0 … {num_rounds}"
            raise fail(f"unknown[{bad[0]}]", rows[bad[0]].tolist(), allowed)
        return frozen(rows[np.lexsort((first, who))].astype(np.int64))

    @classmethod
    def _read(cls, found: logs.Fields, **options: Any) -> Trace:
        source = found.pop("source", None)
        made = cls(**found, **options)
        object.__setattr__(made, "source", source)
        return made

    @classmethod
    def from_matrix(cls, matrix: Any, *, names: Sequence[str] | None = None, repeat: bool = False) -> Trace:
        """Return the log of a matrix of rounds × clients: 1 there, 0 not, `?`, NaN or -1 where it is not known.

        Parameters
        ----------
        matrix
            Numbers, or one text per round with one character per client; or a data frame.
        names
            What the devices are called; default: the columns of a data frame.
        repeat
            Whether to start over after the end.
        """
        columns = getattr(matrix, "columns", None)  # of a data frame; pandas numbers those that have no names
        if names is None and columns is not None and list(columns) != list(range(len(columns))):
            names = [str(column) for column in columns]
        return cls(**logs.matrix_log(matrix), names=names, repeat=repeat)

    @classmethod
    def from_intervals(
        cls,
        devices: Sequence[Any],
        starts: Any,
        ends: Any,
        round: str | float | timedelta,
        *,
        least: float = 0.5,
        names: Sequence[str] | None = None,
        repeat: bool = False,
        unit: str | None = None,
    ) -> Trace:
        """Return the log of devices that were there from some time to another.

        Parameters
        ----------
        devices
            The device of each interval: any names.
        starts, ends
            Times: seconds, datetimes, datetime64, or text such as "2026-11-18 04:30:00".
        round
            The length of a round: "30min", "1h30min", a timedelta, or seconds.
        least
            The share of a round for which a device must be there to count.
        names
            All devices, in their order, those that never came included; default: those of the log, sorted.
        repeat
            Whether to start over after the end.
        unit
            Of times that are numbers: "s" (default), "ms", "us" or "ns".
        """
        found = logs.interval_log(devices, starts, ends, round, least=least, names=names, unit=unit)
        return cls._read(found, repeat=repeat)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        round: str | float | timedelta | None = None,
        *,
        names: Sequence[str] | None = None,
        repeat: bool = False,
        unit: str | None = None,
    ) -> Trace:
        """Return the log of a data frame with the columns of `from_csv`: device with time, or with start and end.

        Parameters
        ----------
        frame
            The data frame; columns round and client (both numbered from 0), or round and device, need no length of a
            round.
        round, names, repeat, unit
            As for `from_intervals`.
        """
        if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
            raise fail(
                "frame", type(frame).__name__, "must be a pandas data frame (others: from_intervals, from_matrix)"
            )
        header = [str(name) for name in frame.columns]
        places = logs.kinds_of(header, "frame")
        columns = {kind: frame.iloc[:, place].to_numpy() for kind, place in places.items()}
        if not len(frame):
            raise fail("frame", "no rows", "must have at least one")
        for column in logs.states_of(header):
            for row, value in enumerate(frame.iloc[:, column].tolist(), start=1):
                logs.check_state("frame, row", row, header[column], value)
        rounds, clients = (np.asarray(columns.get(kind, ())) for kind in ("round", "device"))
        # Only a column called client has numbers from 0, as in `from_csv`; other numbers are names.
        numbered = columns.keys() == {"round", "device"} and header[places["device"]].strip().lower() == "client"
        numbered = numbered and rounds.dtype.kind in "iu" and clients.dtype.kind in "iu"
        if numbered and round is None and names is None:
            return cls(int(clients.max()) + 1, int(rounds.max()) + 1, rounds, clients, repeat)
        return cls._read(logs.table_log(columns, round, "frame", names=names, unit=unit), repeat=repeat)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        num_clients: int | None = None,
        *,
        num_rounds: int | None = None,
        repeat: bool = False,
        round: str | float | timedelta | None = None,
        unit: str | None = None,
    ) -> Trace:
        """Read a log: pairs round,client or lines of 0, 1 and ? (see `log_files`), or device names with times (`logs`).

        A header round,device says that devices have names and rounds have numbers.

        A log with times has a header with the columns device and time, or device, start and end, in any order and among
        others, with commas, semicolons or tabs between them.

        Parameters
        ----------
        path
            The file.
        num_clients, num_rounds
            N and T; default: what the file's comment says, else one more than the largest index in it.
        repeat
            Whether to start over after the end.
        round
            The length of a round where the log has times, or is a matrix: "30min", "1h", or seconds.
        unit
            Of times that are numbers: "s" (default), "ms", "us" or "ns".
        """
        return cls._read(read_log(path, num_clients, num_rounds, round, unit), repeat=repeat)

    @classmethod
    def record(cls, source: Process | Participants, seed: int, num_rounds: int) -> Trace:
        """Return the log that a process (who is available) or a participation (who takes part) gives."""
        last_seen = np.full(source.num_clients, -1, dtype=np.int64)
        present: list[Ints] = []
        for t in range(positive_int("num_rounds", num_rounds)):
            if isinstance(source, Process):
                present.append(source.available(seed, t))
            else:
                present.append(source.participants(seed, t, last_seen))
            last_seen[present[-1]] = t
        rounds = np.repeat(np.arange(num_rounds), [len(ids) for ids in present])
        return cls(source.num_clients, num_rounds, rounds, np.concatenate(present))

    def to_csv(self, path: str | Path) -> None:
        """Write the log so that `from_csv` gives it back whole."""
        with replacing(Path(path)) as unfinished:  # cut short, it would be read as a log in which fewer came
            unfinished.write_text(log_text(vars(self)), encoding="utf-8")

    def matrix(self) -> NDArray[np.bool_]:
        """Return who was there, shape (T, N)."""
        there = np.zeros((self.num_rounds, self.num_clients), dtype=np.bool_)
        there[np.asarray(self.rounds), np.asarray(self.clients)] = True
        return there

    def known(self) -> NDArray[np.bool_]:
        """Return of whom something is known, shape (T, N)."""
        found = np.ones((self.num_rounds, self.num_clients), dtype=np.bool_)
        for client, first, stop in [] if self.unknown is None else np.asarray(self.unknown).tolist():
            found[first:stop, client] = False
        return found

    def known_rounds(self) -> Ints:
        """Return in how many rounds something is known of each client, shape (N,)."""
        found = np.full(self.num_clients, self.num_rounds, dtype=np.int64)
        if self.unknown is not None:
            who, first, stop = np.asarray(self.unknown).T
            np.subtract.at(found, who, stop - first)
        return found

    @property
    def rounds_per_day(self) -> int | None:
        """Rounds in a day, where the log has times and a day is a whole number of them."""
        per_day = None if self.round_seconds is None else DAY / self.round_seconds
        return None if per_day is None or per_day < 2 or per_day % 1 else int(per_day)

    def extent(self) -> str:
        """Return how long the log is and what was read, in a line: 241 rounds of 30min, from … to …, 1,234 rows."""
        text = counted(self.num_rounds, "round")
        if self.round_seconds is not None:
            text += f" of {duration_text(self.round_seconds)}"
        if self.source is None:
            return text
        span = "" if self.source.first is None else f", from {self.source.first} to {self.source.last}"
        return f"{text}{span}, {counted(self.source.rows, 'row')}"

    def name(self, client: int) -> str:
        """Return what a client is called: its name in the log, else its number."""
        return str(client) if self.names is None else self.names[client]

    def subset(self, clients: ArrayLike) -> Trace:
        """Return the log of some clients, numbered from 0 in the given order; one may be given several times."""
        members = np.asarray(clients)
        if members.ndim != 1 or not members.size or members.dtype.kind not in "iu":
            raise fail("clients", clients, "must be a list of clients")
        _indices("clients", members, self.num_clients)
        fields = logs.matrix_log(np.where(self.known(), self.matrix(), -1)[:, members])
        names = None if self.names is None else [self.names[k] for k in members]
        fields |= {"round_seconds": self.round_seconds, "start_seconds": self.start_seconds}
        return type(self)(**fields, names=names, repeat=self.repeat)

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted clients of a round; the seed is ignored."""
        t = self._row(round)
        first, after = np.searchsorted(np.asarray(self.rounds), (t, t + 1))
        return np.array(np.asarray(self.clients)[first:after], dtype=np.int64)

    def counts(self) -> Ints:
        """Return how many rounds each client took part in, shape (N,)."""
        return np.bincount(np.asarray(self.clients), minlength=self.num_clients).astype(np.int64)

    def probabilities(self, round: int | None = None) -> Float:
        """Return the frequencies in the log (0 for a client that never came); for a round, 1 or 0."""
        if round is None:
            return self.counts() / self.num_rounds
        here = np.zeros(self.num_clients)
        here[self.available(0, round)] = 1.0
        return here

    def pairwise(self, round: int | None = None) -> Float:
        """Return the share of the rounds in which both clients came, shape (N, N); for a round, 1 or 0."""
        if round is not None:
            here = self.probabilities(round)
            return np.outer(here, here)
        there = self.matrix().astype(np.float64)
        return np.asarray(there.T @ there / self.num_rounds)

    def expected(self, asked: Callable[[Ints], Float], round: int | None = None) -> Float:
        """Return the mean over the log of X_i · asked(ΣX): exact, because the log is all there is."""
        if round is not None:
            here = self.probabilities(round)
            size = np.array([max(1, int(here.sum()))], dtype=np.int64)
            return here * asked(size)
        _, index, sizes = np.unique(np.asarray(self.rounds), return_inverse=True, return_counts=True)
        if not sizes.size:
            return np.zeros(self.num_clients)
        share = asked(sizes.astype(np.int64))[index]
        total = np.bincount(np.asarray(self.clients), weights=share, minlength=self.num_clients)
        return np.asarray(total / self.num_rounds)

    def _row(self, round: int) -> int:
        t = positive_int("round", round, 0)
        if t >= self.num_rounds and not self.repeat:
            raise fail("round", t, f"the trace ends after {self.num_rounds} rounds (repeat=True starts over)")
        return t % self.num_rounds


def _indices(argument: str, value: ArrayLike, limit: int) -> Ints:
    array = np.asarray(value)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise fail(argument, value, "must be a one-dimensional array of integers")
    bad = np.flatnonzero((array < 0) | (array >= limit))
    if bad.size:
        raise fail(f"{argument}[{bad[0]}]", int(array[bad[0]]), f"must lie in 0 … {limit - 1}")
    return array.astype(np.int64)
