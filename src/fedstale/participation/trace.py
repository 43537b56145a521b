"""Replay of a participation log: plain text, one `round,client` pair per line (spec §5).

    # comments and blank lines are skipped
    round,client
    0,3
    0,17
    2,3

Rounds and clients are numbered from 0; the header is optional; the order of the lines does not matter; a pair
that appears twice counts once (a device that connected twice in a round took part in it once). A round
without a line is a round in which nobody came. The comment `# num_rounds=500 num_clients=24`, which
`Trace.to_csv` writes, keeps empty rounds at the end and clients that never came; arguments given to
`Trace.from_csv` take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from ..checks import MOST_CLIENTS, Float, InvalidInput, client_count, fail, positive_int
from ..federation import Ints
from .processes import Process, frozen

_LARGEST_ROUND = 2**62
_SIZES = re.compile(r"#\s*num_rounds=([0-9]+)\s+num_clients=([0-9]+)\s*$")


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
    """

    num_clients: int
    num_rounds: int
    rounds: ArrayLike
    clients: ArrayLike
    repeat: bool = False

    def __post_init__(self) -> None:
        n, length = client_count("num_clients", self.num_clients), positive_int("num_rounds", self.num_rounds)
        if length > _LARGEST_ROUND:
            raise fail("num_rounds", length, f"must be at most {_LARGEST_ROUND:,}")
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

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        num_clients: int | None = None,
        *,
        num_rounds: int | None = None,
        repeat: bool = False,
    ) -> Trace:
        """Read a log (format: see the module).

        Parameters
        ----------
        path
            The file.
        num_clients, num_rounds
            N and T; default: what the file's comment says, else one more than the largest index in it.
        repeat
            Whether to start over after the end.
        """
        if num_clients is not None:
            client_count("num_clients", num_clients)
        if num_rounds is not None:
            positive_int("num_rounds", num_rounds)
        if not isinstance(path, (str, Path)):
            raise fail("path", path, "must name a file")
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
            raise fail("path", str(path), f"cannot be read as a trace ({reason})") from error
        for line in lines:
            if match := _SIZES.match(line.strip()):
                if max(map(len, match.groups())) > 20 or int(match[1]) > _LARGEST_ROUND or int(match[2]) > MOST_CLIENTS:
                    raise fail(str(path), line.strip(), f"at most {_LARGEST_ROUND:,} rounds, {MOST_CLIENTS:,} clients")
                num_rounds = int(match[1]) if num_rounds is None else num_rounds
                num_clients = int(match[2]) if num_clients is None else num_clients
                break
        rounds, clients = _parse(lines, str(path), num_rounds, num_clients)
        if not rounds and (num_rounds is None or num_clients is None):
            raise fail("path", str(path), "holds no round,client pair: give num_rounds and num_clients")
        return cls(
            num_clients=max(clients) + 1 if num_clients is None else num_clients,
            num_rounds=max(rounds) + 1 if num_rounds is None else num_rounds,
            rounds=np.array(rounds, dtype=np.int64),
            clients=np.array(clients, dtype=np.int64),
            repeat=repeat,
        )

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
        pairs = zip(np.asarray(self.rounds).tolist(), np.asarray(self.clients).tolist(), strict=True)
        head = f"# num_rounds={self.num_rounds} num_clients={self.num_clients}\nround,client\n"
        Path(path).write_text(head + "".join(f"{t},{i}\n" for t, i in pairs), encoding="utf-8")

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


def _parse(
    lines: Iterable[str], path: str, num_rounds: int | None, num_clients: int | None
) -> tuple[list[int], list[int]]:
    """Return the pairs; an error names the line."""
    rounds: list[int] = []
    clients: list[int] = []
    top_round = _LARGEST_ROUND if num_rounds is None else num_rounds
    top_client = MOST_CLIENTS if num_clients is None else num_clients
    header_allowed = True
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        fields = [part.strip() for part in text.split(",")]
        if header_allowed and [part.lower() for part in fields] == ["round", "client"]:
            header_allowed = False
            continue
        header_allowed = False
        if len(fields) != 2 or not all(re.fullmatch(r"[+-]?[0-9]{1,30}", part) for part in fields):
            raise _bad_line(path, number, text, "must be two integers: round,client")
        t, i = int(fields[0]), int(fields[1])
        if not 0 <= t < top_round:
            raise _bad_line(path, number, text, f"the round must lie in 0 … {top_round - 1}")
        if not 0 <= i < top_client:
            raise _bad_line(path, number, text, f"the client must lie in 0 … {top_client - 1}")
        rounds.append(t)
        clients.append(i)
    return rounds, clients


def _bad_line(path: str, number: int, text: str, allowed: str) -> InvalidInput:
    return fail(f"{path}, line {number}", text, allowed)
