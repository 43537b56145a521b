"""Who is frequent and who is rare: clients in groups by their p_i, with the sizes and the ranges of p.

Where p_i has two values, as in the paper, these are the groups. Where it has more, the frequent half and the rare half:
clients with equal p_i stay together, and the cut is the one nearest to the middle. `quantile_groups` has finer ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, counted, positive_int
from ..federation import Ints

_GROUPS = ("frequent", "rare")


def halves(p: Float) -> Ints:
    """Return the group of each client, shape (N,): 0 for the frequent ones, 1 for the rare; all 0 where p_i is one.

    Parameters
    ----------
    p
        Probabilities, shape (N,); 0 for a client that never comes.
    """
    return quantile_groups(p, 2)


def quantile_groups(p: Float, count: int) -> Ints:
    """Return the group of each client, shape (N,), from 0 for the most frequent: at most `count`, about equally large.

    Parameters
    ----------
    p
        Probabilities or rates, shape (N,). Clients with equal ones stay together, whatever becomes of the sizes.
    count
        Number of groups; where p has no more values than that, each is a group.
    """
    values, place, sizes = np.unique(-p, return_inverse=True, return_counts=True)
    if values.size <= positive_int("count", count):
        return place.astype(np.int64)
    before = np.cumsum(sizes)[:-1]
    wanted = p.size * np.arange(1, count)[:, None] / count
    cuts = np.unique(np.abs(before - wanted).argmin(axis=1))  # of two equally near cuts, the one with fewer frequent
    return np.searchsorted(cuts, place, side="left").astype(np.int64)


def groups_text(p: ArrayLike, groups: ArrayLike) -> str:
    """Say who is in which group: "frequent: 12 clients, p 0.21 to 0.97; rare: 12 clients, p 0 to 0.08, 7 never"."""
    numbers = np.unique(np.asarray(groups)).tolist()
    return _text(p, groups, {k: _GROUPS[k] if k < len(_GROUPS) else f"group {k}" for k in numbers})


def quantiles_text(p: ArrayLike, groups: ArrayLike) -> str:
    """Say who is in which quantile: "1 (most frequent): 6 clients, p 0.5 to 0.97; 2: …; 4 (rarest): 6 clients, p 0"."""
    numbers = np.unique(np.asarray(groups)).tolist()
    ends = {numbers[0]: " (most frequent)", numbers[-1]: " (rarest)"} if len(numbers) > 1 else {}
    return _text(p, groups, {k: f"{k + 1}{ends.get(k, '')}" for k in numbers})


def _text(p: ArrayLike, groups: ArrayLike, names: Mapping[int, str]) -> str:
    chance, group = np.asarray(p, dtype=np.float64), np.asarray(groups)
    parts = []
    for number, name in names.items():
        own = chance[group == number]
        low, high = float(own.min()), float(own.max())
        range_ = f"p {low:.3g}" if low == high else f"p {low:.3g} to {high:.3g}"
        never = int((own == 0.0).sum())
        parts.append(f"{name}: {counted(own.size, 'client')}, {range_}" + (f", {never} never" if never else ""))
    return "; ".join(parts)
