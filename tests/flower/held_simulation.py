"""Flower's simulation engine with a memory that the clients hold; runs as a program inside a namespace of its own.

`python -m tests.flower.held_simulation FOLDER` writes FOLDER/report.json: the model and the metrics of the same
federation through plain messages and through SecAgg+. Six nodes on Ray, of which node 5 fails in every second round.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedstale.flower import FedStale, memory_mod

NODES, ROUNDS, LENGTH = 6, 4, 50


def train(message: Message, context: Context) -> Message:
    """Move the model towards the node's own optimum, with noise that depends on the node and the round only."""
    partition = int(context.node_config["partition-id"])
    server_round = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    if partition == NODES - 1 and server_round % 2 == 0:
        raise RuntimeError("this device is away")
    model = message.content.array_records["arrays"]["w"].numpy()
    noise = np.random.default_rng([partition, server_round]).normal(size=model.shape)
    model = (model - 0.1 * (model - partition) + 0.05 * noise).astype(np.float32)
    metrics = MetricRecord({"num-examples": 100 * (partition + 1)})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(model)}), "metrics": metrics})
    return Message(content, reply_to=message)


def run(secure: bool) -> dict[str, Any]:
    """Run one federation; return what it came to."""
    client = ClientApp(mods=[secaggplus_mod, memory_mod] if secure else [memory_mod])
    client.train()(train)
    found: dict[str, Any] = {}

    def main(grid: Grid, context: Context) -> None:
        strategy = FedStale(
            memory="clients",
            secure_aggregation=SecAggPlusWorkflow(NODES, 3, clipping_range=4.0) if secure else None,
            identity="metric:partition-id",
            fraction_evaluate=0.0,
            min_available_nodes=NODES,
            num_clients=NODES,
        )
        first = ArrayRecord({"w": Array(np.zeros(LENGTH, dtype=np.float32))})
        result = strategy.start(grid, first, num_rounds=ROUNDS)
        found["model"] = result.arrays["w"].numpy().tolist()
        found["rounds"] = [dict(result.train_metrics_clientapp[t + 1]) for t in range(ROUNDS)]

    server = ServerApp()
    server.main()(main)
    run_simulation(server, client, NODES, backend_config={"client_resources": {"num_cpus": 1}})
    return found


if __name__ == "__main__":
    report = {"plain": run(secure=False), "masked": run(secure=True)}
    Path(sys.argv[1], "report.json").write_text(json.dumps(report))
