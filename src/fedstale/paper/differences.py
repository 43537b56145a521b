"""Differences between two β, seed by seed: in a cell, over cells, and along an axis of the heat map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..analysis import Estimate, HeatMap
from ..analysis.evidence import BySeed, Evidence, all_positive, averaged, stacked
from ..analysis.heatmap import Beta, Point


def gain(table: HeatMap, point: Point, beta: Beta, reference: Beta) -> BySeed:
    """How much more accurate a β is than another in a cell, by seed."""
    cells = table.cells.get(point, {})
    if beta not in cells or reference not in cells:
        return {}
    return cells[beta].minus(cells[reference])


def difference(table: HeatMap, points: Sequence[Point], beta: Beta, reference: Beta) -> BySeed:
    """Mean over points of the difference between two β, by seed."""
    return averaged(gain(table, point, beta, reference) for point in points)


def estimate(values: BySeed) -> Estimate:
    """Mean and standard error over the seeds."""
    return Estimate.of(values.values())


def edges(table: HeatMap, points: Iterable[Point], betas: Iterable[Beta]) -> int:
    """Count the cells among these whose best rate stands at the edge of its grid."""
    wanted = set(betas)
    return sum(len(wanted & set(table.at_edge(point))) for point in points)


def slope(table: HeatMap, lines: Sequence[Sequence[Point]], axis: Callable[[Point], float]) -> BySeed:
    """Slope of (accuracy of β=1 − accuracy of β=0) along an axis, mean over lines, by seed."""
    by_line = []
    for points in lines:
        gains = stacked(gain(table, point, 1.0, 0.0) for point in points)
        if len(points) < 2 or not gains.size:
            continue
        seeds = sorted(set.intersection(*(set(gain(table, point, 1.0, 0.0)) for point in points)))
        fitted = np.polyfit([axis(point) for point in points], gains.T, 1)[0]
        by_line.append(dict(zip(seeds, map(float, fitted), strict=True)))
    return averaged(by_line)


def trend(
    table: HeatMap, points: Sequence[Point], line: int, axis: Callable[[Point], float], sign: float
) -> tuple[Estimate, str, Evidence]:
    """Judge that stale updates are worth more (sign 1) or less (−1) along an axis, whichever row or column is left out.

    Parameters
    ----------
    table, points
        The heat map, and its cells that were run.
    line
        What the points of one line have in common: 0, p_min, or 1, swap.
    axis
        Where a point stands on the axis.
    sign
        The direction that is claimed.

    Returns
    -------
    The slope, its range with one p_min or one swap left out, and the evidence that it has the sign in all of these.
    """

    def fitted(kept: Sequence[Point]) -> BySeed:
        return slope(table, [[p for p in kept if p[line] == at] for at in sorted({p[line] for p in kept})], axis)

    without = [[p for p in points if p[k] != left] for k in (0, 1) for left in sorted({p[k] for p in points})]
    every = [fitted(points), *map(fitted, without)]
    means = [estimate(values).mean for values in every[1:] if values]
    span = f"{100 * min(means):+.2f} to {100 * max(means):+.2f}" if means else "–"
    return estimate(every[0]), span, all_positive(sign * stacked(every))
