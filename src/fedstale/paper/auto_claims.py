"""What this library claims of its own β = auto, measured on the grid of the paper and on fresh seeds."""

from __future__ import annotations

import numpy as np

from ..analysis import HeatMap
from ..analysis.evidence import NONE, BySeed, Evidence, all_positive, averaged, stacked
from ..analysis.heatmap import Point
from ..analysis.verdicts import Finding
from .differences import edges, estimate, gain
from .grids import AUTOS, BETAS, P_MIN, SWAPS

_MARGIN = 0.005
"""How far `auto` may be below the best fixed β."""


def fresh_findings(fresh: HeatMap, tuning: HeatMap) -> list[Finding]:
    """`auto` against the β that tuning would have picked, on seeds that had no part in the choice."""
    rows = []
    for beta in AUTOS:
        best = {point: tuning.best(point) for point, cells in fresh.cells.items() if beta in cells}
        gains = {point: gain(fresh, point, beta, picked) for point, picked in best.items() if picked is not None}
        gains = {point: values for point, values in gains.items() if values}
        if not gains:
            continue
        mean = averaged(gains.values())
        worst = min(gains, key=lambda point: estimate(gains[point]).mean)
        text = f"{len(gains)} cells: mean {estimate(mean).points()} points, worst {estimate(gains[worst]).points()} at "
        text += f"p_min {worst[0]:g}, swap {worst[1]:g}"
        claim = f'here: β="{beta}" is better than the β that was best on the seeds that chose the rate'
        rows.append(Finding(claim, text, all_positive(stacked([mean])), edges(fresh, gains, (*BETAS, beta))))
    return rows


def auto_findings(table: HeatMap) -> list[Finding]:
    """What this library claims of its own β: never more than 0.5 points below the best fixed one.

    The best of five noisy means is flattered by its noise. In each seed `auto` is therefore compared with the β that
    the *other* seeds would have picked.
    """
    rows = []
    for beta in AUTOS:
        points = [point for point in sorted(table.cells) if beta in table.cells[point] and table.complete(point, BETAS)]
        if not points:
            continue
        whole = len(points) == len(P_MIN) * len(SWAPS)
        seen = edges(table, points, (*BETAS, beta))
        away = {point: _behind_pick(table, point, beta) for point in points}
        means = {point: estimate(values).mean for point, values in away.items()}
        worst = min(means, key=lambda point: np.nan_to_num(means[point], nan=np.inf))
        text = f"{len(points)} cells: mean {100 * np.mean(list(means.values())):+.2f} points, worst "
        text += f"{estimate(away[worst]).points()} at p_min {worst[0]:g}, swap {worst[1]:g}; more than 0.5 below in "
        text += f"{sum(mean < -_MARGIN for mean in means.values())}"
        evidence = all_positive(stacked(away.values()) + _MARGIN)
        claim = f'here: β="{beta}" is never more than 0.5 points below the fixed β that the other seeds picked'
        rows.append(Finding(claim, text, evidence if whole else _only_against(evidence), seen))
        ends = {point: _over_worse_end(table, point, beta) for point in points}
        lost = [estimate(values).mean for values in ends.values() if estimate(values).mean < 0.0]
        text = f"below both in {len(lost)} of {len(points)} cells"
        text += f", by {-100 * min(lost):.2f} points at most" if lost else ""
        evidence = all_positive(stacked(ends.values()))
        claim = f'here: β="{beta}" is above the worse of FedAvg and FedVARP in every cell'
        rows.append(Finding(claim, text, evidence if whole else _only_against(evidence), seen))
    return rows


def _behind_pick(table: HeatMap, point: Point, beta: str) -> BySeed:
    fixed, own = {b: cell.values for b, cell in table.fixed(point).items()}, table.cells[point][beta].values
    found = {}
    for seed in own:
        others = {b: [value for s, value in values.items() if s != seed] for b, values in fixed.items()}
        picked = max((b for b in sorted(fixed) if others[b]), key=lambda b: np.mean(others[b]), default=None)
        if picked is not None and seed in fixed[picked]:
            found[seed] = own[seed] - fixed[picked][seed]
    return found


def _over_worse_end(table: HeatMap, point: Point, beta: str) -> BySeed:
    return max((gain(table, point, beta, end) for end in (0.0, 1.0)), key=lambda values: estimate(values).mean)


def _only_against(evidence: Evidence) -> Evidence:
    """A claim about every cell can be refuted by some of them, but not shown."""
    return Evidence(1.0, evidence.against) if evidence else NONE
