"""The number that a run is judged by."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

TAIL = 0.1
"""Runs are judged by the mean over the evaluations in this last share of their rounds: less noise than the last one."""


def tail(
    at: ArrayLike,
    values: ArrayLike,
    *,
    planned: int,
    done: int,
    diverged_in: int | None = None,
    share: float = TAIL,
) -> float:
    """Mean of a metric over the evaluations in the last tenth of the rounds planned; NaN where there is none.

    A run that diverged has no tail, however far it came. One that was stopped on purpose (`EarlyStop`) or is still
    going is judged by the rounds it has, up to its last evaluation: their last tenth.

    Parameters
    ----------
    at
        Indices of rounds, from 0, shape (n,).
    values
        The metric in them, shape (n,), NaN where it was not measured. Infinite values count.
    planned, done
        How many rounds the run was to have, and how many it has.
    diverged_in
        The round, counted from 1, in which an update was not finite.
    share
        What part of the rounds counts.
    """
    rounds, metric = np.asarray(at), np.asarray(values, dtype=np.float64)
    measured = ~np.isnan(metric)
    if diverged_in is not None or not measured.any():
        return float("nan")
    judged = planned if done >= planned else int(rounds[measured][-1]) + 1
    last = metric[measured & (rounds >= int(judged * (1 - share)))]
    return float(last.mean()) if last.size else float("nan")
