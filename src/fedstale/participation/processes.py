"""Who shows up: participation processes (spec §5; the paper's Assumption on participation is `Bernoulli`).

A process says who is *available* in a round; whom the server asks among them is `selection`. Both are
functions of (seed, round): round 700 asked for directly is what a run would have had there. Client i is
available when its uniform number lies below p_i, so that two processes with the same seed share their draws
as far as they can, and clients that join do not disturb the draws of the others.

Here: independent, time-correlated (`Markov`) and space-correlated (`Correlated`) clients with fixed marginals
p_i. `varying` has the processes whose p_i depends on the round, `trace` the replay of a log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_count, fail, fraction, positive_int, probability, vector
from ..checks import probabilities as check_probabilities
from ..federation import Ints
from ..randomness import generator
from .groups import halves
from .inclusion import expected_inclusion

_MEMO_SEEDS = 32
Memo = dict[int, tuple[int, NDArray[np.bool_]]]
"""The last round that was asked for and who was available in it, by seed."""


@dataclass(frozen=True, eq=False)
class Process(ABC):
    """Who is available in each round.

    Attributes
    ----------
    num_clients
        N.
    """

    num_clients: int = field(init=False)
    varies: ClassVar[bool] = False
    """Whether p_i is a function of the round, so that 1/p_i must be that of the round."""

    @abstractmethod
    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the clients available in a round, a pure function of (seed, round)."""

    @abstractmethod
    def probabilities(self, round: int | None = None) -> Float:
        """Return the marginal probabilities of being available, shape (N,).

        Parameters
        ----------
        round
            The round they are wanted for; None gives the long-run mean. At a single round a probability may be 0
            (outside a client's hours). Which of the two p_i means in 1/p_i: `Participation.known`.
        """

    def expected(self, asked: Callable[[Ints], Float], round: int | None = None) -> Float:
        """Return E[X_i · asked(ΣX)], shape (N,), where X_i says whether client i is available.

        Parameters
        ----------
        asked
            The probability that an available client is asked, as a function of how many are available.
        round
            The round, or None for the long-run mean.
        """
        rounds = self._mean_rounds() if round is None else range(positive_int("round", round, 0), round + 1)
        total = np.zeros(self.num_clients)
        for t in rounds:
            total += expected_inclusion(self.probabilities(t), asked)
        return total / len(rounds)

    @property
    def open_share(self) -> Float:
        """The long-run share of the rounds in which a client can come at all (p_i(t) > 0), shape (N,)."""
        return np.ones(self.num_clients)

    def pairwise(self, round: int | None = None) -> Float:
        """Return P(i and j are both available), shape (N, N), with p_i on the diagonal.

        Here for clients that are independent given the round. In the long run (None) they need not be independent even
        then: clients that come at the same time of day come together.

        Parameters
        ----------
        round
            The round, or None for the long-run mean.
        """
        rounds = self._mean_rounds() if round is None else range(positive_int("round", round, 0), round + 1)
        total = np.zeros((self.num_clients, self.num_clients))
        for t in rounds:
            total += _independent_pairs(self.probabilities(t))
        return total / len(rounds)

    def participation_groups(self) -> Ints:
        """Return each client's group, shape (N,): 0 for the frequent clients, 1 for the rare ones (`halves`).

        Label swap follows these groups, so that the rare clients are the ones with different data.
        """
        return halves(self.probabilities())

    def _mean_rounds(self) -> range:
        """Return the rounds whose mean is the long-run mean; one will do where the marginals never change."""
        return range(1)


def two_groups(num_clients: int, p_min: float, share: float = 0.5) -> tuple[Float, Ints]:
    """Return (p, group) of the paper's set-up: the first clients always come, the others with p_min.

    Parameters
    ----------
    num_clients
        N.
    p_min
        Probability of the second group, in (0, 1].
    share
        Share of the clients in the second group; the paper has one half. Rounded to whole clients, halves up.
    """
    n = client_count("num_clients", num_clients)
    rare = int(np.floor(fraction("share", share) * n + 0.5))
    group = np.zeros(n, dtype=np.int64)
    group[n - rare :] = 1
    return np.where(group == 1, probability("p_min", p_min), 1.0), group


