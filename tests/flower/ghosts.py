"""The ghost experiment: a rare device that gets a new node id each time it comes on.

Four clients with the optima 0, 0, 0 and 10: the federation's is 2.5. The last one is there in a fifth of the rounds.
`python -m tests.flower.ghosts` prints the table of docs/flower.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedstale.flower import FedStale, TemperedFedStale

from .grid import MemoryGrid, arrays, record

OPTIMA = (0.0, 0.0, 0.0, 10.0)
ROUNDS, LR, P = 300, 0.1, 0.2


def device(client: int, reports: bool) -> Callable[[Message], Message]:
    """A client that goes a tenth of the way to its optimum."""

    def answer(message: Message) -> Message:
        model = arrays(message.content.array_records["arrays"])
        moved = {name: (a - LR * (a - OPTIMA[client])).astype(a.dtype) for name, a in model.items()}
        metrics: dict[str, Any] = {"num-examples": 1, **({"client-id": client} if reports else {})}
        return Message(RecordDict({"arrays": record(moved), "metrics": MetricRecord(metrics)}), reply_to=message)

    return answer


class Restarting(MemoryGrid):
    """The rare device has a new node id each time it is there."""

    def __init__(self, seed: int, *, reports: bool) -> None:
        super().__init__({i: device(i, reports) for i in range(3)})
        self.chance, self.reports, self.next_id = np.random.default_rng(seed), reports, 100

    def begin_round(self) -> None:
        self.online = {0, 1, 2}
        if self.chance.random() < P:
            self.next_id += 1
            self.nodes[self.next_id] = device(3, self.reports)
            self.online.add(self.next_id)


def run(strategy: Any, grid: Restarting, rounds: int = ROUNDS) -> float:
    """Return the mean of the model over the last half of the rounds."""
    model = record({"w": np.zeros(1)})
    path = []
    for t in range(1, rounds + 1):
        grid.begin_round()
        replies = grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        new, _ = strategy.aggregate_train(t, replies)
        model = model if new is None else new
        path.append(float(arrays(model)["w"][0]))
    return float(np.mean(path[rounds // 2 :]))


QUICK: Any = {"max_wait": 0.0, "min_available_nodes": 1, "min_train_nodes": 1, "fraction_evaluate": 0.0}


def table(seeds: tuple[int, ...] = (0, 1, 2)) -> dict[str, tuple[list[float], list[int]]]:
    """Return, for each way, the model of each seed, and how many clients are known in the end."""
    ways: dict[str, tuple[Callable[[], Any], bool]] = {
        "FedAvg": (
            lambda: FedAvg(min_available_nodes=1, min_train_nodes=1, fraction_evaluate=0.0),
            False,
        ),
        "FedStale, no identity, never forgets": (lambda: FedStale(**QUICK, forget_after=None), False),
        "FedStale, no identity": (lambda: FedStale(**QUICK), False),
        "FedStale, reported client-id": (lambda: FedStale(**QUICK), True),
        "TemperedFedStale, reported client-id": (lambda: TemperedFedStale(**QUICK), True),
    }
    found: dict[str, tuple[list[float], list[int]]] = {}
    for name, (make, reports) in ways.items():
        values, known = [], []
        for seed in seeds:
            strategy = make()
            values.append(run(strategy, Restarting(seed, reports=reports)))
            known.append(0 if name == "FedAvg" else len(strategy.aggregator.known))
        found[name] = values, known
    return found


if __name__ == "__main__":
    from flwr.supercore.task_identity import TaskIdentity

    logging.disable(logging.CRITICAL)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    print("| way | model (optimum 2.5), three seeds | clients known in the end |\n|---|---|---|")
    for way, (values, known) in table().items():
        count = " / ".join(map(str, known)) if any(known) else "–"
        print(f"| {way} | {' / '.join(f'{value:.2f}' for value in values)} | {count} |")
