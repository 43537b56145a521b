"""Who a reply comes from: the key under which a client's stale update is found again.

A Flower node id is not an identity: a SuperNode without a key of its own gets a new one with every start, and a
simulation draws them anew in every run. Better keys, best first: an id that the client reports, the public key
with which the node authenticates itself, the node id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from logging import WARNING, getLogger
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..checks import fail

_REPORTED = ("client-id", "partition-id")
"""What identity="auto" looks for in a reply, in this order."""

_UNSTABLE = (
    "clients are told apart by %s only, which a SuperNode without a key of its own (and every simulation) draws anew "
    "at each start: after a restart their stale updates and probabilities are not found again. Let clients report "
    "an id (ClientApp(mods=[fedstale.flower.identity_mod]), or 'client-id' in the reply's metrics), or enable "
    "SuperNode authentication. See docs/flower.md, Identity."
)


class Identity:
    """Finds out who answered.

    Parameters
    ----------
    mode
        "auto": what the client reports as `client-id` or `partition-id`, else the node's public key, else the
        node id; "metric:NAME": the client reports NAME, in a MetricRecord or a ConfigRecord, and a reply without
        it is left out; "key": the node's public key; "node": the node id.
    """

    def __init__(self, mode: str = "auto") -> None:
        kind, _, name = str(mode).partition(":")
        if not (mode in ("auto", "key", "node") or (kind == "metric" and name)):
            raise fail("identity", mode, 'must be "auto", "key", "node" or "metric:NAME"')
        self.mode = mode
        self.names: tuple[str, ...] = (name,) if kind == "metric" else _REPORTED if mode == "auto" else ()
        self._keys: dict[int, str] = {}
        self._named: set[int] = set()
        self._last: dict[int, str] = {}
        self._warned = False

    def register_nodes(self, nodes: Iterable[Any]) -> list[int]:
        """Take note of the connected nodes (`Grid.get_nodes`); return their ids, sorted."""
        ids = []
        for node in nodes:
            ids.append(int(node.node_id))
            if node.public_key:
                self._keys[ids[-1]] = "key:" + hashlib.sha256(node.public_key).hexdigest()[:32]
            if node.name:
                self._named.add(ids[-1])
        return sorted(ids)

    def identify(self, node: int, content: RecordDict) -> str | None:
        """Return the identity behind a reply, such as "client-id:7"; None where it is required and missing."""
        for name in self.names:
            value = reported_id(content, name)
            if value is not None:
                self._last[node] = f"{name}:{value}"
                return self._last[node]
        if self.mode.startswith("metric:"):
            return None
        self._last[node] = self._node_identity(node)
        return self._last[node]

    def last_identity(self, node: int) -> str | None:
        """Return who answered from this node last, in this process."""
        return self._last.get(node)

    def _node_identity(self, node: int) -> str:
        key = self._keys.get(node) if self.mode != "node" else None
        if not self._warned and (self.mode == "node" or node not in self._named):
            self._warned = True
            getLogger("flwr").log(WARNING, _UNSTABLE, "the node id" if key is None else "the node's key")
        return f"node:{node}" if key is None else key

    def drop_reported_ids(self, content: RecordDict) -> RecordDict:
        """Return a reply's content without reported ids in its metrics: their average means nothing."""
        return RecordDict(
            {
                key: MetricRecord({name: value for name, value in record.items() if name not in self.names})
                if isinstance(record, MetricRecord) and not record.keys().isdisjoint(self.names)
                else record
                for key, record in content.items()
            }
        )


def reported_id(content: RecordDict, name: str) -> str | None:
    """Return what a reply says under this name, in any of its metric or config records."""
    for record in content.values():
        value: Any = record.get(name) if isinstance(record, (MetricRecord, ConfigRecord)) else None
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64:
            return str(value)
        if isinstance(value, str) and value:
            return value
    return None


def identity_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let every reply of a ClientApp say whose it is: `ClientApp(mods=[identity_mod])`.

    It reports the node config's `client-id` where there is one, else its `partition-id`.
    """
    reply = call_next(message, context)
    for name in _REPORTED:
        value = context.node_config.get(name)
        if value is not None and reply.has_content():
            reply.content["identity"] = ConfigRecord({name: value})
            break
    return reply
