"""Who trains whom: the clients of a round shared out to workers by the work they mean and the workers' speeds.

Every client has a worker where it is at home, which holds its data. A round's clients go home, unless another worker
would be done with them earlier; what a worker has left over when others are done is taken from it (`Queues.take`). None
of this changes results: what a client sends does not depend on who trained it.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..checks import Float
from ..federation import Ints

_FORGETTING = 0.5
"""How much a measurement of a worker's speed counts against those before it."""


def homes(sizes: Ints, workers: int) -> Ints:
    """Return each client's worker, shape (N,): neighbours stay together, and all workers have about as many samples.

    Parameters
    ----------
    sizes
        Samples n_i, shape (N,).
    workers
        How many workers there are.
    """
    ends = np.cumsum(sizes, dtype=np.float64)
    middles = ends - sizes / 2
    whole = float(ends[-1]) if len(ends) and ends[-1] > 0 else 1.0
    return np.minimum((middles * workers / whole).astype(np.int64), workers - 1)


class WorkerSpeeds:
    """What workers do in a second, as measured; all are alike until something is known."""

    def __init__(self, workers: int) -> None:
        self._known = np.full(workers, np.nan)

    @property
    def values(self) -> Float:
        """Work per second of each worker; one that was not measured yet is like the mean of the others."""
        measured = self._known[np.isfinite(self._known)]
        usual = float(measured.mean()) if measured.size else 1.0
        return np.where(np.isfinite(self._known), self._known, usual)

    def observe(self, worker: int, work: float, seconds: float) -> None:
        """Note that a worker has done so much in so many seconds."""
        if work > 0 and seconds > 0:
            now, before = work / seconds, self._known[worker]
            self._known[worker] = now if np.isnan(before) else before + _FORGETTING * (now - before)

    def forget(self, worker: int) -> None:
        """Know nothing of a worker that was replaced."""
        self._known[worker] = np.nan


def plan(work: Float, home: Ints, speeds: Float) -> list[list[int]]:
    """Share out a round's clients; return the positions of each worker's clients, the largest first.

    Parameters
    ----------
    work
        Of each client, in any unit, shape (|S|,).
    home
        The worker that holds each client's data, shape (|S|,).
    speeds
        Work per second of each worker, shape (W,).
    """
    found: list[list[int]] = [[] for _ in speeds]
    for position in np.argsort(-work, kind="stable").tolist():
        found[int(home[position])].append(position)
    busy = np.array([work[share].sum() for share in found]) / speeds
    for _ in range(len(work)):
        last = int(np.argmax(busy))
        if not (move := _improvement(found[last], work, busy, speeds, last)):
            break
        k, other = move
        position = found[last].pop(k)
        busy[last] -= work[position] / speeds[last]
        busy[other] += work[position] / speeds[other]
        found[other].append(position)
    return found


def _improvement(share: list[int], work: Float, busy: Float, speeds: Float, last: int) -> tuple[int, int] | None:
    """Return which of the busiest worker's clients should go to whom: the first, largest, one that helps."""
    for k, position in enumerate(share):
        done = busy + work[position] / speeds
        done[last] = np.inf
        other = int(np.argmin(done))
        if done[other] < busy[last] * (1 - 1e-9):
            return k, other
    return None


def pieces(positions: list[int], work: Float, count: int) -> list[list[int]]:
    """Cut a worker's clients into at most `count` pieces of about equal work, in their order."""
    if not positions:
        return []
    ends = np.cumsum(work[positions])
    number = np.minimum((ends - work[positions] / 2) * count / max(float(ends[-1]), 1e-300), count - 1).astype(int)
    cuts = np.flatnonzero(np.diff(number)) + 1
    return [part.tolist() for part in np.split(np.asarray(positions), cuts)]


class Queues:
    """Pieces of a round that nobody works on yet, a queue for each worker.

    Parameters
    ----------
    waiting
        The pieces of each worker.
    work
        Of each client of the round.
    """

    def __init__(self, waiting: list[list[list[int]]], work: Float) -> None:
        self._waiting = [deque(own) for own in waiting]
        self._work = work
        self._left = np.array([sum(map(self._of, own)) for own in waiting], dtype=np.float64)
        self._count = sum(map(len, waiting))

    def __len__(self) -> int:
        """How many pieces are waiting."""
        return self._count

    def take(self, worker: int, speeds: Float, *, others: bool = True) -> list[int] | None:
        """Return the next piece for a worker: its own first, then the last one of whoever would be busy longest.

        Without `others` it gets its own only.
        """
        whose, own = worker, bool(self._waiting[worker])
        if not own and others:
            whose = int(np.argmax(self._left / speeds))
        if not self._waiting[whose]:
            return None
        piece = self._waiting[whose].popleft() if own else self._waiting[whose].pop()
        self._count -= 1
        self._left[whose] = self._left[whose] - self._of(piece) if self._waiting[whose] else 0.0
        return piece

    def put_back(self, worker: int, piece: list[int]) -> None:
        """Let a piece be done again that was lost."""
        if piece:
            self._waiting[worker].appendleft(piece)
            self._left[worker] += self._of(piece)
            self._count += 1

    def _of(self, piece: list[int]) -> float:
        return float(self._work[piece].sum())
