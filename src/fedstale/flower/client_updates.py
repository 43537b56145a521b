"""A client's reply as an update: Δ_i computed and checked, and shortened where it is much longer than usual."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..difference import Difference
from ..memory.kernel import squares_of_differences
from ..screening import fault
from .bounds import LengthBound
from .layout import BadArrays, Layout
from .replies import ClientReply, LeftOut


@dataclass
class ClientUpdate:
    """A reply that can be used: its Δ_i, ‖Δ_i‖ once that is known, and its buffers."""

    reply: ClientReply
    difference: Difference
    buffers: dict[str, NDArray[Any]]
    length: float = np.nan


def read_updates(
    replies: Sequence[ClientReply],
    layout: Layout,
    sent: NDArray[Any],
    part: AbstractSet[str],
    known: Callable[[ClientReply], None],
) -> list[ClientUpdate | LeftOut]:
    """Return Δ_i = sent − w_i of each reply; what is wrong with one, by itself or by `known`, leaves it out.

    The models are looked at once here, for their lengths, and once more by the rule: nothing of their size is made.
    """
    found = [_read(reply, layout, sent, part, known) for reply in replies]
    updates = [one for one in found if isinstance(one, ClientUpdate)]
    with np.errstate(over="ignore", invalid="ignore"):
        squares = squares_of_differences([update.difference for update in updates])
    faults: dict[int, LeftOut] = {}
    for update, square in zip(updates, squares, strict=True):
        update.length = float(np.sqrt(square))
        if (reason := fault(update.difference, float(square))) is not None:
            faults[id(update)] = _left_out(update.reply, f"its update cannot be used: {reason}")
    return [faults.get(id(one), one) for one in found]


def _read(
    reply: ClientReply,
    layout: Layout,
    sent: NDArray[Any],
    part: AbstractSet[str],
    known: Callable[[ClientReply], None],
) -> ClientUpdate | LeftOut:
    arrays = reply.take_arrays()
    try:
        known(reply)
        layout.check(arrays, part)
        return ClientUpdate(reply, layout.difference(sent, arrays), layout.buffers_of(arrays))
    except BadArrays as error:
        return _left_out(reply, str(error))


def _left_out(reply: ClientReply, reason: str) -> LeftOut:
    return LeftOut(reply.node, "bad", reason, reply.identity)


@dataclass
class Lengths:
    """What is usual among clients: the lengths of their updates, and of their changes of statistics and of counters."""

    updates: LengthBound = field(default_factory=LengthBound)
    statistics: LengthBound = field(default_factory=LengthBound)
    counters: LengthBound = field(default_factory=lambda: LengthBound(least=1.0))

    def forget(self, client: int) -> None:
        """Lose a client."""
        for bound in (self.updates, self.statistics, self.counters):
            bound.forget(client)


def shorten(
    updates: Mapping[int, ClientUpdate], lengths: Lengths, buffers: Mapping[str, NDArray[Any]], ratio: float | None
) -> int:
    """Shorten updates and changes of `buffers` that are much longer than usual; return how many replies had such."""
    factors = lengths.updates.factors({client: update.length for client, update in updates.items()}, ratio)
    shortened = {client for client in updates if factors[client] < 1.0}
    for client in shortened:
        updates[client].difference = replace(updates[client].difference, scale=factors[client])
    # Apart, because a counter that goes on by hundreds would say nothing about a mean.
    for bound, kinds in ((lengths.statistics, "f"), (lengths.counters, "iu")):
        shortened |= _shorten_buffers(updates, bound, kinds, buffers, ratio)
    return len(shortened)


def _shorten_buffers(
    updates: Mapping[int, ClientUpdate],
    bound: LengthBound,
    kinds: str,
    buffers: Mapping[str, NDArray[Any]],
    ratio: float | None,
) -> set[int]:
    """Shorten changes of the buffers of these kinds; return whose."""
    changes = {client: _changes(update, buffers, kinds) for client, update in updates.items()}
    squares = {client: sum(np.vdot(a, a) for a in change.values()) for client, change in changes.items() if change}
    factors = bound.factors({client: float(np.sqrt(square)) for client, square in squares.items()}, ratio)
    shortened = {client for client, factor in factors.items() if factor < 1.0}
    for client in shortened:
        for name, change in changes[client].items():
            moved = factors[client] * change
            moved = moved if buffers[name].dtype.kind == "f" else np.rint(moved)
            updates[client].buffers[name] = (buffers[name] + moved).astype(buffers[name].dtype)
    return shortened


def _changes(update: ClientUpdate, buffers: Mapping[str, NDArray[Any]], kinds: str) -> dict[str, Float]:
    """Return by how much a reply's buffers of these kinds differ from those that were sent."""
    there = [name for name in buffers if name in update.buffers and buffers[name].dtype.kind in kinds]
    return {name: update.buffers[name].astype(np.float64) - buffers[name] for name in there}
