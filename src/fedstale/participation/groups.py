"""Who is frequent and who is rare: the clients in two groups by their p_i, with the sizes and the ranges of p.

Where p_i has two values, as in the paper, these are the groups. Where it has more, the frequent half and the rare half:
clients with equal p_i stay together, and the cut is the one nearest to the middle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, counted
from ..federation import Ints

_GROUPS = ("frequent", "rare")


def halves(p: Float) -> Ints:
    """Return the group of each client, shape (N,): 0 for the frequent ones, 1 for the rare; all 0 where p_i is one.

    Parameters
    ----------
    p
        Probabilities, shape (N,); 0 for a client that never comes.
    """
    values, group, counts = np.unique(-p, return_inverse=True, return_counts=True)
    if values.size <= 2:
        return group.astype(np.int64)
    before = np.cumsum(counts)[:-1]
    cut = int(np.argmin(np.abs(before - p.size / 2)))  # the larger of two equal cuts would call more of them frequent
    return (group > cut).astype(np.int64)


def groups_text(p: ArrayLike, groups: ArrayLike) -> str:
    """Say who is in which group: "frequent: 12 clients, p 0.21 to 0.97; rare: 12 clients, p 0 to 0.08, 7 never"."""
    chance, group = np.asarray(p, dtype=np.float64), np.asarray(groups)
    parts = []
    for number in np.unique(group):
        own = chance[group == number]
        name = _GROUPS[number] if number < len(_GROUPS) else f"group {number}"
        low, high = float(own.min()), float(own.max())
        range_ = f"p {low:.3g}" if low == high else f"p {low:.3g} to {high:.3g}"
        never = int((own == 0.0).sum())
        parts.append(f"{name}: {counted(own.size, 'client')}, {range_}" + (f", {never} never" if never else ""))
    return "; ".join(parts)
