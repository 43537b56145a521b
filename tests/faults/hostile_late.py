"""Mutated replies that come after their round; run by `python -m tests.faults.hostile`.

The node is asked in every round and never answers in time; its reply, mutated, is there when the next round begins.
As in `hostile`, two strategies go side by side: what the first left out comes to the second as an error, what it took
comes to the second as a clean copy, and the two must be equal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedstale.flower import FedStale, RuleStrategy
from tests.flower.grid import MemoryGrid, record

from .hostile import BAD, GOOD, Pair, kind_of, mutate, sound


class _Grid(MemoryGrid):
    """Hands out what came late."""

    def __init__(self, late: list[Message]) -> None:
        super().__init__({**GOOD, BAD: lambda _: None})
        self.late = late

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.late


class LatePair(Pair):
    """The strategy that is attacked by late replies, and the one that is not."""

    def __init__(
        self, seed: int = 0, folder: Path | None = None, kind: type[RuleStrategy] = FedStale, **options: Any
    ) -> None:
        super().__init__(seed, folder, kind, **options)
        quiet: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0, "min_train_nodes": 0, "min_available_nodes": 0}
        self.one, self.two = (kind(**quiet, **options) for _ in range(2))
        self.asked: list[Message | None] = [None, None]
        """The messages to which the node has not answered, of the two."""
        self.give_up = False
        """Whether what came answered nothing, so that the node is still at work: it fails in the next round."""

    def _late_round(self, strategy: RuleStrategy, number: int, late: list[Message]) -> None:
        grid = _Grid(late)
        grid.sent = [None] * (10 * self.round)  # type: ignore[list-item]
        messages = list(strategy.configure_train(self.round, self.models[number], ConfigRecord(), grid))
        grid.push_messages(messages)
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node == BAD:
                self.asked[number] = message
            elif number == 0:
                self.good[node] = GOOD[node](message).content
            if node != BAD:
                replies.append(Message(self.good[node], reply_to=message))
        model, _ = strategy.aggregate_train(self.round, replies)
        assert model is not None
        self.models[number] = model

    def attack(self) -> bool:
        """One round with one mutated reply to a message of an earlier one; whether it was left out."""
        self.round += 1
        chance = np.random.default_rng([self.seed, self.round, 2])
        before, waiting, sent = self.asked[0], self.asked[1], list[Message]()
        if before is not None:
            failed = [Message(Error(2, "it failed"), reply_to=before)]
            sent = failed if self.give_up else mutate(before, chance, self.old)
        self._late_round(self.one, 0, list(sent))
        account, numbers = self.one.account, self.one.last_round
        assert account is not None
        assert numbers is not None
        assert account.balanced, account
        assert set(account.contributed) == set(GOOD), "a good reply was left out, or a late one counted as in time"
        late = [one for one in account.left_out if one.kind == "late"]
        taken = bool(numbers[1]["late"])
        unheard = self.asked[0] is before and before is not None
        theirs: list[Message] = []
        if waiting is not None and taken:
            model = sound(sent[0])
            assert model is not None, f"round {self.round}: a late reply was taken that is not sound"
            content = RecordDict({**sent[0].content, "arrays": record(model)})
            theirs = [Message(content, reply_to=waiting)]
        elif waiting is not None and not unheard:
            theirs = [Message(Error(2, "it failed"), reply_to=waiting)]
        self._late_round(self.two, 1, theirs)
        self._equal()
        self.old = [*self.old[-20:], *sent]
        self.give_up = unheard
        if taken:
            self.counts["late: taken"] += 1
        elif late:
            self.counts.update(f"late: {kind_of(one.reason)}" for one in late)
        else:
            self.counts["late: an answer to nothing" if unheard else "late: error"] += before is not None
        return not taken
