"""Who came when: what a run recorded of its participants, as the raster that pictures, report and board draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import Float
from ..federation import Ints

_MOST = 10**6  # of more clients, only those up to the last who came are drawn


@dataclass(frozen=True, eq=False)
class Raster:
    """Share of the recorded rounds in which clients came, by bins of clients and rounds, shape (rows, columns).

    Attributes
    ----------
    share
        0 or 1 where a bin is one client and one round.
    clients, rounds
        The first of every bin; the rounds count from 1.
    bin_clients, bin_rounds
        How many clients and rounds a bin has.
    """

    share: Float
    clients: Ints
    rounds: Ints
    bin_clients: int
    bin_rounds: int

    @property
    def binned(self) -> bool:
        """Whether a bin is more than one client in one round."""
        return max(self.bin_clients, self.bin_rounds) > 1


def raster(came: Mapping[int, Ints], num_clients: int, *, rows: int, columns: int) -> Raster:
    """Bin participants.

    Parameters
    ----------
    came
        The clients of every recorded round, by its index from 0; at least one round.
    num_clients
        N.
    rows, columns
        At most so many bins.
    """
    first, last = min(came), max(came)
    wide, high = -(-(last - first + 1) // columns), -(-num_clients // rows)
    clients, rounds = np.arange(0, num_clients, high), np.arange(0, last - first + 1, wide)
    who, when = visits(came)
    seen = np.zeros((len(clients), len(rounds)))
    np.add.at(seen, (who // high, (when - first) // wide), 1.0)
    recorded = np.bincount((np.array(list(came)) - first) // wide, minlength=len(rounds))
    size = np.outer(np.minimum(high, num_clients - clients), recorded)
    return Raster(seen / np.maximum(size, 1), clients, rounds + first + 1, high, wide)


def visits(came: Mapping[int, Ints]) -> tuple[Ints, Ints]:
    """Return the client and the round of every participation."""
    clients = np.concatenate([np.empty(0, np.int64), *came.values()]).astype(np.int64)
    rounds = np.repeat(np.array(list(came), np.int64), [len(who) for who in came.values()])
    return clients, rounds


def number_of_clients(config: Mapping[str, Any], came: Mapping[int, Ints]) -> int:
    """N as a run's config says, or one more than the largest index that was seen."""
    largest = max((int(who.max()) for who in came.values() if len(who)), default=-1) + 1
    named = config.get("num_clients")
    return max(named, largest) if isinstance(named, int) and named <= _MOST else largest
