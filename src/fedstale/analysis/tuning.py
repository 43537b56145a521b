"""Learning rates tuned as in the paper (Section 5.1): the best of the grid, per cell and method, by one criterion.

The criterion is the same for every method: test accuracy, averaged over the evaluations in the last tenth of the rounds
and over the seeds. A rate at which some seed diverged is out, unless that is so at every rate. A best rate at the edge
of its grid is no best rate: a method may do better beyond, and `widening` looks there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from .table import Cell, Edge, MeasuredRun

_Key = tuple[tuple[str, str], ...]


def _setting_key(run: MeasuredRun, *leave_out: str) -> _Key:
    """Everything that the settings say but for some names."""
    return tuple((name, repr(value)) for name, value in run.settings.record().items() if name not in leave_out)


def tuned(table: Iterable[MeasuredRun], tuned_on: Iterable[Cell] = ()) -> list[Cell]:
    """Group runs that differ only in rate and seed, and take the best rate of each group, in order of appearance.

    Parameters
    ----------
    table
        The finished runs.
    tuned_on
        Cells of other seeds, on which the rates of these runs were chosen: they say whether a rate is at an edge.
    """
    edges = {_setting_key(cell.runs[0], "lr", "seed"): cell.at_edge for cell in tuned_on}
    groups: dict[_Key, dict[float | None, list[MeasuredRun]]] = {}
    for run in table:
        rates = groups.setdefault(_setting_key(run, "lr", "seed"), {})
        rates.setdefault(run.settings.lr, []).append(run)
    cells = []
    for key, rates in groups.items():
        means = {rate: float(np.mean([run.accuracy for run in runs])) for rate, runs in rates.items()}
        # Rates for which fewer seeds are there yet are not compared with those that have all.
        most = max(map(len, rates.values()))
        full = {rate: mean for rate, mean in means.items() if len(rates[rate]) == most}
        best = max(full, key=lambda rate: (-np.inf, -(rate or 0.0)) if np.isnan(full[rate]) else (full[rate], 0.0))
        known = [*full, *(rate for rate, runs in rates.items() if any(run.diverged for run in runs))]
        edge = edges[key] if key in edges else _edge(best, known)
        cells.append(Cell(tuple(rates[best]), best, means, edge))
    return cells


def _edge(best: float | None, known: Iterable[float | None]) -> Edge | None:
    others = [rate for rate in known if rate is not None and rate != best]
    low = best is None or not any(rate < best for rate in others)
    high = best is None or not any(rate > best for rate in others)
    return "both" if low and high else "low" if low else "high" if high else None


def decades_of_good_rates(cell: Cell, share: float = 0.05) -> float:
    """Decades of rates at which a loss is at most this share above its best: how little the rate has to be tuned.

    The cell's criterion is minus the loss, as `sweeps.results` has it for a metric other than the accuracy.
    """
    known = {rate: -mean for rate, mean in cell.rates.items() if rate is not None and not math.isnan(mean)}
    best = min(known.values(), default=math.nan)
    good = [rate for rate, loss in known.items() if loss <= (1.0 + share) * best]
    return math.log10(max(good) / min(good)) if good else math.nan
