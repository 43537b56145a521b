"""p_i(t) by the time of day: each client's own frequency, times the day that all share, corrected by its own hours.

The day of `period` rounds is cut into `bins`. Of client i, c_i of n_i past rounds and c_ib of n_ib in bin b:

    p̂_i  = (a + c_i) / (a + b + n_i)                        its frequency (`BetaFrequency`)
    r_b   = (1 + Σ_j c_jb) / (1 + Σ_j p̂_j n_jb)             how much more often clients come in bin b than on average
    p̂_ib = (m p̂_i r_b + c_ib) / (m + n_ib), at most 1       own hours count once n_ib is large beside m

The shared r_b is learned from everybody within a day or two; a client's own hours take as long as it takes to see them.
With rounds of half an hour, 16 bins and m = 50 the error was below that of `BetaFrequency` both for phones that share
their hours (the fitted model) and for phones with hours of their own (days drawn again); seed 0, judged on others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, client_ids, fail, number, positive_int
from ..federation import Ints
from .estimator import Columns, Estimator, EstimatorState


@dataclass(frozen=True)
class DailyFrequency(Estimator):
    """Frequency by the time of day, for availability with a daily cycle.

    Parameters
    ----------
    period
        Rounds of a day; round 0 begins the first one. 48 where a round is half an hour.
    bins
        Parts of the day, at most `period`.
    own
        m > 0: the number of rounds that the shared day counts for beside a client's own hours.
    prior_a, prior_b
        As in `BetaFrequency`.
    """

    period: int = 48
    bins: int = 16
    own: float = 50.0
    prior_a: float = 1.0
    prior_b: float = 1.0

    def __post_init__(self) -> None:
        if positive_int("bins", self.bins) > positive_int("period", self.period):
            raise fail("bins", self.bins, f"must be at most the {self.period} rounds of a day")
        number("own", self.own, 0.0, open_low=True)
        number("prior_a", self.prior_a, 0.0, open_low=True)
        number("prior_b", self.prior_b, 0.0)

    def observe(self, state: EstimatorState, participants: ArrayLike, round: int, skipped: ArrayLike = ()) -> None:
        """Count a round; for the clients in `skipped` it does not count, in this part of the day."""
        others = client_ids("skipped", np.asarray(skipped, dtype=np.int64), state.num_clients)
        super().observe(state, participants, round)
        state.columns["skipped"][others] += 1
        state.columns[f"skipped{self._bin(round)}"][others] += 1

    def _columns(self, round: int, count: int) -> Columns:
        names = ["count", "skipped", *(f"{kind}{b}" for b in range(self.bins) for kind in ("count", "skipped"))]
        zeros = {name: np.zeros(count, dtype=np.int64) for name in names}
        return {"joined": np.full(count, round, dtype=np.int64), **zeros}

    def _bin(self, round: int) -> int:
        return (round % self.period) * self.bins // self.period

    def _passed(self, rounds: Ints | int, b: int) -> Ints:
        """How many of the first so many rounds lie in bin b."""
        first, after = -(-b * self.period // self.bins), -(-(b + 1) * self.period // self.bins)
        days, hour = np.divmod(np.asarray(rounds, dtype=np.int64), self.period)
        return np.asarray(days * (after - first) + np.clip(hour - first, 0, after - first))

    def _estimate(self, state: EstimatorState, ids: Ints) -> Float:
        columns, b = state.columns, self._bin(state.round)
        rounds = state.round - columns["joined"] - columns["skipped"]
        p = (self.prior_a + columns["count"]) / (self.prior_a + self.prior_b + rounds)
        here = self._passed(state.round, b) - self._passed(columns["joined"], b) - columns[f"skipped{b}"]
        came = columns[f"count{b}"]
        more = (1.0 + came.sum()) / (1.0 + float(p @ here))
        return np.asarray(np.minimum((self.own * p[ids] * more + came[ids]) / (self.own + here[ids]), 1.0))

    def _count(self, state: EstimatorState, ids: Ints) -> None:
        state.columns["count"][ids] += 1
        state.columns[f"count{self._bin(state.round)}"][ids] += 1
