"""Who a client is: reported ids, keys, node ids, and the warning where it is unstable."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

import fedstale as fs
from fedstale.flower import FedStale, identity_mod

from .grid import MemoryGrid, Node, Trainer, arrays, first_model, record, round_of, trainers

QUICK: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0}


class NamedGrid(MemoryGrid):
    """A grid whose nodes with a key were registered under a name, as SuperNode authentication does."""

    def get_nodes(self) -> Any:
        return [
            NodeInfo(node_id=i, public_key=self.keys.get(i, b""), name=f"device {i}" if i in self.keys else None)
            for i in self.online
        ]


def identities(nodes: dict[int, Node], keys: dict[int, bytes] | None = None, **options: Any) -> list[str]:
    strategy = FedStale(**QUICK, **options)
    strategy.start(NamedGrid(nodes, keys), record(first_model()), num_rounds=1)
    assert strategy.aggregator is not None
    return strategy.aggregator.identities


def test_auto_takes_the_best_there_is() -> None:
    assert identities(trainers([2, 10])) == ["client-id:2", "client-id:10"]
    assert identities(trainers([2, 10], metrics={"partition-id": 4})) == ["partition-id:4"]  # both say they are 4
    assert identities(trainers([2, 10], metrics={})) == ["node:1002", "node:1010"]
    by_key = identities(trainers([2, 10], metrics={}), {1002: b"a", 1010: b"b"})
    assert all(name.startswith("key:") and len(name) == 36 for name in by_key)
    assert set(by_key) == set(identities(trainers([2, 10], 5000, metrics={}), {5002: b"a", 5010: b"b"}))


def test_a_registered_key_beats_a_claimed_id() -> None:
    """A node with a key of its own that says it is client 0 gets its own row, and client 0 keeps its own."""
    nodes: dict[int, Node] = {1000: Trainer(0), 1001: Trainer(1, metrics={"client-id": 0})}
    found = identities(nodes, {1000: b"a", 1001: b"b"})
    assert len(found) == 2
    assert all(name.startswith("key:") for name in found)
    mixed = identities(nodes, {1001: b"b"})  # a node without a registered key may report an id
    assert sorted(name.partition(":")[0] for name in mixed) == ["client-id", "key"]


def test_a_client_with_a_key_is_called_by_the_name_of_its_registration(tmp_path: Any) -> None:
    """Nobody knows the beginning of its key's checksum."""
    keys = {1000: b"a", 1001: b"b"}
    options: Any = {**QUICK, "checkpoint": tmp_path, "resume": "auto"}
    options |= {"identity": "key", "probabilities": {"device 1000": 0.5, "device 1001": 0.25}}
    grid = NamedGrid(trainers([0, 1], metrics={}), keys)
    strategy = FedStale(**options)
    strategy.start(grid, record(first_model()), num_rounds=1)
    assert strategy.last_round is not None
    assert sorted(strategy.last_round[0].probabilities) == [0.25, 0.5]
    with pytest.raises(fs.InvalidInput, match="must be one of the 2 known clients"):
        strategy.forget("device 7")
    another = FedStale(**options)  # a process that only erases, and sees no node
    another.forget("device 1001")
    assert another.aggregator is not None
    assert len(another.aggregator.known) == 1
    assert [*another.identity.aliases.values()] == ["device 1000"]
    grid.online = {1000}
    left = FedStale(**{**options, "min_available_nodes": 1, "min_train_nodes": 1})
    left.prepare(record(first_model()))
    assert [*left.identity.aliases.values()] == ["device 1000"]  # nor in the checkpoint
    result = left.start(grid, record(first_model()), num_rounds=2)
    assert result.train_metrics_clientapp[2]["fedstale/known"] == 1


def test_throw_away_keys_are_no_identity() -> None:
    """Flower gives a SuperNode without a key a new one at each start; such keys have no name."""
    strategy = FedStale(**QUICK)
    strategy.start(MemoryGrid(trainers([0, 1], metrics={}), {1000: b"x", 1001: b"y"}), record(first_model()), 1)
    assert strategy.aggregator is not None
    assert strategy.aggregator.identities == ["node:1000", "node:1001"]


