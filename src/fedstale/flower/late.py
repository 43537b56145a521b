"""Late is not lost: messages of training that were not answered in their round, and what arrives for them later.

A reply that comes after its round is a stale update: it is taken up in a later round as Δ_i = w − w_i against the model
w that the client was given, which is kept until then. Each node has at most one such message, because a node that works
on one is not sent another, and so no more models are kept than there are nodes at work. A reply is handed out once: a
process that dies between fetching it and saving the round loses it, and nothing is ever counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from logging import INFO, getLogger
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .replies import SentMessages

_logger = getLogger("flwr")


@dataclass(frozen=True)
class _Unanswered:
    """A message that was not answered in its round."""

    message: str
    """its id"""
    node: int
    round: int
    """the index of its round, from 0"""
    expires: float
    """when it ends, in seconds since 1970"""
    run: int
    """the run of Flower that sent it, which alone can fetch its reply"""


class LateReplies:
    """The unanswered messages of a federation, the models they carried, and the replies that came since."""

    def __init__(self) -> None:
        self._unanswered: dict[str, _Unanswered] = {}
        self._models: dict[int, NDArray[Any]] = {}
        self._arrived: list[tuple[_Unanswered, Message]] = []

    @property
    def busy(self) -> set[int]:
        """The nodes that still work on an old message, as far as it is known."""
        return {item.node for item in self._unanswered.values()}

    def fetch(self, grid: Grid, connected: Iterable[int]) -> set[int]:
        """Fetch what has arrived, and give up what cannot arrive any more; return the nodes that are still busy.

        Only nodes that are connected are asked for: for others the SuperLink would answer that they are gone.
        """
        if not self._unanswered:
            return set()
        now, run, there = time.time(), _current_run(), set(connected)
        for item in [*self._unanswered.values()]:
            if item.expires <= now or item.run != run:
                self._give_up(item, "its time is over" if item.run == run else "it was sent in another run of Flower")
        wanted = [key for key, item in self._unanswered.items() if item.node in there]
        for reply in grid.pull_messages(wanted) if wanted else ():
            found = self._unanswered.get(reply.metadata.reply_to_message_id)
            if found is None or not (reply.has_error() or reply.metadata.src_node_id == found.node):
                continue  # nobody asked for it
            if reply.has_error():
                self._give_up(found, f"error {reply.error.code}")
            else:
                self._arrived.append((self._unanswered.pop(found.message), reply))
        return self.busy

    def _give_up(self, item: _Unanswered, why: str) -> None:
        del self._unanswered[item.message]
        _logger.log(INFO, "the reply of node %s for round %d is given up: %s", item.node, item.round + 1, why)

    def take(self) -> list[tuple[_Unanswered, Message, NDArray[Any] | None]]:
        """Return what has arrived, with the model that was sent where it is kept; the oldest round first."""
        arrived = sorted(self._arrived, key=lambda pair: (pair[0].round, pair[0].node))
        self._arrived = []
        result = [(item, reply, self._models.get(item.round)) for item, reply in arrived]
        self._drop_models()
        return result

    def note(self, sent: SentMessages, replies: Sequence[Message], round: int, model: NDArray[Any] | None) -> None:
        """Take note of the messages of a round that were not answered; `model` is what they carried, if it is of use.

        Where a grid sends copies, ids are not known, and nothing can be fetched.
        """
        answered = {reply.metadata.reply_to_message_id for node, reply in sent.match(replies) if node is not None}
        for message in sent.messages:
            about = message.metadata
            if about.message_id and about.message_id not in answered:
                self._unanswered[about.message_id] = _Unanswered(
                    about.message_id, about.dst_node_id, round, about.created_at + about.ttl, about.run_id
                )
                if model is not None:
                    self._models[round] = model
        self._drop_models()

    def forget(self, nodes: Iterable[int]) -> None:
        """Give up what nodes work on: their client is to be erased."""
        gone = set(nodes)
        self._unanswered = {key: item for key, item in self._unanswered.items() if item.node not in gone}
        self._arrived = [pair for pair in self._arrived if pair[0].node not in gone]
        self._drop_models()

    def _drop_models(self) -> None:
        """Let go of models that nobody works on any more."""
        needed = {item.round for item in (*self._unanswered.values(), *(item for item, _ in self._arrived))}
        self._models = {round: model for round, model in self._models.items() if round in needed}

    def describe(self) -> list[list[Any]]:
        """Return the unanswered messages as plain lists, to be saved as JSON; models are saved beside them."""
        return [list(astuple(item)) for item in self._unanswered.values()]

    @property
    def models(self) -> Mapping[int, NDArray[Any]]:
        """The models of the rounds whose messages are not all answered, each shape (d,)."""
        return self._models

    def restore(self, unanswered: Iterable[Sequence[Any]], models: Mapping[int, NDArray[Any]]) -> None:
        """Take up what was saved."""
        self._unanswered = {str(item[0]): _Unanswered(*item) for item in unanswered}
        self._models = {round: np.array(model) for round, model in models.items()}
        self._drop_models()


def _current_run() -> int:
    """Return the id of the run of Flower that this process is in, as its messages have it."""
    message = Message(RecordDict(), dst_node_id=1, message_type=MessageType.TRAIN)
    run: int = message.metadata.run_id
    return run
