"""Stale updates that the clients keep: the server has Σ a_i h_i and numbers, O(d) whatever N is, and sees sums only.

FedStale (Eq. 8) and the tempered family need, of those who came, two sums of vectors:

    A Δ = β H + Σ_S x_i,   x_i = u_i (Δ_i − β h_i) + β (a_i − a_i') h_i,   u_i = a_i/p_i^θ
    H  ← H + Σ_S y_i,      y_i = a_i h_i⁺ − a_i' h_i,                      h_i⁺ = h_i + r_i (Δ_i − h_i)

with A = Σ a_i over everybody, H = Σ a_i' h_i, and a_i' the mass that h_i was counted with. A client that is told
1/p_i^θ, β and r_i computes x_i and y_i by itself (`fedstale.memory.client_row`). β = "auto" needs two sums of numbers.

Two things need single answers, and cannot be had where the server sees sums alone (secure aggregation). A newcomer's
x_i is a multiple of its Δ_i, and what weight it gets may depend on who else came (stand-ins): it is weighed afterwards,
which a sum over newcomers would allow too, were it not often the update of one. θ = "auto" looks at some entries of
Δ_i − β h_i, in four sums with different weights, from which single clients could be computed.

H must be the sum of what the clients hold. A client whose answer did not reach the server must not go on with it, and
so every order says which of its rounds counted last. A row that is lost, or leaves with its client, stays in H as a
ghost: E[Δ] is off by β g/A, g being what is left of it. Ghosts fade with everything else, and when they have more than
a tenth of all masses, H starts anew from nothing (`reset`), which is exact, and every client is told that nothing
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, client_ids, fail
from ..federation import Ints
from . import kernel
from .base import PreparedExchange, StaleMemory
from .precision import Precision

NAME = "clients"
"""What a user writes for this memory."""
_MOST_GHOSTS = 0.1
"""The share of all masses from which on ghosts are not waited for to fade."""


@dataclass(frozen=True)
class Announcement:
    """How a rule will weigh the participants of a round, said before it: what does not depend on who comes."""

    rarity: Float
    """1/p_i^θ, shape (n,)"""
    beta: float
    rates: Float
    """r_i, how far h_i moves towards Δ_i, shape (n,)"""
    terms: Float
    """(1 − p_i)/p_i², the weights of β's statistics but for a_i², shape (n,); zeros where none are wanted"""
    vote: float = 0.0
    """what a first update says about β: its product with the memory, over its own square"""
    sample: int = 0
    """how many entries of Δ_i − β h_i the choice of θ wants of each client"""
    single: str = ""
    """why sums are not enough and each client's answer must be seen, with what to give instead; "" if they are"""


@dataclass(frozen=True)
class Delivered:
    """What a round brought: sums over the participants."""

    weights: Float
    """u_i, shape (n,)"""
    beta: float
    step: Float
    """Σ x_i, shape (d,), without newcomers that can still be weighed"""
    change: Float
    """Σ y_i, shape (d,)"""
    statistics: Float
    """Σ w_i ⟨Δ_i, h_i⟩ and Σ w_i ‖h_i‖², shape (2,)"""
    statistics_weight: float
    """Σ w_i"""
    newcomers: Mapping[int, Float] = field(default_factory=dict)
    """x_i = u_i Δ_i of participants without an h_i, by their places: another u_i only scales it"""
    residuals: Mapping[int, Float] = field(default_factory=dict)
    """the entries of Δ_i − β h_i that were asked for, by the participants' places"""


