"""What a study comes to, in two sentences that its statistics support.

A method is called ahead of another only where the difference, taken seed by seed, is more than two standard errors
(`Estimate.decided`); a single seed decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..analysis import Cell, Estimate
from ..analysis.metrics import short_title
from ..checks import counted as count
from .study import PLAIN, Study, by_objective

BEYOND = "by more than two standard errors of the difference, seed by seed"
_BASELINES = ("FedAvg", *PLAIN, "FedVARP")
"""What a method is compared with, the first that is there."""


def leader(cells: Sequence[Cell]) -> Cell | None:
    """Return the cell that is ahead of every other one of its condition, or None where none is."""
    known = [cell for cell in cells if np.isfinite(cell.mean)]
    best = max(known, key=lambda cell: cell.mean, default=None)
    others = [cell for cell in cells if cell is not best and not cell.estimate.diverged]
    if best is None or len(cells) < 2 or not all(best.gain(other).decided for other in others):
        return None
    return best if others else None


def conclusion(study: Study) -> tuple[str, str]:
    """Say which method is ahead where, and how far the best mean is from a baseline."""
    contested = {name: cells for name, cells in study.conditions.items() if len(cells) > 1}
    if not contested:
        return f"There is one method, {study.methods[0]}: nothing is compared.", _level(study)
    return _ahead(study, contested), _gain(study, contested)


def _ahead(study: Study, contested: dict[str, list[Cell]]) -> str:
    if len(study.seeds) < 2:
        return f"There is one seed, which decides nothing: no method can be called ahead {BEYOND}."
    said = _leaders(contested)
    if not study.has_objective:
        return f"{said}."
    losses = {name: [by_objective(cell) for cell in cells] for name, cells in contested.items()}
    said = f"By test accuracy, {said[0].lower() + said[1:] if said.startswith('No ') else said}"
    return f"{said}; by the training loss over all clients, which the rules minimise, {_briefly(losses)}."


def _briefly(contested: dict[str, list[Cell]]) -> str:
    """Who is ahead, where it was said before how much that takes."""
    wins = Counter(found.method for found in map(leader, contested.values()) if found is not None).most_common(3)
    if not wins:
        return "no method is"
    if len(contested) == 1:
        return f"{wins[0][0]} is"
    return f"{wins[0][0]} is in {wins[0][1]} of {len(contested)} settings" + "".join(
        f", {method} in {number}" for method, number in wins[1:]
    )


def _leaders(contested: dict[str, list[Cell]]) -> str:
    leaders = [found for found in map(leader, contested.values()) if found is not None]
    total = len(contested)
    if not leaders:
        where = "" if total == 1 else f" in any of the {total} settings"
        return f"No method is ahead of all others{where} {BEYOND}"
    if total == 1:
        return f"{leaders[0].method} is ahead of every other method {BEYOND}"
    wins = Counter(cell.method for cell in leaders).most_common(3)
    first = f"{wins[0][0]} is ahead of every other method in {wins[0][1]} of {total} settings {BEYOND}"
    more = [f"{method} in {number}" for method, number in wins[1:]]
    rest = total - len(leaders)
    more += [f"in {rest} no method is"] if rest else []
    return "; ".join([first, *more])


def _gain(study: Study, contested: dict[str, list[Cell]]) -> str:
    """The method with the best mean over all settings against the baseline."""
    everywhere = [
        method
        for method in study.methods
        if all(any(cell.method == method and np.isfinite(cell.mean) for cell in cells) for cells in contested.values())
    ]
    if len(everywhere) < 2:
        return "The methods were not run in the same settings, so that there is no mean over them."
    best = max(everywhere, key=lambda method: _mean(method, contested))
    named = [method for method in _BASELINES if method in everywhere and method != best]
    baseline = named[0] if named else max((m for m in everywhere if m != best), key=lambda m: _mean(m, contested))
    gain = _pooled(best, baseline, contested)
    over = "its" if len(contested) == 1 else f"over the {len(contested)} settings its"
    size = gain.points().removeprefix("+") if study.accurate else f"{gain:.2g}"
    what = f"accuracy is {size} points above" if study.accurate else f"{short_title(study.metric)} is {size} below"
    verdict = "" if gain.decided else ", which the seeds do not tell from nothing"
    kind = "mean accuracy" if study.has_objective else "mean"
    return f"The best {kind} is that of {best}: {over} {what} that of {baseline}{verdict}."


def _mean(method: str, contested: dict[str, list[Cell]]) -> float:
    return float(np.mean([cell.mean for cells in contested.values() for cell in cells if cell.method == method]))


def _pooled(method: str, other: str, contested: dict[str, list[Cell]]) -> Estimate:
    """The gain of a method over another: for each seed the mean over the settings, then over the seeds."""
    by_seed: dict[int, list[float]] = {}
    for cells in contested.values():
        mine, theirs = (next(cell for cell in cells if cell.method == name) for name in (method, other))
        for seed, gain in mine.minus(theirs).items():
            by_seed.setdefault(seed, []).append(gain)
    whole = [float(np.mean(gains)) for gains in by_seed.values() if len(gains) == len(contested)]
    return Estimate.of(whole)


def _level(study: Study) -> str:
    best = max(study.cells, key=lambda cell: np.nan_to_num(cell.mean, nan=-np.inf))
    own = best.estimate
    if own.diverged:
        return f"It {own}."
    shown = f"accuracy is {own:.1%}" if study.accurate else f"{short_title(study.metric)} is {-own.mean:.3g}"
    where = "" if len(study.cells) == 1 else f" at best, over {count(len(study.cells), 'setting')}"
    return f"Its {shown}{where}."