@pytest.mark.parametrize("thief", [b"b", None])
def test_two_claims_of_one_id_by_different_keys_are_refused_and_counted(thief: bytes | None, tmp_path: Any) -> None:
    """Also after a restart, when the owner is away, and by a node without a registered key."""
    options: Any = {**QUICK, "identity": "metric:client-id", "checkpoint": tmp_path, "resume": "auto"}
    options |= {"min_available_nodes": 1, "min_train_nodes": 1}
    grid = NamedGrid({1: Trainer(7), 2: Trainer(8)}, {1: b"a", 2: b"c"})
    FedStale(**options).start(grid, record(first_model()), num_rounds=1)
    away = NamedGrid({3: Trainer(7), 2: Trainer(8)}, {2: b"c"} if thief is None else {2: b"c", 3: thief})
    strategy = FedStale(**options)
    result = strategy.start(away, record(first_model()), num_rounds=2)
    assert strategy.aggregator is not None
    assert strategy.aggregator.identities == ["client-id:7", "client-id:8"]
    assert [result.train_metrics_clientapp[t]["fedstale/conflicts"] for t in (1, 2)] == [0, 1]
    assert result.train_metrics_clientapp[2]["fedstale/participants"] == 1
    assert "belongs to a node with another key" in strategy.left_out[0][1].reason
    assert strategy.account is not None
    assert strategy.account.balanced
    back = NamedGrid({9: Trainer(7)}, {9: b"a"})  # the owner, with a new node id
    result = FedStale(**options).start(back, record(first_model()), num_rounds=3)
    assert result.train_metrics_clientapp[3]["fedstale/participants"] == 1


def test_an_identity_can_be_demanded() -> None:
    assert identities(trainers([2, 10], metrics={"site": 3.0, "client-id": 1}), identity="metric:site") == ["site:3"]
    assert identities(trainers([2, 10]), identity="node") == ["node:1002", "node:1010"]
    strategy = FedStale(**QUICK, identity="metric:site")
    nodes: dict[int, Node] = {1: Trainer(0, metrics={"site": 0}), 2: Trainer(1)}
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
    assert "does not report 'site'" in strategy.left_out[0][1].reason


@pytest.mark.parametrize(
    ("keys", "how", "warned"),
    [
        ({1000: b"x"}, "auto", 1),
        ({1000: b"x", 1001: b"y", 1002: b"z"}, "auto", 0),
        ({}, "metric:client-id", 0),
        ({}, "node", 0),
        ({}, "key", 1),
    ],
)
def test_an_unstable_identity_is_said_before_the_first_round(
    keys: Any, how: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with a remedy for a simulation, for keys and for a reported id."""
    logging.getLogger("flwr").propagate = True
    grid = NamedGrid(trainers([0, 1, 2]), keys)
    strategy = FedStale(**QUICK, identity=how)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy.configure_train(1, record(first_model()), ConfigRecord(), grid)
        said = [line.getMessage() for line in caplog.records if "new id each time" in line.getMessage()]
        strategy.start(grid, record(first_model()), num_rounds=2)
        later = [line.getMessage() for line in caplog.records if "new id each time" in line.getMessage()]
    assert len(said) == len(later) == warned
    for text in said:
        assert f"{3 - len(keys)} of 3" in text
        for remedy in ("identity_mod", "flwr supernode register", "'client-id'", 'identity="node"'):
            assert remedy in text


@pytest.mark.parametrize("how", ["auto", "key"])
def test_what_becomes_of_a_device_without_identity_is_said_as_it_is(
    how: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With a checkpoint it is left out, and not taken for another; and ids in replies are nothing to identity="key"."""
    logging.getLogger("flwr").propagate = True
    for checkpoint in (None, tmp_path):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="flwr"):
            strategy = FedStale(**QUICK, identity=how, checkpoint=checkpoint)
            strategy.configure_train(1, record(first_model()), ConfigRecord(), MemoryGrid(trainers([0, 1])))
        [text] = [line.getMessage() for line in caplog.records if "new id each time" in line.getMessage()]
        assert ("taken for the one that was silent for longest" in text) == (checkpoint is None)
        assert ("is left out" in text) == (checkpoint is not None)
        assert ("only an id in its replies finds its client again" in text) == (how == "auto")


def test_a_checkpoint_of_clients_that_are_not_found_again_is_refused(tmp_path: Any) -> None:
    grid = MemoryGrid(trainers([0, 1], metrics={}))
    with pytest.raises(fs.InvalidInput, match=r"identity = 'auto': a checkpoint needs clients .*identity_mod"):
        FedStale(**QUICK, checkpoint=tmp_path / "a").start(grid, record(first_model()), num_rounds=2)
    assert not list((tmp_path / "a").glob("*.safetensors"))
    unnamed = MemoryGrid(trainers([0, 1]), {1000: b"x", 1001: b"y"})  # made up for this start: nobody registered them
    with pytest.raises(
        fs.InvalidInput, match=r"identity = 'key': a checkpoint needs clients .*register KEY.pub --name"
    ):
        FedStale(**QUICK, checkpoint=tmp_path / "k", identity="key").start(unnamed, record(first_model()), 2)
    FedStale(**QUICK, checkpoint=tmp_path / "b", identity="node").start(grid, record(first_model()), num_rounds=2)
    # One device without an id does not end a federation that is under way, nor one whose others have ids.
    mixed: dict[int, Node] = {1: Trainer(0), 2: Trainer(1), 3: Trainer(2, metrics={})}
    strategy = FedStale(**QUICK, checkpoint=tmp_path / "c")
    strategy.start(MemoryGrid(mixed), record(first_model()), num_rounds=2)
    assert strategy.aggregator is not None
    assert strategy.aggregator.identities == ["client-id:0", "client-id:1"]
    assert {reply.node for _, reply in strategy.left_out} == {3}


