"""What a run tells of its clients: who came when, how old their updates were, how often they were thought to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..analysis.attendance import visits
from ..checks import Float
from ..federation import Ints
from ..store import RunInfo
from .source import Source

MOST_CLIENTS = 1000
"""Clients that are drawn one by one; of more, so many evenly apart."""


@dataclass(frozen=True, eq=False)
class Ages:
    """Rounds since a client last came: mean over the run, the longest, and now; shape (clients,), NaN if never seen."""

    clients: Ints
    mean: Float
    longest: Float
    now: Float


@dataclass(frozen=True, eq=False)
class EstimatedProbabilities:
    """p̂ against p, shape (clients,); `observed` says that p is the share of rounds in which the client came."""

    clients: Ints
    true: Float
    estimated: Float
    observed: bool
    round: int


def ages(came: Mapping[int, Ints], num_clients: int) -> Ages:
    """How old each client's update was, as the rounds went: 1 in the round after it came, and so on."""
    clients, rounds = visits(came)
    end = max(came) + 1
    mean, longest, now = (np.full(num_clients, np.nan) for _ in range(3))
    order = np.lexsort((rounds, clients))
    clients, rounds = clients[order], rounds[order]
    after = np.append(rounds[1:], end)
    after[np.append(clients[1:] != clients[:-1], True)] = end
    # In the g rounds after a visit, up to and with the next one, the age runs from 1 to g.
    gap = (after - rounds).astype(np.float64)
    seen, starts = np.unique(clients, return_index=True)
    if seen.size:
        total = np.add.reduceat(gap * (gap + 1) / 2, starts)
        mean[seen] = total / np.add.reduceat(gap, starts)
        longest[seen] = np.maximum.reduceat(gap, starts)
        now[seen] = gap[np.append(starts[1:], gap.size) - 1]
    return Ages(np.arange(num_clients), mean, longest, now)


def probabilities(source: Source, info: RunInfo, came: Mapping[int, Ints]) -> EstimatedProbabilities | None:
    """The last p̂ that was recorded, against p where the simulator knew it, else against how often clients came."""
    estimated = source.clients(info, "probability")
    if estimated is None:
        return None
    rounds, values = estimated
    last = values[-1]
    true = source.clients(info, "probability_true")
    if true is not None:
        return EstimatedProbabilities(np.arange(len(last)), true[1][-1], last, False, int(rounds[-1]))
    if not came:
        return None
    clients, _ = visits(came)
    frequency = np.bincount(clients, minlength=len(last))[: len(last)] / len(came)
    return EstimatedProbabilities(np.arange(len(last)), frequency, last, True, int(rounds[-1]))


def some(count: int) -> Ints:
    """Indices of the clients that are drawn."""
    if count <= MOST_CLIENTS:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, MOST_CLIENTS).astype(np.int64))
