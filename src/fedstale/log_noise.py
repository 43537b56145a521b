"""What a log says of the noise of absence that p alone does not: its limits, who comes together, who was seen before.

All of it is about the clients that come, each with the weight 1/n.
"""

from __future__ import annotations

import numpy as np

from .checks import Float
from .participation import Frequencies, Trace

_MOST_PAIRS = 2000
"""Devices up to which it is looked who comes together."""


def noise_limits(found: Frequencies) -> tuple[float, float]:
    """Return between which limits Σ (1−p_i)/p_i /n² lies, by the confidence limits of the p_i.

    Clients err independently of each other, so that the squares of the distances to their limits add up; all of them at
    their limits at once would be far less probable (Zou and Donner, Statistics in Medicine 2008).
    """
    middle, most, least = ((1.0 - p) / p for p in (limit[found.probabilities > 0.0] for limit in found))
    below, above = (np.sqrt(((limit - middle) ** 2).sum()) for limit in (least, most))
    noise, squares = float(middle.sum()), middle.size**2
    return max(noise - float(below), 0.0) / squares, (noise + float(above)) / squares


def noise_together(trace: Trace, chance: Float) -> float | None:
    """Return the variance of a round's total weight Σ_S 1/(n p_i); None where a log is too large or has one round."""
    comes = np.flatnonzero(chance > 0.0)
    if comes.size > _MOST_PAIRS or trace.num_rounds < 2:
        return None
    known, there = trace.known()[:, comes], trace.matrix()[:, comes]
    away = np.where(known, there / chance[comes] - 1.0, 0.0)
    both = known.astype(np.float64)
    # Σ_ij of the covariances, each from the rounds in which both are known.
    covariance = (away.T @ away) / np.maximum(both.T @ both, 1.0)
    return float(max(covariance.mean(), 0.0))


def share_seen(trace: Trace, chance: Float, rounds: int) -> float:
    """Return S: with the weights (1−p_i)/p_i, the share of rounds in which a client was there before; 1 without noise.

    Devices that stay, and those that come on some days only, are away for longer before their first visit than
    independent rounds would have them.

    Parameters
    ----------
    trace, chance
        The log, and the p_i that it has.
    rounds
        T: of a training that is longer than the log, clients that come are seen before in the rounds after it.
    """
    comes = np.flatnonzero(chance > 0.0)
    first = np.full(trace.num_clients, trace.num_rounds)
    np.minimum.at(first, np.asarray(trace.clients), np.asarray(trace.rounds))
    before = first + 1  # in the round of its first visit it has not been seen before
    if trace.unknown is not None:
        who, begin, end = np.asarray(trace.unknown).T
        np.subtract.at(before, who, np.clip(np.minimum(end, first[who] + 1) - begin, 0, None))
    waited = trace.num_rounds * before[comes] / trace.known_rounds()[comes]
    odds = (1.0 - chance[comes]) / chance[comes]
    return float(odds @ np.clip(1.0 - waited / rounds, 0.0, None) / odds.sum()) if odds.any() else 1.0