@pytest.mark.parametrize("value", [1.5, b"seven", [7, 8], True, ""])
def test_an_id_that_cannot_be_used_is_said(value: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It became a node id without a word."""

    class Odd(Trainer):
        def __call__(self, message: Message) -> Message:
            reply = super().__call__(message)
            reply.content["identity"] = ConfigRecord({"client-id": value})
            return reply

    logging.getLogger("flwr").propagate = True
    nodes: dict[int, Node] = {1: Trainer(0), 2: Trainer(1), 3: Odd(2, metrics={}), 4: Odd(3, metrics={})}
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert identities(nodes) == ["node:3", "node:4", "client-id:0", "client-id:1"]
    assert len([line for line in caplog.records if "must be a whole number or a text" in line.getMessage()]) == 1
    for options in ({"checkpoint": tmp_path}, {"identity": "metric:client-id"}):
        strategy = FedStale(**QUICK, **options)
        strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
        reasons = {left_out.node: left_out.reason for _, left_out in strategy.left_out}
        assert reasons.keys() == {3, 4}
        assert "as its client-id, which must be a whole number or a text" in reasons[3]


@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_reports_its_id_only_sometimes_stays_who_it_was(first: bool) -> None:
    class Sometimes(Trainer):
        def __call__(self, message: Message) -> Message:
            self.metrics = {"client-id": 9} if first == (round_of(message) % 2 == 1) else {"shift": 1}
            return super().__call__(message)

    strategy = FedStale(**QUICK)
    strategy.start(MemoryGrid({1: Trainer(0), 2: Sometimes(9)}), record(first_model()), num_rounds=4)
    assert strategy.aggregator is not None
    assert sorted(strategy.aggregator.identities) == ["client-id:0", "client-id:9"]
    assert strategy.aggregator.state.last_seen.tolist()[:2] == [3, 3]


def test_a_key_registered_without_a_name_is_not_called_unregistered(tmp_path: Any) -> None:
    nodes: dict[int, Node] = {1000: Trainer(0), 1001: Trainer(1, metrics={})}
    strategy = FedStale(**QUICK, checkpoint=tmp_path)
    strategy.start(MemoryGrid(nodes, {1000: b"x", 1001: b"y"}), record(first_model()), num_rounds=1)
    reason = "it reports no client-id, and its node has no key that was registered with a name"
    assert [left_out.reason for _, left_out in strategy.left_out] == [reason]


def test_after_a_restart_with_new_node_ids_the_rows_are_found_again() -> None:
    strategy = FedStale(**QUICK)
    grid = MemoryGrid(trainers([0, 1, 2], 1000))
    strategy.start(grid, record(first_model()), num_rounds=2)
    grid.nodes = trainers([0, 1, 2], 9000)
    grid.online = set(grid.nodes)
    strategy.start(grid, record(first_model()), num_rounds=2)
    assert strategy.aggregator is not None
    assert len(strategy.aggregator.identities) == 3
    assert strategy.aggregator.state.last_seen.tolist()[:3] == [3, 3, 3]


@pytest.mark.parametrize(
    ("config", "name"),
    [({"partition-id": 3}, "partition-id:3"), ({"partition-id": 3, "client-id": "ward-7"}, "client-id:ward-7")],
)
def test_the_mod_reports_the_node_config_without_touching_the_metrics(config: Any, name: str) -> None:
    app = ClientApp(mods=[identity_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = arrays(message.content.array_records["arrays"])
        return Message(
            RecordDict({"arrays": record(model), "metrics": MetricRecord({"num-examples": 4, "loss": 1.0})}),
            reply_to=message,
        )

    context = Context(run_id=1, node_id=5, node_config=config, state=RecordDict(), run_config={})
    strategy = FedStale(**QUICK, min_available_nodes=1, min_train_nodes=1)
    grid = MemoryGrid({5: lambda message: app(message, context)})
    result = strategy.start(grid, record(first_model()), num_rounds=1)
    assert strategy.aggregator is not None
    assert strategy.aggregator.identities == [name]
    assert result.train_metrics_clientapp[1]["loss"] == 1.0
    assert np.isfinite(strategy.aggregator.model).all()
