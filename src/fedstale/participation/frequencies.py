"""How often each client came in a log, and how sure that is: frequencies with Wilson score intervals."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, number, vector
from .trace import NOTHING_KNOWN, Trace


class Frequencies(NamedTuple):
    """Participation frequencies and their confidence limits, each of shape (N,)."""

    probabilities: Float
    low: Float
    high: Float


def frequencies(trace: Trace, confidence: float = 0.95) -> Frequencies:
    """Return each client's share of the rounds of a log in which something is known of it, with a Wilson interval.

    The interval supposes independent rounds; availability that persists (Markov, diurnal) makes it too
    narrow. A client that never came has frequency 0 and a positive upper limit.

    Parameters
    ----------
    trace
        The log.
    confidence
        Coverage of the interval, in (0, 1).
    """
    known = trace.known_rounds()
    if not known.all():
        raise fail("trace", trace.name(int(np.argmin(known))), NOTHING_KNOWN)
    return wilson(trace.counts(), known, confidence)


def wilson(successes: ArrayLike, trials: ArrayLike, confidence: float = 0.95) -> Frequencies:
    """Return successes/trials with the Wilson score interval (Wilson 1927), which stays inside [0, 1]."""
    k = vector("successes", successes)
    n = vector("trials", trials, k.size)
    if (n < 1).any():
        raise fail("trials", trials, "must be at least 1")
    if (k < 0).any() or (k > n).any():
        raise fail("successes", successes, f"must lie in 0 … {n.max():g}")
    level = number("confidence", confidence, 0.0, 1.0, open_low=True)
    if level == 1.0:
        raise fail("confidence", confidence, "must lie in (0, 1)")
    z2 = NormalDist().inv_cdf(0.5 + level / 2.0) ** 2
    p = k / n
    centre = (k + z2 / 2.0) / (n + z2)
    half = np.sqrt(z2) / (n + z2) * np.sqrt(k * (n - k) / n + z2 / 4.0)
    # At k = 0 and k = n one limit is exactly p; rounding must not push it past p.
    return Frequencies(p, np.clip(centre - half, 0.0, p), np.clip(centre + half, p, 1.0))
