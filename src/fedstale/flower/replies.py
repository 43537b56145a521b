"""Which replies count: one valid answer per asked node and client, of this round; the rest is left out with a reason.

When a node dies, the SuperLink answers for it with a source id of its own, so that a reply is matched with the
message it answers and never by who it says it is from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from ..checks import printable
from .identity import Identity, IdentityRefused

MAX_REASON, _MAX_SIZE = 300, 1e15
"""Most characters of a reason that are kept, and the largest n_i that is believed."""


@dataclass
class ClientReply:
    """A reply that may count: whose it is, its model until somebody takes it, and n_i or why that is not known."""

    node: int
    identity: str
    arrays: ArrayRecord
    content: RecordDict
    size: float | None
    size_fault: str = ""

    def take_arrays(self) -> ArrayRecord:
        """Return the model and let go of it."""
        arrays, self.arrays = self.arrays, ArrayRecord()
        return arrays


@dataclass(frozen=True)
class LeftOut:
    """A reply that does not count.

    It "failed" at the client or on the way, is "bad" in itself, says that it is of another's client ("conflict"),
    answers nothing that was asked ("stray"), or came "late" and is of no use.
    """

    node: int
    kind: Literal["failed", "bad", "conflict", "stray", "late"]
    reason: str
    client: str | None = None

    def __post_init__(self) -> None:
        # A client may have written the reason: no line breaks or terminal codes in the log, and no megabytes.
        object.__setattr__(self, "reason", printable(self.reason, MAX_REASON))


class SentMessages:
    """The messages of a round and the nodes they went to."""

    def __init__(self, round: int, messages: Sequence[Message]) -> None:
        self.round = round
        self.messages = messages
        self.nodes = {message.metadata.dst_node_id for message in messages}

    def match(self, replies: Iterable[Message]) -> list[tuple[int | None, Message]]:
        """Return each reply with the node it is from, sorted; None if it answers nothing that was sent."""
        # Message ids are set when a grid sends; a grid that sends copies leaves ours empty.
        sent = {m.metadata.message_id: m.metadata.dst_node_id for m in self.messages if m.metadata.message_id}
        pairs = [(self._node(reply, sent), reply) for reply in replies]
        return sorted(pairs, key=lambda pair: -1 if pair[0] is None else pair[0])

    def _node(self, reply: Message, sent: dict[str, int]) -> int | None:
        about = reply.metadata
        if sent:
            node = sent.get(about.reply_to_message_id)
            return node if node is not None and (reply.has_error() or about.src_node_id == node) else None
        this_round = about.group_id == str(self.round)
        return about.src_node_id if this_round and about.src_node_id in self.nodes else None


def sort_replies(
    replies: Iterable[Message],
    sent: SentMessages,
    identity: Identity,
    arrays_key: str,
    size_key: str,
    *,
    whole: bool = True,
) -> tuple[list[ClientReply], list[LeftOut]]:
    """Return the replies that may count, in the order of their identities, and those that do not.

    The order of arrival has no say in anything: of two replies for one client, the node with the smaller id
    counts. Unless `whole`, the contents of replies are without their models.
    """
    accepted: dict[str, ClientReply] = {}
    left_out: list[LeftOut] = []
    nodes: set[int] = set()
    for node, reply in sent.match(replies):
        if node is None:
            source = reply.metadata.src_node_id
            left_out.append(LeftOut(source, "stray", f"it answers no message of round {sent.round}"))
            continue
        if node in nodes:
            left_out.append(LeftOut(node, "stray", "the node has answered already"))
            continue
        nodes.add(node)
        found = read_reply(node, reply, identity, arrays_key, size_key, whole=whole)
        if isinstance(found, ClientReply) and found.identity in accepted:
            first = accepted[found.identity].node
            reason = f"node {first} has answered already as the same client {found.identity}"
            found = LeftOut(node, "conflict", reason, found.identity)
        if isinstance(found, LeftOut):
            left_out.append(found)
        else:
            accepted[found.identity] = found
    # Shorter first, so that client 2 comes before client 10.
    return [accepted[name] for name in sorted(accepted, key=lambda name: (len(name), name))], left_out


def read_reply(
    node: int, reply: Message, identity: Identity, arrays_key: str, size_key: str, *, whole: bool = True
) -> ClientReply | LeftOut:
    """Return a node's reply as one that may count, or why it does not."""
    if reply.has_error():
        return LeftOut(node, "failed", f"error {reply.error.code}: {reply.error.reason}")
    if not reply.has_content():
        return LeftOut(node, "bad", "it has no content")
    content = reply.content
    # Flower's `array_records` copies every record on each access.
    records = {key: record for key, record in content.items() if isinstance(record, ArrayRecord)}
    if len(records) != 1 and arrays_key not in records:
        return LeftOut(node, "bad", f"it holds {len(records)} ArrayRecords, expected one")
    try:
        name = identity.identify(node, content)
    except IdentityRefused as error:
        return LeftOut(node, "conflict" if error.conflict else "bad", str(error), error.client)
    arrays = records[arrays_key] if arrays_key in records else next(iter(records.values()))
    kept = content if whole else RecordDict({key: one for key, one in content.items() if key not in records})
    return ClientReply(node, name, arrays, kept, *_size(content, size_key))


def _size(content: RecordDict, key: str) -> tuple[float | None, str]:
    """Return how many examples a reply says that its client has, or what is wrong with that."""
    fault = f"it does not say how many examples it has ({key})"
    for record in content.values():
        value = record.get(key) if isinstance(record, MetricRecord) else None
        if isinstance(value, (int, float)) and 0 < value <= _MAX_SIZE:
            return float(value), ""
        if value is not None:
            fault = f"its {key} is {_shown(value)} and not a number above 0 and up to {_MAX_SIZE:g}"
    return None, fault


def _shown(value: object) -> str:
    if not isinstance(value, (int, float)):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= 1e300:  # more than a float holds
        return "a number of hundreds of digits"
    return f"{value:g}"
