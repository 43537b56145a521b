"""A client's reply as an update: Δ_i computed and checked, and shortened where it is much longer than usual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..screening import fault
from .bounds import LengthBound
from .layout import BadArrays, Layout
from .replies import ClientReply, LeftOut


@dataclass(frozen=True)
class ClientUpdate:
    """A valid reply: its Δ_i with ‖Δ_i‖, and its buffers."""

    reply: ClientReply
    row: NDArray[Any]
    length: float
    buffers: dict[str, NDArray[Any]]


def read_update(
    reply: ClientReply,
    row: NDArray[Any],
    layout: Layout,
    sent: NDArray[Any],
    part: AbstractSet[str],
    known: Callable[[ClientReply], None],
) -> ClientUpdate | LeftOut:
    """Compute Δ_i = sent − w_i in `row`; what is wrong with a reply, by itself or by `known`, leaves it out.

    A model that was read is let go: with the row beside it, it would be in memory twice.
    """
    arrays = reply.take_arrays()
    try:
        known(reply)
        layout.check(arrays, part)
        with np.errstate(over="ignore", invalid="ignore"):
            square = layout.difference(sent, arrays, row)
        if (reason := fault(row, square)) is not None:
            raise BadArrays(f"its update cannot be used: {reason}")
        return ClientUpdate(reply, row, float(np.sqrt(square)), layout.buffers_of(arrays))
    except BadArrays as error:
        return LeftOut(reply.node, "bad", str(error), reply.identity)


def shorten(
    updates: Mapping[int, ClientUpdate],
    lengths: LengthBound,
    buffer_lengths: LengthBound,
    buffers: Mapping[str, NDArray[Any]],
    ratio: float | None,
) -> int:
    """Shorten updates and changes of `buffers` that are much longer than usual; return how many replies had such."""
    factors = lengths.factors({client: update.length for client, update in updates.items()}, ratio)
    changes = {client: _changes(update, buffers) for client, update in updates.items()}
    squares = {client: sum(np.vdot(a, a) for a in change.values()) for client, change in changes.items() if change}
    far = {client: float(np.sqrt(square)) for client, square in squares.items()}
    buffer_factors = buffer_lengths.factors(far, ratio)
    for client, update in updates.items():
        if factors[client] < 1.0:
            np.multiply(update.row, factors[client], out=update.row, casting="same_kind")
        if (factor := buffer_factors.get(client, 1.0)) < 1.0:
            for name, change in changes[client].items():
                update.buffers[name] = (buffers[name] + factor * change).astype(buffers[name].dtype)
    return sum(factors[client] < 1.0 or buffer_factors.get(client, 1.0) < 1.0 for client in updates)


def _changes(update: ClientUpdate, buffers: Mapping[str, NDArray[Any]]) -> dict[str, Float]:
    """Return by how much a reply's floating-point buffers differ from those that were sent."""
    there = [name for name in buffers if name in update.buffers and buffers[name].dtype.kind == "f"]
    return {name: update.buffers[name].astype(np.float64) - buffers[name] for name in there}
