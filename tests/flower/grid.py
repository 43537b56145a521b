"""A Flower grid in one process: messages are answered by functions, without sockets, Ray or threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from numpy.typing import NDArray

Node = Callable[[Message], Message | None]
Model = dict[str, NDArray[Any]]


class MemoryGrid(Grid):
    """Nodes by id, each a function from a message to its reply (or None: no answer in time)."""

    def __init__(self, nodes: dict[int, Node], keys: dict[int, bytes] | None = None) -> None:
        self.nodes = dict(nodes)
        self.keys = keys or {}
        self.online = set(nodes)
        self.sent: list[Message] = []
        self.extra: list[Message] = []  # delivered with the next replies: late ones, foreign ones
        self.reverse = False

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.online)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=i, public_key=self.keys.get(i, b"")) for i in self.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            self.sent.append(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        replies = [self.nodes[m.metadata.dst_node_id](m) for m in self.sent if m.metadata.message_id in wanted]
        self.extra, extra = [], self.extra
        found = [reply for reply in replies if reply is not None] + extra
        return found[::-1] if self.reverse else found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))


class SlowGrid(MemoryGrid):
    """Nodes that take their time, in rounds: one of 1.5 answers in the middle of the round after the one it was asked.

    A round begins when somebody looks who is connected to train, and every node works on its messages one by one.
    """

    def __init__(self, nodes: dict[int, Node], takes: dict[int, float]) -> None:
        super().__init__(nodes)
        self.takes = takes
        self.now = 0.0
        self.free_at: dict[int, float] = {}
        self.ready: dict[str, tuple[float, Message]] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        for message in messages:
            node = message.metadata.dst_node_id
            training = message.metadata.message_type == "train"
            self.free_at[node] = max(self.free_at.get(node, 0.0), self.now) + training * self.takes.get(node, 0.5)
            if (reply := self.nodes[node](message)) is not None:
                self.ready[message.metadata.message_id] = (self.free_at[node], reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = [i for i in message_ids if i in self.ready and self.ready[i][0] <= self.now]
        return [self.ready.pop(i)[1] for i in ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        ids = self.push_messages(messages)
        if any(message.metadata.message_type == "train" for message in messages):
            self.now += 1.0
        return self.pull_messages(ids)


def round_of(message: Message) -> int:
    server_round = message.content.config_records["config"]["server-round"]
    assert isinstance(server_round, int)
    return server_round


def record(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def arrays(content: ArrayRecord) -> Model:
    return {name: array.numpy() for name, array in content.items()}


def flat(content: ArrayRecord) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(a).astype(np.float64) for a in arrays(content).values()])


class Trainer:
    """A client that moves the model towards its own optimum, with noise that depends on (client, round) only."""

    def __init__(self, client: int, *, examples: int = 10, metrics: dict[str, Any] | None = None) -> None:
        self.client = client
        self.examples = examples
        self.metrics = {"client-id": client} if metrics is None else metrics
        self.replies: dict[int, Model] = {}

    def model(self, received: Model, server_round: int) -> Model:
        chance = np.random.default_rng([self.client, server_round])
        return {
            name: (a - 0.1 * (a - self.client) + 0.05 * chance.standard_normal(a.shape)).astype(a.dtype)
            if a.dtype.kind == "f"
            else (a + self.client + 1).astype(a.dtype)
            for name, a in received.items()
        }

    def __call__(self, message: Message) -> Message:
        metrics: dict[str, Any] = {"num-examples": self.examples, "loss": float(self.client), **self.metrics}
        if message.metadata.message_type == "evaluate":
            return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
        server_round = round_of(message)
        model = self.model(arrays(message.content.array_records["arrays"]), server_round)
        self.replies[server_round] = model
        content = RecordDict({"arrays": record(model), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)


def trainers(clients: Sequence[int], first_node: int = 1000, **options: Any) -> dict[int, Node]:
    return {first_node + client: Trainer(client, **options) for client in clients}


def first_model(dtype: str = "float32") -> Model:
    chance = np.random.default_rng(0)
    return {
        "conv.weight": chance.standard_normal((4, 2, 3)).astype(dtype),
        "conv.bias": chance.standard_normal(4).astype(dtype),
        "scale": np.asarray(1.5, dtype=dtype),
    }