class HeldByClients(StaleMemory):
    """The running sum H of rows that the clients hold.

    Attributes
    ----------
    slots
        0 for a client whose row is in H, else −1.
    ghosts
        The masses of rows in H that nobody holds any more, as far as they have not faded.
    """

    inline: ClassVar[bool] = True
    has_rows: ClassVar[bool] = False

    def __init__(self, num_clients: int, num_params: int, precision: Precision) -> None:
        super().__init__(num_clients, num_params, precision)
        self.ghosts = 0.0
        self._delivered: Delivered | None = None
        self._scale = 1.0
        self._residuals: dict[int, Float] = {}

    @property
    def nbytes(self) -> int:
        """No rows."""
        return 0

    def rows(self, clients: ArrayLike) -> Float:
        """Refuse: there are none."""
        raise fail("memory", NAME, "the clients keep the stale updates, and the server cannot read them")

    def exact_total(self) -> Float:
        """Refuse: there is nothing to recompute it from."""
        return self.rows([])

    def deliver(self, delivered: Delivered, clients: Ints, total_mass: float) -> None:
        """Take what the round's participants sent; `total_mass` is A. The next `prepare_exchange` uses it."""
        self._delivered, self._scale = delivered, total_mass
        self._residuals = {int(clients[k]): entries for k, entries in delivered.residuals.items()}

    def residuals(self, clients: Ints, updates: Sequence[NDArray[Any]], columns: Ints, beta: float) -> Float:
        """Return what the clients sent of Δ_i − β h_i; `updates` is not looked at."""
        result = np.empty((len(clients), len(columns)))
        for row, client in zip(result if result.size else (), clients, strict=False):
            row[:] = self._residuals[int(client)]
        return result

    def prepare_exchange(self, clients: Ints, fresh: Sequence[NDArray[Any]], mix: kernel.Mix) -> PreparedExchange:
        """Mix what was delivered; `fresh` is not looked at. Weights other than those announced are refused."""
        brought, self._delivered = self._delivered, None
        if brought is None or len(brought.weights) != len(clients):
            raise fail("memory", NAME, "the clients' sums must be delivered first: it serves fedstale.flower only")
        count, wanted, step = len(clients), mix.fresh * self._scale, brought.step
        weighed = np.array([k not in brought.newcomers for k in range(count)], dtype=bool)
        announced = np.allclose(wanted[weighed], brought.weights[weighed], rtol=1e-9, atol=0.0)
        if not announced or not np.allclose(mix.stale, brought.beta * mix.fresh, rtol=1e-9, atol=0.0):
            raise fail("memory", NAME, "the rule weighs its clients otherwise than was announced to them")
        for k, newcomer in brought.newcomers.items():
            step = step + (wanted[k] / brought.weights[k]) * newcomer
        # Any terms with the same weighted sums teach β the same.
        means = np.divide(brought.statistics, brought.statistics_weight or 1.0)
        sums = kernel.Sums(
            mix.total * self.total + step / self._scale,
            self.total + brought.change,
            np.full(count, means[0]),
            np.full(count, means[1]),
        )
        return _HeldExchange(self, clients, mix.masses, sums)

    def grow(self, num_clients: int) -> None:
        """Make room for clients that joined."""
        self._grow_table(num_clients)

    def lose(self, clients: ArrayLike) -> None:
        """Take note that rows are nobody's any more: they stay in H and fade."""
        ids = client_ids("clients", clients, self.num_clients)
        gone = ids[self.slots[ids] >= 0]
        self.ghosts += float(self.masses[gone].sum())
        self.slots[gone], self.masses[gone] = -1, 0.0

    def forget(self, clients: ArrayLike) -> None:
        """Let clients leave, with their rows."""
        self.lose(clients)
        self.settle()

    def settle(self) -> bool:
        """Start anew where there are too many ghosts; say whether it was so."""
        too_many = self.ghosts > _MOST_GHOSTS * (self.ghosts + float(self.masses.sum()))
        if too_many:
            self.reset()
        return too_many

    def reset(self) -> None:
        """Start anew: H = 0, and no client's row counts."""
        self.total = np.zeros(self.num_params)
        self.slots[:], self.masses[:] = -1, 0.0
        self.ghosts = 0.0

    def table(self, mirror: Path) -> dict[str, NDArray[Any]]:
        """Return everything."""
        seen = self.seen
        return {
            "clients": seen,
            "masses": self.masses[seen],
            "total": self.total.copy(),
            "ghosts": np.array(self.ghosts),
        }

    def restore(self, table: dict[str, NDArray[Any]]) -> None:
        """Take up a saved table."""
        clients = client_ids("clients", table["clients"], self.num_clients)
        self.slots[clients], self.masses[clients] = 0, table["masses"]
        if table["total"].shape != (self.num_params,):
            raise fail("memory", table["total"].shape, f"must have shape ({self.num_params},)")
        self.total = np.array(table["total"], dtype=np.float64)
        self.ghosts = float(table["ghosts"])


class _HeldExchange(PreparedExchange):
    def __init__(self, memory: HeldByClients, clients: Ints, masses: Float, sums: kernel.Sums) -> None:
        self.sums = sums
        self._memory, self._clients, self._masses = memory, clients, masses

    def weigh(self, masses: Float) -> None:
        raise fail("memory", NAME, "the clients have weighed their rows already")

    def commit(self) -> None:
        self._memory.total = self.sums.total
        self._memory.slots[self._clients], self._memory.masses[self._clients] = 0, self._masses
