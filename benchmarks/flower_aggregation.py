"""Aggregation of 24 replies of the paper's CNN (421,642 parameters): our strategies beside Flower's own FedAvg.

Both get the same Flower messages with the same serialised arrays; what is timed is `aggregate_train`, from
replies to the next model. Interleaved in one run; medians. Target: at most twice FedAvg.

    python benchmarks/flower_aggregation.py [--repetitions 31]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.timing import line
from fedstale.flower import FedStale, UnbiasedFedAvg, UnbiasedFedVARP

BASE = "Flower's FedAvg"

SHAPES = {
    "conv1.weight": (32, 1, 3, 3),
    "conv1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3),
    "conv2.bias": (64,),
    "fc1.weight": (128, 3136),
    "fc1.bias": (128,),
    "fc2.weight": (10, 128),
    "fc2.bias": (10,),
}


class Nodes:
    """A grid that knows its nodes and nothing else."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        """What FedAvg asks."""
        return list(range(1, self.count + 1))

    def get_nodes(self) -> list[NodeInfo]:
        """What ours ask."""
        return [NodeInfo(node_id=i) for i in self.get_node_ids()]


def model(seed: int) -> ArrayRecord:
    chance = np.random.default_rng(seed)
    return ArrayRecord({name: Array(chance.standard_normal(s, dtype=np.float32)) for name, s in SHAPES.items()})


class Server:
    """A strategy that is handed the same replies in every round."""

    def __init__(self, strategy: FedAvg, grid: Nodes, start: ArrayRecord, contents: list[RecordDict]) -> None:
        self.strategy, self.grid, self.arrays, self.contents = strategy, grid, start, contents
        self.round = 0
        self.replies: list[Message] = []

    def prepare(self) -> None:
        """Send the round's messages and have them answered: not timed."""
        self.round += 1
        sent = self.strategy.configure_train(self.round, self.arrays, ConfigRecord(), self.grid)  # type: ignore[arg-type]
        messages = sorted(sent, key=lambda message: message.metadata.dst_node_id)
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{self.round}-{message.metadata.dst_node_id}"
        self.replies = [Message(c, reply_to=m) for c, m in zip(self.contents, messages, strict=True)]

    def aggregate(self) -> None:
        """From the replies to the next model: timed."""
        arrays, _ = self.strategy.aggregate_train(self.round, self.replies)
        assert arrays is not None
        self.arrays = arrays


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replies", type=int, default=24)
    parser.add_argument("--repetitions", type=int, default=31)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    grid, start = Nodes(arguments.replies), model(0)
    contents = [
        RecordDict({"arrays": model(i), "metrics": MetricRecord({"num-examples": 500, "client-id": i, "loss": 1.0})})
        for i in range(1, arguments.replies + 1)
    ]
    strategies: dict[str, FedAvg] = {
        BASE: FedAvg(),
        "UnbiasedFedAvg": UnbiasedFedAvg(),
        "UnbiasedFedVARP": UnbiasedFedVARP(),
        "FedStale, beta auto": FedStale(),
        "FedStale, beta auto, memory in bfloat16": FedStale(memory="ram:bfloat16"),
    }
    servers = {name: Server(strategy, grid, start, contents) for name, strategy in strategies.items()}
    wall: dict[str, list[float]] = {name: [] for name in servers}
    busy: dict[str, list[float]] = {name: [] for name in servers}
    for repetition in range(arguments.repetitions + 3):
        for name, server in servers.items():
            server.prepare()
            before, worked = time.perf_counter(), time.process_time()
            server.aggregate()
            if repetition >= 3:  # the first rounds touch memory for the first time
                wall[name].append(time.perf_counter() - before)
                busy[name].append(time.process_time() - worked)
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    print(f"{arguments.replies} replies of {size:,} parameters; {arguments.repetitions} interleaved repetitions")
    for what, seconds in (("wall-clock time", wall), ("processor time", busy)):
        print(f"{what}: median [quartiles], ratio to FedAvg")
        for name, values in seconds.items():
            print("  " + line(name, values, median(seconds[BASE])))
    ratio = median(wall["FedStale, beta auto"]) / median(wall[BASE])
    print(f"bar: FedStale at most 2x Flower's FedAvg: {ratio:.2f}x, {'held' if ratio <= 2 else 'MISSED'}")
    return int(ratio > 2)


if __name__ == "__main__":
    sys.exit(main())
