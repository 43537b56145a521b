"""Who a client is: reported ids, keys, node ids, and the warning where it is unstable."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fedstale.flower import FedStale, identity_mod
from fedstale.flower.identity import Identity

from .grid import MemoryGrid, Node, Trainer, arrays, first_model, record, trainers

QUICK: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0}


def identities(nodes: dict[int, Node], keys: dict[int, bytes] | None = None, **options: Any) -> list[str]:
    strategy = FedStale(**QUICK, **options)
    strategy.start(MemoryGrid(nodes, keys), record(first_model()), num_rounds=1)
    assert strategy.aggregator is not None
    return strategy.aggregator.identities


def test_auto_takes_the_best_there_is() -> None:
    assert identities(trainers([2, 10])) == ["client-id:2", "client-id:10"]
    assert identities(trainers([2, 10], metrics={"partition-id": 4})) == ["partition-id:4"]  # both say they are 4
    assert identities(trainers([2, 10], metrics={})) == ["node:1002", "node:1010"]
    by_key = identities(trainers([2, 10], metrics={}), {1002: b"a", 1010: b"b"})
    assert all(name.startswith("key:") and len(name) == 36 for name in by_key)
    assert set(by_key) == set(identities(trainers([2, 10], 5000, metrics={}), {5002: b"a", 5010: b"b"}))


def test_an_identity_can_be_demanded() -> None:
    assert identities(trainers([2, 10], metrics={"site": 3.0, "client-id": 1}), identity="metric:site") == ["site:3"]
    assert identities(trainers([2, 10]), identity="node") == ["node:1002", "node:1010"]
    strategy = FedStale(**QUICK, identity="metric:site")
    nodes: dict[int, Node] = {1: Trainer(0, metrics={"site": 0}), 2: Trainer(1)}
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
    assert "does not report 'site'" in strategy.left_out[0][1].reason


@pytest.mark.parametrize(
    ("metrics", "how", "warned"),
    [({}, "auto", 1), (None, "auto", 0), ({}, "node", 1), ({}, "key", 1)],
)
def test_an_unstable_identity_is_warned_of_once(
    metrics: Any, how: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        identities(trainers([0, 1, 2], metrics=metrics), {1000: b"x"}, identity=how)
    assert sum("SuperNode authentication" in line.getMessage() for line in caplog.records) == warned


def test_a_registered_node_with_a_name_is_trusted_to_keep_its_key(caplog: pytest.LogCaptureFixture) -> None:
    identity = Identity("key")
    identity.register_nodes([NodeInfo(node_id=7, public_key=b"k", name="hospital")])
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert (identity.identify(7, RecordDict()) or "").startswith("key:")
    assert not caplog.records


def test_after_a_restart_with_new_node_ids_the_rows_are_found_again() -> None:
    strategy = FedStale(**QUICK)
    grid = MemoryGrid(trainers([0, 1, 2], 1000))
    strategy.start(grid, record(first_model()), num_rounds=2)
    grid.nodes = trainers([0, 1, 2], 9000)
    grid.online = set(grid.nodes)
    strategy.start(grid, record(first_model()), num_rounds=2)
    assert strategy.aggregator is not None
    assert len(strategy.aggregator.identities) == 3
    assert strategy.aggregator.state.last_seen.tolist() == [3, 3, 3]


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
