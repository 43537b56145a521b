"""What a target costs: rounds, virtual seconds and bytes until a metric has reached it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..checks import Float, fail, number, positive_int
from .axes import AXES
from .metrics import is_share


@dataclass(frozen=True)
class Cost:
    """What was spent until a target was reached.

    Attributes
    ----------
    rounds
        Server steps.
    seconds
        Virtual seconds; NaN for a run in which time plays no part.
    bytes
        Bytes up and down, of all clients; a recorded round stands for those before it that were not.
    """

    rounds: int
    seconds: float
    bytes: float


def cost_to_target(metrics: Mapping[str, Float], metric: str, target: float, stay: int = 1) -> Cost | None:
    """Return what a run spent until a metric reached a target; None for a run that did not.

    Parameters
    ----------
    metrics
        One array per metric, one entry per round, NaN where it was not measured (`Result.metrics`).
    metric
        What must reach the target: an accuracy from below, an objective or a loss from above.
    target
        The value.
    stay
        How many evaluations in succession must be at the target; the cost is that of the first of them.
    """
    number("target", target)
    positive_int("stay", stay)
    if metric not in metrics:
        raise fail("metric", metric, f"was not recorded; known: {', '.join(sorted(metrics))}")
    rounds = np.flatnonzero(~np.isnan(metrics[metric]))
    values = metrics[metric][rounds]
    reached = values >= target if is_share(metric) else values <= target
    if len(reached) < stay:
        return None
    held = np.lib.stride_tricks.sliding_window_view(reached, stay).all(axis=1)
    if not held.any():
        return None
    t = int(rounds[int(held.argmax())])
    seconds = float(metrics["virtual_seconds"][t]) if "virtual_seconds" in metrics else float("nan")
    every = np.arange(len(metrics[metric]))
    axis = AXES["bytes"]
    places = axis.places(every, [(every, metrics[name]) for name in axis.metrics if name in metrics])
    return Cost(t + 1, seconds, 0.0 if places is None else float(places[t]))
