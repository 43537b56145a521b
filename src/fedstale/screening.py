"""Which updates may enter a round: the machinery's side of what the mathematics refuses.

A rule refuses a round with a bad update whole (`NonFinite`) and changes nothing: it cannot know what its caller would
rather have. What drives a rule can: Flower's server always, and the simulation where it is asked to, screen the
updates first and leave out the client whose update cannot be used. The round is then, bit for bit, the round in which
that client did not come, and it counts as absent: p_i is the probability of a *usable* update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .difference import Difference

_LARGEST: dict[np.dtype[Any], float] = {np.dtype(np.float32): 1e30, np.dtype(np.float64): 1e150}
"""Largest norm of an update: beyond it, weighted sums and their squares may overflow."""


def fault(update: NDArray[Any] | Difference, square: float | None = None) -> str | None:
    """Say why an update of shape (d,) cannot be used; None if it can.

    One dot product, ‖Δ‖² where it is known, sees every NaN and infinity; only where it overflows is it worth a second
    look.
    """
    largest = _LARGEST.get(update.dtype, 1e30)
    with np.errstate(over="ignore", invalid="ignore"):
        if square is None:
            row = np.asarray(update)
            square = float(row @ row) if update.dtype in _LARGEST else np.inf
        if np.isfinite(square) and square <= largest**2:
            return None
        update = np.asarray(update)
        if not np.isfinite(update).all():
            return "it holds NaN or infinity"
        norm = largest * float(np.linalg.norm(update.astype(np.float64) / largest))
    return f"its norm is {norm:.1e}, too large to be summed" if norm > largest else None


def screen(updates: Sequence[NDArray[Any]]) -> tuple[list[int], dict[int, str]]:
    """Return the positions of the updates that can be used, and for each of the others the reason."""
    reasons = {i: reason for i, update in enumerate(updates) if (reason := fault(update)) is not None}
    return [i for i in range(len(updates)) if i not in reasons], reasons
