"""Who a reply comes from: the key under which a client's stale update is found again.

A Flower node id is not an identity: a SuperNode without a registered key gets a new one with every start, and a
simulation draws them anew in every run. Better ones, best first: the key with which the node authenticates itself,
which nobody else has, an id that the client reports, and only then the node id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from logging import WARNING, getLogger
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..checks import fail, printable

_REPORTED = ("client-id", "partition-id")
"""What identity="auto" looks for in a reply, in this order."""
NO_KEY = "its node has no key that was registered with a name"
_MAX_NAME = 200
"""Most characters of an identity."""
_REMEDIES = (
    "In a simulation, or wherever nodes have a partition-id: ClientApp(mods=[fedstale.flower.identity_mod]). With "
    "SuperNode authentication: flwr supernode register KEY.pub --name NAME. Otherwise: put a 'client-id' of your own "
    'into the metrics of every reply. To count connections instead of clients: identity="node".'
)
"""One line for each case."""

_UNSTABLE = (
    "%d of %d connected nodes have no key that was registered with a name, and nothing but a name tells a registered "
    "key from one that was made up for this start. Flower gives a node without one a new id each time it starts, "
)
_BY_REPORT = "so that only an id in its replies finds its client again. A device whose replies report none "
_BY_KEY = 'so that identity="key", which hears no ids in replies, does not find its client again. Such a device '
_SUCCEEDS = (
    "comes back as a stranger and, unless forget_after= says otherwise, is taken for the one that was silent for "
    "longest: where several of them come and go, what is remembered of one is another's, and rare devices are not "
    "served as they should be. "
)
_LEFT_OUT = "is left out: a checkpoint needs clients that are found again. "
_SILENCED = 'Where every reply has a client-id, identity="metric:client-id" says so and silences this. '


class IdentityRefused(ValueError):
    """A reply whose client is not known, or that claims to be another's; `conflict` tells which."""

    def __init__(self, reason: str, *, conflict: bool = False, client: str | None = None) -> None:
        super().__init__(reason)
        self.conflict = conflict
        self.client = client


