"""What a log says, in numbers: how often devices come, when, for how long, and how much they come together.

Rounds in which nothing is known of a device are left out of everything that is said of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail, positive_int
from .trace import NOTHING_KNOWN, Trace

_Bools = NDArray[np.bool_]
_MOST_CLIENTS = 3000
"""Devices among which correlations are looked at: all pairs of more would take long."""


@dataclass(frozen=True, eq=False)
class LogSummary:
    """Statistics of a log.

    Attributes
    ----------
    mean_p, median_p
        Over the devices, of the share of the known rounds in which each came.
    share_never
        Share of the devices that never came.
    inverse_p
        Mean of 1/p over the devices that came; NaN where none did.
    online
        The smallest and the largest number of devices at a time.
    stays
        Pooled persistence: (P(there | there before) − p)/(1 − p); 0 where rounds are independent.
    persistence
        The same beyond the day: against p of the time of the day (each device's p times the profile) instead of p.
        Without a profile it is `stays`.
    lag1
        Mean over the devices of the correlation of a round with the next.
    mean_abs_correlation, mean_correlation
        Over the pairs of devices that came at least once. The first is positive even where devices are independent:
        a few hundred rounds in which devices stay for a while have large correlations by chance.
    profile
        Share of the devices online by the time of the day, shape (period,), from round 0 on; None without a day.
    """

    mean_p: float
    median_p: float
    share_never: float
    inverse_p: float
    online: tuple[int, int]
    stays: float
    persistence: float
    lag1: float
    mean_abs_correlation: float
    mean_correlation: float
    profile: Float | None


def summarise(trace: Trace, period: int | None = None) -> LogSummary:
    """Return the statistics of a log.

    Parameters
    ----------
    trace
        The log.
    period
        Rounds of a day; default: what the log's times say.
    """
    there, known = trace.matrix(), trace.known()
    rounds = known.sum(axis=0)
    if not rounds.all():
        raise fail("trace", trace.name(int(np.argmin(rounds))), NOTHING_KNOWN)
    p = there.sum(axis=0) / rounds
    day = trace.rounds_per_day if period is None else positive_int("period", period)
    profile = None
    if day is not None and trace.num_rounds >= day:
        seen = np.array([known[h::day].sum() for h in range(day)])
        profile = np.array([there[h::day].sum() for h in range(day)]) / np.maximum(seen, 1)
    both = known[1:] & known[:-1]
    before, after = there[:-1] & both, there[1:] & both
    by_day = p[None, :]
    if profile is not None and profile.any():
        by_day = np.minimum(p * (profile / profile.mean())[:, None], 1.0)
    absolute, mean = _correlations(there, known, p)
    online = there.sum(axis=1)
    return LogSummary(
        mean_p=float(p.mean()),
        median_p=float(np.median(p)),
        share_never=float((p == 0.0).mean()),
        inverse_p=float((1.0 / p[p > 0.0]).mean()) if p.any() else float("nan"),
        online=(int(online.min()), int(online.max())),
        stays=_stays(before, after, p[None, :]),
        persistence=_stays(before, after, by_day),
        lag1=_lag1(before, after, both),
        mean_abs_correlation=absolute,
        mean_correlation=mean,
        profile=profile,
    )


def _stays(before: _Bools, after: _Bools, by_day: Float) -> float:
    """Of those that were there, what more of them is there again than p says, as a share of what there could be.

    `by_day` has the p of the devices by the time of the day, shape (period, N).
    """
    period, again, spare = len(by_day), 0.0, 0.0
    for h in range(period):
        was = before[h::period].sum(axis=0)
        again += float(((before & after)[h::period].sum(axis=0) - was * by_day[(h + 1) % period]).sum())
        spare += float(was @ (1.0 - by_day[h]))
    return again / spare if spare > 0.0 else 0.0


def _lag1(before: _Bools, after: _Bools, both: _Bools) -> float:
    """Mean over the devices of the correlation between neighbouring rounds; NaN where none varies."""
    n = np.maximum(both.sum(axis=0), 1)
    x, y, xy = before.sum(axis=0) / n, after.sum(axis=0) / n, (before & after).sum(axis=0) / n
    spread = np.sqrt(x * (1.0 - x) * y * (1.0 - y))
    moving = spread > 0.0
    return float(np.mean((xy - x * y)[moving] / spread[moving])) if moving.any() else float("nan")


def _correlations(there: _Bools, known: _Bools, p: Float) -> tuple[float, float]:
    """Mean absolute and mean correlation over the pairs of devices that came, from rounds in which both are known."""
    moving = np.flatnonzero((p > 0.0) & (p < 1.0))[:_MOST_CLIENTS]
    if moving.size < 2:
        return float("nan"), float("nan")
    seen = known[:, moving].astype(np.float64)
    away = np.where(known[:, moving], there[:, moving] - p[moving], 0.0)
    squares = (away**2).T @ seen
    spread = np.sqrt(squares * squares.T)
    pairs = np.triu(np.ones_like(spread, dtype=np.bool_), 1) & (spread > 0.0)
    found = (away.T @ away)[pairs] / spread[pairs]
    return (float(np.abs(found).mean()), float(found.mean())) if found.size else (float("nan"), float("nan"))
