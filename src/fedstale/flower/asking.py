"""Whom the server asks in each round, and what it then knows: who was there, who was asked, with which probability."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from ..participation import Selection
from ..randomness import generator
from .aggregator import Aggregator
from .identity import Identity
from .late import LateReplies
from .nodes import Selector, connected
from .options import Options
from .round_facts import RoundSetting


class Asking:
    """The nodes of a federation from round to round.

    Parameters
    ----------
    identity
        Tells which client is behind a node.
    options
        The strategy's options.
    selection
        The rule's own selection, which counts where the options have none.
    least_clients
        How many clients there are at least.
    """

    def __init__(self, identity: Identity, options: Options, selection: Selection | None, least_clients: int) -> None:
        seed = options["seed"]
        given = options["selection"] if options["selection"] is not None else selection
        self.train = Selector(options["fraction_train"], options["min_train_nodes"], given, seed, "train")
        self.evaluate = Selector(options["fraction_evaluate"], options["min_evaluate_nodes"], None, seed, "evaluate")
        self.max_wait = options["max_wait"]
        self.connected: list[int] = []
        """The nodes that were there when the last round of training was configured."""
        self.busy: set[int] = set()
        """Those of them that worked on an older message, and were not asked again."""
        self._most_connected = options["num_clients"] or 0
        self.late = LateReplies()
        self._identity = identity
        self._options = options
        self._least_clients = max(options["num_clients"] or 0, least_clients)
        self._asked_before: set[int] = set()
        self._patience = self.max_wait
        self._waited = False

    def nodes(self, grid: Grid, selector: Selector, aggregator: Aggregator | None, timeout: float) -> list[int]:
        """Return the connected nodes: those known first, in the order of their rows, then the others.

        For training, late replies are fetched, and where all nodes are busy the round waits for the first of them, for
        `timeout` seconds.
        """
        enough = max(self._options["min_available_nodes"], selector.minimum)
        # One wait a round is enough: who did not come for training is not waited for again.
        patience = None if not self._waited else self.max_wait if selector is self.train else self._patience
        began = time.monotonic()
        busy = (lambda nodes: self.late.fetch(grid, nodes)) if selector is self.train else None
        nodes = connected(grid, self._identity, enough, patience, busy, timeout)
        self._waited = True
        self._patience = None if self.max_wait is None else max(0.0, self.max_wait - (time.monotonic() - began))
        index = self._indices(aggregator)
        return sorted(nodes, key=lambda node: (index(node) is None, index(node) or 0, node))

    def select_for_training(self, nodes: list[int], round: int, aggregator: Aggregator) -> list[int]:
        """Take note of who is connected, and return whom to ask: nobody who works on an older message."""
        self.connected, self.busy = nodes, self.late.busy & set(nodes)
        self._most_connected = max(self._most_connected, len(nodes))
        nodes = [node for node in nodes if node not in self.busy]
        index, seen = self._indices(aggregator), aggregator.state.last_seen
        indices = [index(node) for node in nodes]
        last_seen = np.array([-1 if i is None else seen[i] for i in indices], dtype=np.int64)
        return self.train.select(nodes, round, last_seen) if nodes else []

    def select_for_evaluation(self, nodes: list[int], round: int) -> list[int]:
        """Return whom to ask for an evaluation."""
        nodes = [node for node in nodes if node not in self.late.busy]
        return self.evaluate.select(nodes, round, np.full(len(nodes), -1)) if nodes else []

    def connected_clients(self) -> dict[int, str]:
        """Return who contributed last from the nodes that were connected, as far as anybody did."""
        return {node: self._identity.nodes[node] for node in self.connected if node in self._identity.nodes}

    def _indices(self, aggregator: Aggregator | None) -> Callable[[int], int | None]:
        def index(node: int) -> int | None:
            return None if aggregator is None else aggregator.members.index(self._identity.last_identity(node))

        return index

    def setting(self, index: int, asked: set[int], aggregator: Aggregator, resumed_after: int) -> RoundSetting:
        """Return what is known of a round: whom the server asked was its own draw.

        Rounds up to `resumed_after` were of another process, which knew which client was behind which node.
        """
        nodes, options = self.connected, self._options
        succeeds = options["forget_after"] == "auto" and self._identity.mode in ("auto", "key")
        setting = RoundSetting(
            at_least=self._least_clients,
            most_connected=self._most_connected if succeeds else None,
            max_clients=options["max_clients"],
            max_examples_ratio=options["max_examples_ratio"],
            max_norm_ratio=options["max_norm_ratio"],
            halve_rows_every=options["halve_rows_every"],
        )
        share = self.train.inclusion(len(nodes) - len(self.busy))
        self._asked_before |= asked | self.busy
        find = self._indices(aggregator)
        clients = {node: client for node in nodes if (client := find(node)) is not None}
        there = sorted(set(clients.values()))
        if share is None:
            return replace(setting, connected=there)
        unknown = [node for node in nodes if node not in clients and node not in self._asked_before]
        free = [client for node, client in clients.items() if node not in self.busy]
        absent = np.setdiff1d(aggregator.known, np.array(free, dtype=np.int64))
        # One who was not there, or busy, would have been asked with the same probability: that is drawn, so that being
        # away counts as often as being there does.
        drawn = generator(options["seed"], "flower who would have been asked", index).random(len(absent)) < share
        heard = aggregator.members.last_heard[absent] >= resumed_after  # or it may be one of the unknown nodes
        counted = drawn & (heard | (not unknown))
        idle = [client for node, client in clients.items() if node not in asked and node not in self.busy]
        not_asked = idle + absent[~counted].tolist()
        return replace(setting, asked_share=share, connected=there, not_asked=not_asked, never_asked=len(unknown))
