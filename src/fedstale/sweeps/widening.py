"""Grids of learning rates that grow until the best rate is interior, per cell and method.

Where the best rate of a method in a setting stands at the edge of its grid, the next half decade beyond is run with all
seeds, and so on. A rate at which a seed diverged closes the upper side. What is run depends on the results in the
store alone, so that the same command, given again, runs what is missing and else nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..analysis import Cell, tuned
from ..simulation.settings import Settings
from ..store import Store
from .results import results

MOST = 4
"""Further rates on each side of a grid."""


def beyond(rate: float, side: int) -> float:
    """Return the next rate, half a decade above (side 1) or below (−1).

    Rates that are half decades to about 1 % lead to half decades as the grids of the tasks have them, 10^(k/2) to the
    last bit: that is how a run is recognised. Others are multiplied by √10 and rounded to three digits.
    """
    steps = 2.0 * math.log10(rate)
    if abs(steps - round(steps)) < 0.01:
        return float(10.0 ** ((round(steps) + side) / 2))
    return float(f"{rate * 10.0 ** (side / 2):.3g}")


def _further(cells: Iterable[Cell]) -> list[Settings]:
    """Return the runs beyond the edge, of all seeds, for every cell whose best rate stands at one."""
    wanted = []
    for cell in cells:
        if cell.lr is None or not _learns(cell):
            continue
        sides = {"low": (-1,), "high": (1,), "both": (-1, 1), None: ()}[cell.at_edge]
        for side in sides:
            if side < 0 or not math.isnan(cell.mean):  # where every rate diverged, nothing is to be had above them
                wanted += [run.settings.replace(lr=beyond(cell.lr, side)) for run in cell.runs]
    return wanted


def _learns(cell: Cell) -> bool:
    """Whether the cell has what rates are compared by, and not a task without accuracy."""
    return not math.isnan(cell.mean) or any(run.diverged for run in cell.runs)


def widen(
    runs: Sequence[Settings],
    store: Store,
    run: Callable[[list[Settings]], object] = lambda wanted: None,
    most: int = MOST,
    metric: str = "accuracy",
) -> list[Settings]:
    """Widen the rates of a sweep that is in the store.

    Parameters
    ----------
    runs
        The sweep.
    store
        Where its results are.
    run
        Does the runs that are asked for; by default nothing is run, and what the store has is taken.
    most
        Further rates on each side, per cell and method.
    metric
        What rates are compared by: the largest accuracy, or the least of another metric.

    Returns
    -------
    The runs of the sweep and those beyond its edges, whether or not they could be done.
    """
    whole = {repr(settings): settings for settings in runs}
    for _ in range(most):
        cells = tuned(results(store, whole.values(), metric))
        # A rate that was asked for and is not there (a run failed, or none are to be done) is not asked for again.
        wanted = [settings for settings in _further(cells) if repr(settings) not in whole]
        if not wanted:
            break
        run(wanted)
        whole |= {repr(settings): settings for settings in wanted}
    return list(whole.values())


def at_edges(cells: Iterable[Cell]) -> list[str]:
    """Name the methods whose best rate stands at the edge of its grid."""
    return [
        f"{_named(cell)} ({'only rate' if cell.at_edge == 'both' else f'{cell.at_edge}est rate'} {cell.lr or 0:.3g})"
        for cell in cells
        if cell.at_edge is not None and cell.lr is not None
    ]


def _named(cell: Cell) -> str:
    return f"p_min {cell.settings.p_min:g}, swap {cell.settings.swap:g}, {cell.method}"
