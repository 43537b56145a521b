"""Flower clients for `tests.flower.grid.MemoryGrid` that answer in some rounds only, decided by (client, round)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from tests.flower.grid import Node, Trainer, round_of


class Sometimes(Trainer):
    """A client that does not answer in about half of the rounds."""

    def answers(self, server_round: int) -> bool:
        return bool(np.random.default_rng([5, self.client, server_round]).random() < 0.55)

    def __call__(self, message: Message) -> Message | None:  # type: ignore[override]
        if message.metadata.message_type != "evaluate" and not self.answers(round_of(message)):
            return None
        return super().__call__(message)


def sometimes(clients: Sequence[int], first_node: int = 1000) -> dict[int, Node]:
    return {first_node + client: Sometimes(client) for client in clients}
