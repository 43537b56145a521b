"""Clients that leave: those not heard of for long, and those who ask to be erased."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from logging import INFO, getLogger
from typing import TYPE_CHECKING

from .. import memory as memories
from ..checks import fail
from .checkpoint_file import holds_checkpoint
from .replies import LeftOut

if TYPE_CHECKING:
    from .strategy import RuleStrategy

_logger = getLogger("flwr")
_FORGET_NODES_AFTER = 50
"""Rounds after which a client known by a node id only is taken for gone; FedAU's cutoff is the same number."""


def forget_overdue(strategy: RuleStrategy, index: int) -> list[str]:
    """Let those leave who were not heard of for so long as `forget_after` says; return who they were."""
    assert strategy.aggregator is not None  # noqa: S101 - a round was applied
    after: int | None
    if strategy.options["forget_after"] == "auto":
        after, nodes_after = None, None if memories.approximate(strategy.options["memory"]) else _FORGET_NODES_AFTER
    else:
        after = nodes_after = strategy.options["forget_after"]
    gone = strategy.aggregator.members.overdue(index - 1, after, nodes_after)
    if gone:
        _forget(strategy, gone)
        text = "round %d: %d clients were not heard of for too long and are forgotten: %s"
        _logger.log(INFO, text, index, len(gone), ", ".join(gone[:10]) + (" …" if len(gone) > 10 else ""))
    return gone


def erase(strategy: RuleStrategy, client: str | int) -> None:
    """Erase a client: it leaves the objective, and nothing of it stays behind; see `RuleStrategy.forget`."""
    alone = not strategy.locked  # no start() is going on
    strategy.lock()
    try:
        _erase(strategy, client)
    finally:
        if alone:
            strategy.unlock()


def _erase(strategy: RuleStrategy, client: str | int) -> None:
    saved = strategy.checkpoint is not None and holds_checkpoint(strategy.checkpoint)
    if strategy.aggregator is None and strategy.checkpoint is not None and saved:
        strategy.load_checkpoint(strategy.checkpoint)
    known = [] if strategy.aggregator is None else [name for name in strategy.aggregator.identities if name]
    aliases = strategy.identity.aliases
    found = [name for name in known if str(client) in (name, name.partition(":")[2], aliases.get(name))]
    if strategy.aggregator is None or len(found) != 1:
        raise fail("client", client, f"must be one of the {len(known)} known clients, such as {known[:1]}")
    gone = _forget(strategy, found)
    strategy.left_out = deque(
        (entry for entry in strategy.left_out if not _names(entry[1], found[0])), strategy.left_out.maxlen
    )
    if strategy.account is not None:  # every node stays accounted for
        left_out = (_without_name(reply, found[0]) for reply in strategy.account.left_out)
        strategy.account = replace(strategy.account, left_out=tuple(left_out))
    strategy.last_round = None
    participants = [i for i in strategy.pending_log.get("participants", []) if i not in gone]
    strategy.pending_log = {**strategy.pending_log, "participants": participants}
    strategy.journal.forget(strategy.store_run, gone)
    if strategy.held is not None:
        strategy.held.purge(strategy.aggregator)
    if saved:
        strategy.save_checkpoint()
    strategy.aggregator.erase_spare()


def _forget(strategy: RuleStrategy, identities: Sequence[str]) -> list[int]:
    assert strategy.aggregator is not None  # noqa: S101 - callers have one
    gone = strategy.aggregator.forget(identities, strategy.probabilities)
    for name in identities:
        strategy.asking.late.forget([node for node, client in strategy.identity.nodes.items() if client == name])
        strategy.identity.forget(name)
        if strategy.held is not None:
            strategy.held.forget(name)
    return gone


def _names(reply: LeftOut, client: str) -> bool:
    """Whether an entry tells of a client, be it in the reason why another was left out."""
    return reply.client == client or client in reply.reason


def _without_name(reply: LeftOut, client: str) -> LeftOut:
    return replace(reply, client=None, reason="its client was erased") if _names(reply, client) else reply
