"""Whom the server asks among the available clients, and who takes part in the end (spec §5).

Availability and selection are kept apart; p_i is the probability of both together. `Participation` joins them
and computes p_i where that is possible, or estimates it by drawing rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, positive_int, probability
from ..federation import Ints
from ..randomness import generator
from .frequencies import Frequencies, wilson
from .processes import Process
from .trace import Trace


class Selection(ABC):
    """Whom the server asks among the available."""

    @abstractmethod
    def select(self, available: Ints, seed: int, round: int, last_seen: ArrayLike | None = None) -> Ints:
        """Return the sorted indices of the clients asked.

        Parameters
        ----------
        available
            Sorted indices of the available clients.
        seed, round
            The round's index; ties and samples are drawn from it.
        last_seen
            Last round in which each client took part, −1 for never, shape (N,): the observed past, for the
            selections that look at it.
        """

    @abstractmethod
    def inclusion(self, num_available: ArrayLike) -> Float:
        """Return the probability that one of so many (≥ 1) available clients is asked."""


@dataclass(frozen=True)
class All(Selection):
    """Everybody who is available."""

    def select(self, available: Ints, seed: int, round: int, last_seen: ArrayLike | None = None) -> Ints:
        """Return the available clients."""
        return available

    def inclusion(self, num_available: ArrayLike) -> Float:
        """Return 1."""
        return np.ones(np.shape(num_available))


class _Sample(Selection):
    """A uniform sample without replacement whose size depends on how many are available."""

    @abstractmethod
    def size(self, num_available: ArrayLike) -> Ints:
        """Return how many of so many available clients are asked."""

    def select(self, available: Ints, seed: int, round: int, last_seen: ArrayLike | None = None) -> Ints:
        """Return a uniform sample of the available clients."""
        count = int(self.size(len(available)))
        if count == len(available):
            return available
        positions = generator(seed, "selection", round).choice(len(available), count, replace=False, shuffle=False)
        return np.sort(available[positions])

    def inclusion(self, num_available: ArrayLike) -> Float:
        """Return size / available."""
        return np.asarray(self.size(num_available) / np.asarray(num_available))


@dataclass(frozen=True)
class UniformSample(_Sample):
    """m of the available clients, uniformly without replacement; all of them when there are fewer."""

    m: int

    def __post_init__(self) -> None:
        positive_int("m", self.m)

    def size(self, num_available: ArrayLike) -> Ints:
        """Return min(m, available)."""
        return np.minimum(np.asarray(num_available, dtype=np.int64), self.m)


@dataclass(frozen=True)
class Fraction(_Sample):
    """A fixed share f of the available clients, uniformly: rounded (halves up), but at least one."""

    f: float

    def __post_init__(self) -> None:
        probability("f", self.f)

    def size(self, num_available: ArrayLike) -> Ints:
        """Return f·available, rounded, at least 1 unless nobody is available."""
        count = np.asarray(num_available, dtype=np.int64)
        wanted: Ints = np.floor(self.f * count + 0.5).astype(np.int64)
        return np.asarray(np.minimum(np.maximum(wanted, 1), count))


@dataclass(frozen=True)
class LeastRecent(Selection):
    """The m available clients that took part longest ago, as FedLaAvg asks; equals are drawn at random."""

    m: int

    def __post_init__(self) -> None:
        positive_int("m", self.m)

    def select(self, available: Ints, seed: int, round: int, last_seen: ArrayLike | None = None) -> Ints:
        """Return the m available clients with the smallest `last_seen`."""
        if last_seen is None:
            raise fail("last_seen", None, "LeastRecent needs the last round of every client (−1 for never)")
        if len(available) <= self.m:
            return available
        seen = np.asarray(last_seen)
        if seen.ndim != 1 or seen.dtype.kind not in "iu" or seen.size <= int(np.max(available)):
            raise fail("last_seen", last_seen, "must hold one integer per client (−1 for never)")
        lot = generator(seed, "selection", round).random(len(available))
        order = np.lexsort((lot, seen[available]))
        return np.sort(available[order[: self.m]])

    def inclusion(self, num_available: ArrayLike) -> Float:
        """Refuse: it depends on the past."""
        allowed = "has no exact probabilities, because who is asked depends on past rounds: use Participation.estimate"
        raise fail("selection", self, allowed)


@dataclass(frozen=True, eq=False)
class Participation:
    """Who takes part: availability and selection together.

    Parameters
    ----------
    availability
        Who is available.
    selection
        Whom the server asks of them; default everybody.
    """

    availability: Process
    selection: Selection = All()

    def __post_init__(self) -> None:
        if not isinstance(self.availability, Process):
            raise fail("availability", self.availability, "must be a participation process such as Bernoulli(p)")
        if not isinstance(self.selection, Selection):
            raise fail("selection", self.selection, "must be a selection such as All() or UniformSample(m)")

    @classmethod
    def of(cls, value: Process | Participation) -> Participation:
        """Return the value, or a process with everybody asked."""
        return value if isinstance(value, Participation) else cls(value)

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return self.availability.num_clients

    def participants(self, seed: int, round: int, last_seen: ArrayLike | None = None) -> Ints:
        """Return the sorted participants of a round, a function of (seed, round) and of nothing else.

        `LeastRecent` alone also looks at `last_seen` (see `Selection.select`).
        """
        return self.selection.select(self.availability.available(seed, round), seed, round, last_seen)

    def probabilities(self, round: int | None = None) -> Float:
        """Return p_i, shape (N,): availability times selection, exactly.

        Samples are computed for processes whose clients are independent within a round, and for traces (see
        `inclusion`); correlated clients and `LeastRecent` are refused with a pointer to `estimate`.
        """
        if isinstance(self.selection, All):
            return self.availability.probabilities(round)
        return self.availability.expected(self.selection.inclusion, round)

    def pairwise(self, round: int | None = None) -> Float:
        """Return P(i and j both take part), shape (N, N), with p_i on the diagonal, where everybody is asked."""
        if isinstance(self.selection, All):
            return self.availability.pairwise(round)
        raise fail(
            "selection", self.selection, "has no exact probabilities of pairs: use Participation.estimate_pairwise"
        )

    def estimate_pairwise(self, num_rounds: int, seed: int = 0) -> Float:
        """Draw rounds 0 … num_rounds − 1 and return how often two clients took part together, shape (N, N)."""
        return Trace.record(self, seed, num_rounds).pairwise()

    @property
    def varies(self) -> bool:
        """Whether p_i is a function of the round."""
        return self.availability.varies

    def known(self, round: int) -> Float:
        """Return the p_i of the weights 1/p_i in a round, shape (N,), for a server that knows the process.

        `Cyclic` and `TimeVarying`: p_i(t) of the round, with which E[Σ_S α_i Δ_i/p_i(t)] = Σ α_i Δ_i in every round.
        Where a client cannot come in some rounds (p_i(t) = 0) nothing is unbiased in these; its p_i(t) in the others
        is multiplied by their share (`Process.open_share`), so that over all rounds it has the weight of everybody.
        `Markov`: the stationary p_i, although who came last is more likely to come again; the update is unbiased over
        the chain, not given the past. `Trace`: the frequencies in the log, since a log says who came and not with
        which probability.
        """
        if not self.availability.varies:
            return self.probabilities()
        return self.probabilities(round) * self.availability.open_share

    def participation_groups(self) -> Ints:
        """Return each client's group (see `Process.participation_groups`)."""
        return self.availability.participation_groups()

    def estimate(self, num_rounds: int, seed: int = 0, confidence: float = 0.95) -> Frequencies:
        """Draw rounds 0 … num_rounds − 1 and return the frequencies with their confidence limits."""
        counts = np.zeros(self.num_clients, dtype=np.int64)
        last_seen = np.full(self.num_clients, -1, dtype=np.int64)
        for t in range(positive_int("num_rounds", num_rounds)):
            present = self.participants(seed, t, last_seen)
            counts[present] += 1
            last_seen[present] = t
        return wilson(counts, num_rounds, confidence)
