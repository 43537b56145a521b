"""Replies that come after their round: what a strategy does with them, and with nodes that have not answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message

from .replies import LeftOut, read_reply
from .round_facts import LateUpdate

if TYPE_CHECKING:
    from .strategy import RuleStrategy


def take_up_late(strategy: RuleStrategy, index: int) -> tuple[int, list[LeftOut]]:
    """Put what arrived after its round into the memory; return how many such replies there were, and the bad ones.

    A rule without a memory that could hold them has only their number.
    """
    aggregator = strategy.aggregator
    assert aggregator is not None  # noqa: S101 - the round was configured
    late, left_out, before = strategy.asking.late.take(), list[LeftOut](), len(aggregator.members)
    for unanswered, message, sent in late:
        reply = read_reply(
            unanswered.node, message, strategy.identity, strategy.arrayrecord_key, strategy.weighted_by_key
        )
        if isinstance(reply, LeftOut):
            left_out.append(replace(reply, kind="late"))
            continue
        if sent is None or not strategy.bounded_rule.takes_late:
            continue
        setting = strategy.asking.setting(index, strategy.sent_messages.nodes, aggregator, strategy.rounds_resumed)
        update, joined = LateUpdate(reply, unanswered.round, sent), len(aggregator.members) - before
        refused = aggregator.put_late(strategy.bounded_rule, index - 1, update, strategy.probabilities, setting, joined)
        if refused is None:
            strategy.identity.confirm(reply.node, reply.identity)
        else:
            left_out.append(refused)
    return len(late) - len(left_out), left_out


def note_unanswered(strategy: RuleStrategy, index: int, replies: Sequence[Message]) -> None:
    """Take note of who has not answered, with the model that was sent."""
    aggregator = strategy.aggregator
    assert aggregator is not None  # noqa: S101 - the round was configured
    if strategy.options["late_for"]:
        keep = strategy.bounded_rule.takes_late and len(replies) < len(strategy.sent_messages.nodes)
        model = np.array(aggregator.layout.as_sent(aggregator.model)) if keep else None
        strategy.asking.late.note(strategy.sent_messages, replies, index - 1, model)
