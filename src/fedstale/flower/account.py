"""Every round accounted for: each node that was asked contributed, failed, was left out, or stayed silent.

    asked = contributed + failed + rejected + silent

Replies that nobody asked for (a second one, of a stranger) are strays, and those to messages of an earlier round are
late: they are counted beside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .replies import LeftOut


@dataclass(frozen=True)
class Account:
    """Who was asked in a round and what became of it, by node id."""

    round: int
    connected: int
    asked: tuple[int, ...]
    contributed: tuple[int, ...]
    left_out: tuple[LeftOut, ...]

    @classmethod
    def make(
        cls, round: int, connected: int, asked: Iterable[int], contributed: Iterable[int], left_out: Iterable[LeftOut]
    ) -> Account:
        """Draw up the account of a round."""
        return cls(round, connected, tuple(sorted(asked)), tuple(sorted(contributed)), tuple(left_out))

    def nodes(self, kind: str) -> tuple[int, ...]:
        """The nodes whose reply was left out in this way: "failed", "bad", "conflict", "stray" or "late"."""
        return tuple(reply.node for reply in self.left_out if reply.kind == kind)

    @property
    def rejected(self) -> tuple[int, ...]:
        """Who answered in time with something that cannot be used, or as a client that is not theirs."""
        return self.nodes("bad") + self.nodes("conflict")

    @property
    def silent(self) -> tuple[int, ...]:
        """Who was asked and did not answer in time."""
        return tuple(sorted({*self.asked} - {*self.contributed, *self.nodes("failed"), *self.rejected}))

    @property
    def balanced(self) -> bool:
        """Whether every node that was asked appears exactly once."""
        parts = [*self.contributed, *self.nodes("failed"), *self.rejected, *self.silent]
        return sorted(parts) == list(self.asked)

    def numbers(self) -> dict[str, int]:
        """The account in numbers; `left_out` counts the rejected and the stray replies, and late ones of no use."""
        stray = len(self.nodes("stray"))
        return {
            "connected": self.connected,
            "asked": len(self.asked),
            "participants": len(self.contributed),
            "failed": len(self.nodes("failed")),
            "left_out": len(self.rejected) + stray + len(self.nodes("late")),
            "conflicts": len(self.nodes("conflict")),
            "stray": stray,
            "silent": len(self.silent),
        }

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON values: numbers, node ids, and the reason for each reply that was left out."""
        reasons = [{"node": reply.node, "kind": reply.kind, "reason": reply.reason} for reply in self.left_out]
        who = {"asked_nodes": self.asked, "contributed_nodes": self.contributed, "silent_nodes": self.silent}
        return {**self.numbers(), **{name: list(nodes) for name, nodes in who.items()}, "reasons": reasons}
