"""A model of availability: a rate per client, a time of day that all share, and persistence; and its fit to a log.

In every round a client keeps its state with probability ρ, and otherwise draws a fresh one: there with probability
q_i(h) = min(r_i s(h), 1), r_i its rate and s(h) the shape of the day with mean 1. Clients are independent given the
time. The p_i(t) are exact: p_i(h) = ρ p_i(h−1) + (1−ρ) q_i(h), closed over the day, so

    p_i(h) = (1−ρ) Σ_{k < period} ρ^k q_i(h−k) / (1 − ρ^period).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, client_count, fail, number, positive_int, probability, vector
from ..federation import Ints
from ..randomness import generator
from .log_summary import summarise
from .processes import Memo, Process, frozen, persistent
from .trace import Trace

_STEPS = 8_000
"""Steps of the grid on which rates are distributed."""
_HALVINGS = 25
"""Of an interval in which a parameter of that distribution is looked for."""


@dataclass(frozen=True, eq=False)
class DailyMarkov(Process):
    """Independent clients with a daily cycle and persistence: two-state Markov chains whose draws follow the clock.

    Parameters
    ----------
    rates
        r_i ≥ 0, shape (N,): 0 for a client that never comes.
    shape
        s(h) ≥ 0 over the rounds of a day, with a positive mean, shape (period,); it is divided by its mean.
    persistence
        ρ in [0, 1): the probability to keep the state of the round before.
    """

    varies: ClassVar[bool] = True
    rates: ArrayLike
    shape: ArrayLike
    persistence: float = 0.0
    _memo: Memo = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        rates, shape = vector("rates", self.rates), vector("shape", self.shape)
        if not rates.size or (rates < 0.0).any():
            raise fail("rates", self.rates, "must be at least 0, one per client")
        if not shape.size or (shape < 0.0).any() or not shape.mean() > 0.0:
            raise fail("shape", self.shape, "must be at least 0, not all of it 0, one number per round of a day")
        if not rates.max() * shape.max() > 0.0:
            raise fail("rates", self.rates, "must be positive for some client")
        if number("persistence", self.persistence, 0.0, 1.0) == 1.0:
            raise fail("persistence", self.persistence, "must lie in [0, 1): at 1 a client never changes its state")
        object.__setattr__(self, "rates", frozen(rates))
        object.__setattr__(self, "shape", frozen(shape))
        object.__setattr__(self, "num_clients", client_count("number of clients", rates.size))

    @property
    def period(self) -> int:
        """Rounds of a day."""
        return int(np.size(self.shape))

    def _fresh(self, hour: int) -> Float:
        shape = np.asarray(self.shape)
        return np.asarray(np.minimum(np.asarray(self.rates) * (shape[hour] / shape.mean()), 1.0))

    @cached_property
    def _by_hour(self) -> Float:
        """p_i(h), shape (period, N)."""
        rho, period = self.persistence, self.period
        fresh = np.array([self._fresh(hour) for hour in range(period)])
        weights = (1.0 - rho) * rho ** np.arange(period) / (1.0 - rho**period)
        return np.array(
            [np.tensordot(weights, fresh[(hour - np.arange(period)) % period], 1) for hour in range(period)]
        )

    def available(self, seed: int, round: int) -> Ints:
        """Return the sorted indices of the available clients."""
        refresh = np.full(self.num_clients, 1.0 - self.persistence)
        # Everybody draws in round 0: as if the days before had been there.
        return persistent(
            self._memo, seed, round, refresh, lambda t: self._fresh(t % self.period) if t else self._by_hour[0]
        )

    def probabilities(self, round: int | None = None) -> Float:
        """Return p_i of the time of the day, or with None the mean over the day."""
        if round is None:
            return np.asarray(self._by_hour.mean(axis=0))
        return np.array(self._by_hour[positive_int("round", round, 0) % self.period])

    @property
    def open_share(self) -> Float:
        """The share of the day in which a client can come; 1 for one that never comes, which has no weight anyway."""
        share = (self._by_hour > 0.0).mean(axis=0)
        return np.where(share > 0.0, share, 1.0)

    def _mean_rounds(self) -> range:
        return range(self.period)

    @classmethod
    def fit(
        cls, trace: Trace, num_clients: int | None = None, *, seed: int = 0, period: int | None = None
    ) -> DailyMarkov:
        """Return the model whose statistics are those of a log, for any number of clients.

        ρ: what a device that is there has more of a chance to be there in the next round than the time of the day
        says, all devices together (`LogSummary.persistence`). Rates: a share of the clients has rate 0 and never comes;
        the others have a Beta distribution that begins at one round in as many as the log has (it cannot tell rarer
        ones from those that never come), dealt out to them at random. Its two parameters and the share are such that
        mean p, the expected share that does not come within as many rounds, and the mean of 1/p over those that come
        are the log's. Shape of the day: the log's share of devices online by the time of the day, averaged over three
        neighbouring rounds, with the lag of the persistence taken out.

        Parameters
        ----------
        trace
            The log.
        num_clients
            N; default: as many as the log has.
        seed
            Which client has which rate.
        period
            Rounds of a day; default: what the log's times say.
        """
        seen = summarise(trace, period)
        if seen.profile is None:
            raise fail("period", None, "the log has no times: give the number of rounds in a day")
        n, rounds = trace.num_clients if num_clients is None else num_clients, int(np.median(trace.known_rounds()))
        return cls.of_statistics(
            n,
            mean_p=seen.mean_p,
            never=seen.share_never,
            inverse_p=seen.inverse_p,
            persistence=seen.persistence,
            profile=seen.profile,
            rounds=rounds,
            seed=seed,
        )

    @classmethod
    def of_statistics(
        cls,
        num_clients: int,
        *,
        mean_p: float,
        never: float,
        inverse_p: float,
        persistence: float,
        profile: ArrayLike,
        rounds: int,
        seed: int = 0,
        only_seen: bool = False,
    ) -> DailyMarkov:
        """Return the model with given statistics (see `fit`), for N clients.

        Parameters
        ----------
        num_clients
            N.
        mean_p, never, inverse_p
            Mean p, the share of the clients that is not expected to come within `rounds` rounds, and the mean of 1/p
            over those that come.
        persistence, profile
            `LogSummary.persistence` and `LogSummary.profile`.
        rounds
            How many rounds that is.
        seed
            Which client has which rate.
        only_seen
            Whether those that never come are left out.
        """
        n, online = client_count("num_clients", num_clients), vector("profile", profile)
        if probability("mean_p", mean_p) == 1.0:
            raise fail("mean_p", mean_p, "every device is always there: there is nothing to fit")
        rho = float(np.clip(number("persistence", persistence), 0.0, 0.99))
        smooth = (np.roll(online, 1) + online + np.roll(online, -1)) / 3.0
        shape = np.maximum((smooth - rho * np.roll(smooth, 1)) / (1.0 - rho), 0.0)
        inverse = number("inverse_p", inverse_p, 1.0)
        share, grid, weights = _rates(mean_p, number("never", never, 0.0, 1.0), inverse, rho, rounds)
        none = 0 if only_seen else min(round(share * n), n - 1)
        rates = np.concatenate([np.zeros(none), _dealt(grid, weights, n - none)])
        return cls(generator(seed, "rates of a model").permutation(rates), shape, rho)


def _rates(mean: float, never: float, inverse: float, rho: float, rounds: int) -> tuple[float, Float, Float]:
    """Return the share of clients that never comes, and the rates of the others with their weights on a grid.

    Of those that do not come within the rounds some never do and some are rare; two bisections tell how many, and how
    unequal the others are. A Beta distribution that begins at 0 and is as unequal as phones are has rates of 1e-8, of
    which no log knows, and with them a 1/p_var of thousands.
    """
    least = 1.0 / (rounds + 1)
    odds = np.linspace(-30.0, 30.0, _STEPS)  # logarithms: most of the grid lies where rates are small
    logs = -np.logaddexp(0.0, -odds), -np.logaddexp(0.0, odds)
    grid = least + (1.0 - least) * np.exp(logs[0])
    misses = (1.0 - grid) * (1.0 - (1.0 - rho) * grid) ** (rounds - 1)

    def weights(share: float) -> Float:
        """Of a Beta distribution that has the mean, and of those the one that has the mean of 1/p."""
        rate = min(max((mean / (1.0 - share) - least) / (1.0 - least), 1e-6), 1.0 - 1e-6)
        low, high = 0.01, 200.0
        for _ in range(_HALVINGS):
            a = (low * high) ** 0.5
            likely = a * logs[0] + a * (1.0 - rate) / rate * logs[1]
            found = np.exp(likely - likely.max())
            found /= found.sum()
            low, high = (a, high) if float(found @ (1.0 / grid)) > inverse else (low, a)
        return np.asarray(found)

    few, many = 0.0, never
    for _ in range(_HALVINGS):
        share = (few + many) / 2.0
        missed = share + (1.0 - share) * float(weights(share) @ misses)
        few, many = (few, share) if missed > never else (share, many)
    return share, grid, weights(share)


def _dealt(grid: Float, weights: Float, count: int) -> Float:
    """Return a rate for each of as many clients: harmonic means over equal shares, so that 1/p_var is that of all."""
    edges = np.arange(count + 1) / count
    inverse = np.interp(edges, np.cumsum(weights), np.cumsum(weights / grid), left=0.0)
    return np.asarray(1.0 / (np.diff(inverse) * count))
