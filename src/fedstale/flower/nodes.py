"""Whom the server asks: waiting for nodes, and selecting among those that are connected (spec §5).

Availability (who is connected) and selection (who of them is asked) stay apart; whether a node that was asked
answers is a third thing, and only that counts as participation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import INFO, getLogger

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import ArrayLike

from ..checks import InvalidInput, positive_int
from ..checks import fraction as check_fraction
from ..participation import Selection, UniformSample
from ..randomness import generator
from .identity import Identity

_POLL = 1.0


def connected(
    grid: Grid,
    identity: Identity,
    at_least: int,
    max_wait: float | None,
    still_busy: Callable[[list[int]], set[int]] | None = None,
    longest: float = 0.0,
) -> list[int]:
    """Return the connected nodes once enough of them are free, or when waiting has taken long enough.

    Who is busy with older work does not count (`still_busy` tells), except where waiting has no end: a server that was
    restarted may find all of its nodes at work. Where nobody else is there, a round would do nothing: the first of them
    is waited for, for `longest` seconds.
    """
    began = time.monotonic()
    last_logged = -1
    while True:
        nodes = identity.register_nodes(grid.get_nodes())
        busy = still_busy(nodes) & set(nodes) if still_busy is not None else set()
        free, waited = len(nodes) - len(busy), time.monotonic() - began
        enough = len(nodes) >= at_least if max_wait is None else free >= at_least or waited >= max_wait
        if enough and (free or not busy or waited >= longest):
            return nodes
        if len(nodes) != last_logged:
            last_logged = len(nodes)
            text = "Waiting for nodes to connect: %d connected (minimum required: %d), %d of them busy."
            getLogger("flwr").log(INFO, text, last_logged, at_least, len(busy))
        time.sleep(_POLL)


class Selector:
    """Selects the nodes of a round, as a function of (seed, round) and of who is connected.

    Parameters
    ----------
    fraction, minimum
        As in Flower's FedAvg: this fraction of the connected nodes, but at least so many of them.
    selection
        Instead of them: a number of nodes m, or a `fedstale.participation.Selection`.
    seed
        The run's seed.
    purpose
        What is selected for: "train" and "evaluate" draw from different streams.
    """

    def __init__(
        self, fraction: float, minimum: int, selection: Selection | int | None, seed: int, purpose: str
    ) -> None:
        self.fraction = check_fraction(f"fraction_{purpose}", fraction)
        self.minimum = positive_int(f"min_{purpose}_nodes", minimum, 0) if fraction > 0 else 0
        if selection is not None and not isinstance(selection, Selection):
            selection = UniformSample(positive_int("selection", selection))
        self.selection = selection
        self.seed = positive_int("seed", seed, 0)
        self.purpose = purpose

    @property
    def active(self) -> bool:
        """Whether anybody is ever asked."""
        return self.fraction > 0.0

    def count(self, connected: int) -> int:
        """How many of so many connected nodes are asked, where there is no `selection`."""
        return min(max(int(connected * self.fraction), self.minimum), connected)

    def inclusion(self, connected: int) -> float | None:
        """The probability that one of so many connected nodes is asked; None where that depends on the past."""
        if self.selection is None:
            return self.count(connected) / connected if connected else 1.0
        try:
            return float(self.selection.inclusion(connected)) if connected else 1.0
        except InvalidInput:  # asking the least recent has no such probability: it is estimated with the rest
            return None

    def select(self, nodes: Sequence[int], round: int, last_seen: ArrayLike) -> list[int]:
        """Return the nodes to ask; `nodes` must come in an order that does not depend on chance."""
        if self.selection is not None:
            positions = self.selection.select(np.arange(len(nodes)), self.seed, round, last_seen)
            return [nodes[i] for i in positions]
        count = self.count(len(nodes))
        if count == len(nodes):
            return list(nodes)
        chance = generator(self.seed, f"flower {self.purpose} selection", round)
        return [nodes[i] for i in np.sort(chance.choice(len(nodes), count, replace=False))]
