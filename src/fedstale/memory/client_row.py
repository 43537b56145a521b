"""A client's half of a memory that the clients hold: its own h_i, and what it sends so that sums are enough.

See `fedstale.memory.held` for the equations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..theta import sampled


@dataclass(frozen=True)
class Order:
    """What the server tells one client about a round, in numbers."""

    round: int
    """t"""
    counted: int
    """the last round in which the client's answer counted and is in H; −1 for none"""
    rarity: float
    """1/p_i^θ"""
    beta: float
    rate: float
    """r_i"""
    term: float = 0.0
    """(1 − p_i)/p_i², or 0 where β needs no statistics"""
    vote: float = 0.0
    """what a first update says about β"""
    fade: float = 1.0
    """by which factor rows fade from one round to the next"""
    most: float = 0.0
    """the largest mass that counts; 0 for any"""
    sample: int = 0
    """how many entries of Δ_i − β h_i the choice of θ wants, at the places that `fedstale.theta.sampled` names"""


@dataclass(frozen=True)
class Row:
    """What a client keeps: h_i as it was after a round, and the mass that it was counted with."""

    values: NDArray[Any]
    mass: float
    round: int


@dataclass(frozen=True)
class Answer:
    """What a client sends: x_i and y_i, its terms of β's statistics, and its mass, weighed already."""

    step: Float
    """x_i, shape (d,)"""
    change: Float
    """y_i, shape (d,)"""
    statistics: Float
    """w_i ⟨Δ_i, h_i⟩ and w_i ‖h_i‖², shape (2,)"""
    mass: float
    remembered: bool
    """whether there was an h_i"""
    residual: Float = field(default_factory=lambda: np.empty(0))
    """the entries of Δ_i − β h_i that were asked for; none where there was no h_i"""

    def weight(self, order: Order) -> float:
        """w_i, with which its statistics count."""
        return self.mass**2 * order.term


def counted(rows: list[Row], order: Order) -> Row | None:
    """Return the row that is in H, of the last one that counted and the one that was sent since; None: it is lost."""
    return next((row for row in rows if order.counted >= 0 and row.round == order.counted), None)


def answer(
    order: Order, row: Row | None, update: NDArray[Any], mass: float, grid: tuple[float, float] | None = None
) -> tuple[Answer, Row]:
    """Compute what to send for an update, and the row that holds if it counts.

    Parameters
    ----------
    order, row
        What the server said, and the row that is in H, if there is one.
    update
        Δ_i, shape (d,).
    mass
        a_i: the number of examples, or 1.
    grid
        The step and the largest number in which y_i can be sent exactly, where it is not sent as it is: the new row is
        then what the sum will hold, to the last bit.
    """
    mass = min(mass, order.most) if order.most else mass
    fresh = update.astype(np.float64)
    old_mass, stale = (0.0, np.zeros_like(fresh)) if row is None else (row.mass, row.values.astype(np.float64))
    if row is not None:
        stale *= order.fade ** (order.round - row.round)
    weight = mass * order.rarity
    step = weight * fresh - order.beta * (weight - (mass - old_mass)) * stale
    after = (fresh if row is None or order.rate == 1.0 else stale + order.rate * (fresh - stale)).astype(update.dtype)
    change = mass * after.astype(np.float64) - old_mass * stale
    if grid is not None:
        change = np.clip(np.rint(change / grid[0]) * grid[0], -grid[1], grid[1])
        after = ((old_mass * stale + change) / mass).astype(update.dtype)
    square = float(stale @ stale)
    inner = float(fresh @ stale)
    if square == 0.0:
        square = float(fresh @ fresh)
        inner = order.vote * square
    columns = sampled(len(fresh), order.sample if row is not None else 0)
    residual = fresh[columns] - order.beta * stale[columns]
    found = Answer(step, change, np.zeros(2), mass, row is not None, residual)
    found = replace(found, statistics=found.weight(order) * np.array([inner, square]))
    return found, Row(after, mass, order.round)