@dataclass(frozen=True, eq=False)
class _FixedMarginals(Process):
    """What the processes with constant p_i share.

    Parameters
    ----------
    p
        Probabilities in (0, 1], shape (N,).
    labels
        Group of each client, shape (N,), where the groups are not to be read off p (they cannot be when
        p_min = 1).
    """

    p: ArrayLike
    labels: ArrayLike | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        p = frozen(check_probabilities("p", self.p))
        positive_int("number of clients in p", p.size)
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "num_clients", p.size)
        if self.labels is not None:
            object.__setattr__(self, "labels", _group_labels("labels", self.labels, p.size))

    @cached_property
    def _p(self) -> Float:
        return np.asarray(self.p)

    def probabilities(self, round: int | None = None) -> Float:
        """Return p, the same in every round."""
        if round is not None:
            positive_int("round", round, 0)
        return self._p.copy()

    def participation_groups(self) -> Ints:
        """Return the given labels, else the frequent half and the rare half (`halves`)."""
        return super().participation_groups() if self.labels is None else np.array(self.labels, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Bernoulli(_FixedMarginals):
    """Each client comes on its own with probability p_i in every round: the paper's assumption."""

    @classmethod
    def uniform(cls, num_clients: int, p: float) -> Bernoulli:
        """Return N clients with the same probability."""
        return cls(np.full(client_count("num_clients", num_clients), probability("p", p)))

    @classmethod
    def two_groups(cls, num_clients: int, p_min: float, share: float = 0.5) -> Bernoulli:
        """Return the paper's set-up: the first half always comes, the second half with p_min."""
        p, group = two_groups(num_clients, p_min, share)
        return cls(p, labels=group)

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        return below(seed, round, self._p)


@dataclass(frozen=True, eq=False)
class Markov(_FixedMarginals):
    """Two-state Markov availability with stationary p_i and autocorrelation ρ^k at lag k.

    A client keeps its state with probability ρ and otherwise draws a fresh one, Bernoulli(p_i). The state in
    round t is therefore the draw at the client's last refresh: it is found by looking back from t, 1/(1−ρ)
    rounds on average for one client and about log(N)/(1−ρ) for the last of N. A run that goes forward looks
    back one round, because the last answer per seed is remembered; that changes the time, never the answer.

    Parameters
    ----------
    p
        Stationary probabilities in (0, 1], shape (N,).
    correlation
        ρ in [0, 1), one number or shape (N,). With 0 the draws are those of `Bernoulli`.
    labels
        As in `_FixedMarginals`.
    """

    correlation: ArrayLike
    _memo: Memo = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        rho = vector("correlation", self.correlation, self.num_clients)
        if (rho < 0.0).any() or (rho >= 1.0).any():
            raise fail("correlation", self.correlation, "must lie in [0, 1): at 1 a client never changes its state")
        object.__setattr__(self, "correlation", frozen(rho))

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        return persistent(self._memo, seed, round, 1.0 - np.asarray(self.correlation), lambda t: self._p)


@dataclass(frozen=True, eq=False)
class Correlated(_FixedMarginals):
    """Clients of one group (a site, a time zone) that tend to come together; marginals are exactly p_i.

    Each client compares p_i with the round's uniform number of its group with probability √ρ and with its own
    otherwise. Two clients of a group thus have covariance ρ(min(p_i, p_j) − p_i p_j), which is correlation ρ
    when p_i = p_j; clients of different groups are independent, and so are the rounds.

    Parameters
    ----------
    p
        Probabilities in (0, 1], shape (N,).
    correlation
        ρ in [0, 1]; at 1 the clients of a group with equal p come all or none.
    groups
        Group of each client, non-negative integers of shape (N,); default: all in one group.
    labels
        As in `_FixedMarginals` (the participation groups; they need not be the `groups` that come together).
    """

    correlation: float
    groups: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("correlation", self.correlation)
        groups = np.zeros(self.num_clients, dtype=np.int64) if self.groups is None else self.groups
        object.__setattr__(self, "groups", _group_labels("groups", groups, self.num_clients))

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        positive_int("round", round, 0)
        groups: Ints = np.asarray(self.groups)
        draw = generator(seed, "availability", round).random(self.num_clients)
        shared = generator(seed, "availability of groups", round).random(int(groups.max()) + 1)
        follows = generator(seed, "availability follows", round).random(self.num_clients) < self.correlation**0.5
        return np.flatnonzero(np.where(follows, shared[groups], draw) < self._p)

    def pairwise(self, round: int | None = None) -> Float:
        """Return P(i and j) = p_i p_j + ρ(min(p_i, p_j) − p_i p_j) within a group, p_i p_j between groups."""
        p, groups = self.probabilities(round), np.asarray(self.groups)
        product = np.outer(p, p)
        shared = self.correlation * (np.minimum.outer(p, p) - product) * (groups[:, None] == groups[None, :])
        both: Float = product + shared
        np.fill_diagonal(both, p)
        return both

    def expected(self, asked: Callable[[Ints], Float], round: int | None = None) -> Float:
        """Refuse: how many come with client i depends on its group, which has no short exact formula."""
        if self.correlation == 0.0:
            return super().expected(asked, round)
        allowed = "a sample of correlated clients has no exact probabilities: use Participation.estimate"
        raise fail("correlation", self.correlation, allowed)


def persistent(memo: Memo, seed: int, round: int, refresh: Float, fresh_p: Callable[[int], Float]) -> Ints:
    """Return who is available when each client keeps its state and now and then draws a fresh one.

    The state in round t is the draw at the client's last refresh, found by looking back from t as far as the last
    answer for this seed, which the memo keeps; that changes the time, never the answer.

    Parameters
    ----------
    memo
        Where the last answer per seed is kept.
    seed, round
        The round.
    refresh
        Probability of a fresh draw in a round, shape (N,); in round 0 everybody draws.
    fresh_p
        Probability of being there after a fresh draw in a round, shape (N,).
    """
    positive_int("round", round, 0)
    on = np.zeros(refresh.size, dtype=np.bool_)
    waiting = np.arange(refresh.size)
    known_round, known = memo.get(seed, (-1, on))
    if known_round > round:
        known_round = -1
    for t in range(round, known_round, -1):
        draw = generator(seed, "availability", t).random(refresh.size)[waiting]
        # One uniform serves both choices: below 1−ρ the client refreshes, and there it is still uniform.
        chance = refresh[waiting] if t else np.ones(waiting.size)
        fresh = draw < chance
        on[waiting[fresh]] = (draw < fresh_p(t)[waiting] * chance)[fresh]
        waiting = waiting[~fresh]
        if not waiting.size:
            break
    on[waiting] = known[waiting]
    memo.pop(seed, None)
    memo[seed] = (round, on)
    while len(memo) > _MEMO_SEEDS:
        memo.pop(next(iter(memo)), None)
    return np.flatnonzero(on)


def _independent_pairs(p: Float) -> Float:
    """Return p_i p_j, with p_i on the diagonal, shape (N, N)."""
    both = np.outer(p, p)
    np.fill_diagonal(both, p)
    return both


def below(seed: int, round: int, p: Float) -> Ints:
    """Return the clients whose uniform number of this round lies below p_i, sorted."""
    positive_int("round", round, 0)
    if p.min() >= 1.0:  # everybody, whatever is drawn
        return np.arange(p.size)
    return np.flatnonzero(generator(seed, "availability", round).random(p.size) < p)


def _group_labels(argument: str, value: ArrayLike, num_clients: int) -> Ints:
    """Check one non-negative integer per client."""
    labels = np.asarray(value)
    if labels.shape != (num_clients,) or labels.dtype.kind not in "iu" or (labels < 0).any():
        raise fail(argument, value, f"must be {num_clients} non-negative integers, one per client")
    return frozen(labels.astype(np.int64))


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy: a process is a constant."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