class Identity:
    """Finds out who answered.

    Parameters
    ----------
    mode
        "auto": the node's key, if it was registered with a name; else what the client reports as `client-id` or
        `partition-id`; else the node id. "metric:NAME": the client reports NAME, in a MetricRecord or a
        ConfigRecord, and a reply without it is left out. "key": the node's key, if it was registered with a name, else
        the node id, whatever the client reports. "node": the node id.
    must_last
        Whether a node id is not good enough for "auto" and "key": what is saved must be found again.
    """

    def __init__(self, mode: str = "auto", *, must_last: bool = False) -> None:
        kind, _, name = str(mode).partition(":")
        if not (mode in ("auto", "key", "node") or (kind == "metric" and name)):
            raise fail("identity", mode, 'must be "auto", "key", "node" or "metric:NAME"')
        self.mode = mode
        self.must_last = must_last
        self.names: tuple[str, ...] = (name,) if kind == "metric" else _REPORTED if mode == "auto" else ()
        self.claims: dict[str, str] = {}
        """Which registered key a reported id belongs to: the first that reported it."""
        self._keys: dict[int, str] = {}
        """The registered keys, by node."""
        self.aliases: dict[str, str] = {}
        """The names under which keys were registered."""
        self.nodes: dict[int, str] = {}
        """Who contributed last from a node."""
        self._warned = False
        self._warned_unusable = False

    def register_nodes(self, nodes: Iterable[Any]) -> list[int]:
        """Take note of the connected nodes (`Grid.get_nodes`); return their ids, sorted."""
        ids = []
        for node in nodes:
            ids.append(int(node.node_id))
            if node.public_key and node.name:  # every node has a key; only a registered one may have a name
                key = "key:" + hashlib.sha256(node.public_key).hexdigest()[:32]
                self._keys[ids[-1]], self.aliases[key] = key, str(node.name)
        return sorted(ids)

    def warn(self, nodes: Iterable[int]) -> None:
        """Say once, before the first round, that clients may not be found again, and what to do about it."""
        nodes = list(nodes)
        unregistered = [node for node in nodes if node not in self._keys]
        if self.mode in ("auto", "key") and unregistered and not self._warned:
            self._warned = True
            by_key = self.mode == "key"
            text = _UNSTABLE % (len(unregistered), len(nodes)) + (_BY_KEY if by_key else _BY_REPORT)
            text += (_LEFT_OUT if self.must_last else _SUCCEEDS) + self.remedies + ("" if by_key else " " + _SILENCED)
            getLogger("flwr").log(WARNING, "%s See docs/flower.md.", text.rstrip())

    @property
    def remedies(self) -> str:
        """What to do so that clients are found again."""
        return (
            'With identity="auto" instead of "key", ids in replies count too. ' if self.mode == "key" else ""
        ) + _REMEDIES

    def identify(self, node: int, content: RecordDict) -> str:
        """Return the identity behind a reply, such as "client-id:7"; raise `IdentityRefused` where it has none."""
        key = self._keys.get(node)
        if key is not None and self.mode in ("auto", "key"):
            return key
        said = [(name, value) for name in self.names for value in _values(content, name)]
        for name, value in said:
            if (usable := _as_id(value)) is not None:
                return self._claim(node, f"{name}:{usable}")
        unusable = _fault(*said[0]) if said else None
        if self.mode.startswith("metric:"):
            missing = f"it does not report {self.names[0]!r}, which identity={self.mode!r} needs"
            raise IdentityRefused(unusable or missing)
        if self.mode == "auto" and node in self.nodes:  # who reports an id only sometimes stays who it was
            return self.nodes[node]
        if self.mode in ("auto", "key") and self.must_last:
            reason = f"{unusable or 'it reports no client-id'}, and {NO_KEY}"
            raise IdentityRefused(reason if self.mode == "auto" else NO_KEY)
        if unusable and not self._warned_unusable:
            self._warned_unusable = True
            text = "node %d: %s. It is known by its node id, which it does not get twice (said once for all nodes)"
            getLogger("flwr").log(WARNING, text, node, unusable)
        return f"node:{node}"

    def _claim(self, node: int, identity: str) -> str:
        """Give a reported id to a node, unless it belongs to a node with another registered key."""
        if identity != printable(identity, _MAX_NAME):
            raise IdentityRefused(f"its identity {printable(identity, 40)} is not a short line of text")
        key, owner = self._keys.get(node), self.claims.get(identity)
        if owner is not None and owner != key:
            raise IdentityRefused(
                f"it claims to be {identity}, which belongs to a node with another key", conflict=True, client=identity
            )
        return identity

    def confirm(self, node: int, identity: str) -> None:
        """Take note of who contributed from a node: a reply that was left out says nothing about anybody."""
        self.nodes[node] = identity
        key = self._keys.get(node)
        if key is not None and self.mode.startswith("metric:"):
            self.claims.setdefault(identity, key)

    def last_identity(self, node: int) -> str | None:
        """Return who is behind a node, as far as it is known before it answers: by its key, or by its last answer."""
        key = self._keys.get(node)
        if key is not None and self.mode in ("auto", "key"):
            return key
        return f"node:{node}" if self.mode == "node" else self.nodes.get(node)

    def forget(self, identity: str) -> None:
        """Lose every trace of a client."""
        self.claims.pop(identity, None)
        self.aliases.pop(identity, None)
        self.nodes = {node: name for node, name in self.nodes.items() if name != identity}

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


def _values(content: RecordDict, name: str) -> list[Any]:
    """Return what a reply says under this name, in any of its metric or config records."""
    records = [record for record in content.values() if isinstance(record, (MetricRecord, ConfigRecord))]
    return [record[name] for record in records if name in record]


def _as_id(value: Any) -> str | None:
    """Return a reported id as text: a whole number, or a text that is not empty."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64:
        return str(value)
    return value if isinstance(value, str) and value else None


def _fault(name: str, value: Any) -> str:
    """Say what is wrong with a reported id."""
    shown = repr(value) if isinstance(value, (str, float)) else f"a {type(value).__name__}"
    return f"it reports {shown} as its {name}, which must be a whole number or a text"


def identity_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let every reply of a ClientApp say whose it is: `ClientApp(mods=[identity_mod])`.

    It reports the node config's `client-id` where there is one, else its `partition-id`.
    """
    return report_identity(call_next(message, context), context)


def report_identity(reply: Message, context: Context) -> Message:
    """Write into a reply whose it is, where the node config says so."""
    found = reported(context)
    if found is not None and reply.has_content():
        reply.content["identity"] = ConfigRecord(dict([found]))
    return reply


def reported(context: Context) -> tuple[str, Any] | None:
    """Return the name and the value of the id that this node reports, if it has one."""
    values = ((name, context.node_config.get(name)) for name in _REPORTED)
    return next(((name, value) for name, value in values if value is not None), None)
