"""The ghost experiment: rare devices that get a new node id each time they come on.

Four clients with the optima 0, 0, 0 and 10: the federation's is 2.5. The last one is there in a fifth of the rounds.
Or ten clients, of which six are so: four optima are 0, the others 2, 4, 6, 8, 10 and 20, and the federation's is 5.
`python -m tests.flower.ghosts` prints the table of docs/flower.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedstale.flower import FedStale, TemperedFedStale

from .grid import MemoryGrid, arrays, record

ONE, SIX = (10.0,), (2.0, 4.0, 6.0, 8.0, 10.0, 20.0)
"""The optima of the devices that restart; those of the others are 0."""
ALWAYS = {ONE: 3, SIX: 4}
"""How many others there are."""
ROUNDS, LR, P = 300, 0.1, 0.2


def device(client: int, optimum: float, reports: bool) -> Callable[[Message], Message]:
    """A client that goes a tenth of the way to its optimum."""

    def answer(message: Message) -> Message:
        model = arrays(message.content.array_records["arrays"])
        moved = {name: (a - LR * (a - optimum)).astype(a.dtype) for name, a in model.items()}
        metrics: dict[str, Any] = {"num-examples": 1, **({"client-id": client} if reports else {})}
        return Message(RecordDict({"arrays": record(moved), "metrics": MetricRecord(metrics)}), reply_to=message)

    return answer


class Restarting(MemoryGrid):
    """The rare devices have a new node id each time they are there."""

    def __init__(self, seed: int, *, reports: bool, rare: tuple[float, ...] = ONE) -> None:
        super().__init__({i: device(i, 0.0, reports) for i in range(ALWAYS[rare])})
        self.chance, self.reports, self.rare, self.next_id = np.random.default_rng(seed), reports, rare, 100
        self.always = set(self.nodes)

    def begin_round(self) -> None:
        self.online = set(self.always)
        for client, optimum in enumerate(self.rare, len(self.always)):
            if self.chance.random() < P:
                self.next_id += 1
                self.nodes[self.next_id] = device(client, optimum, self.reports)
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


def table(rare: tuple[float, ...], seeds: tuple[int, ...] = (0, 1, 2)) -> dict[str, tuple[list[float], list[int]]]:
    """Return, for each way, the model of each seed, and how many clients are known in the end."""
    ways: dict[str, tuple[Callable[[], Any], bool]] = {
        "FedAvg": (
            lambda: FedAvg(min_available_nodes=1, min_train_nodes=1, fraction_evaluate=0.0),
            False,
        ),
    }
    for kind in (TemperedFedStale, FedStale):
        ways |= {
            f"{kind.__name__}, no identity, never forgets": (partial(kind, **QUICK, forget_after=None), False),
            f"{kind.__name__}, no identity": (partial(kind, **QUICK), False),
            f"{kind.__name__}, reported client-id": (partial(kind, **QUICK), True),
        }
    found: dict[str, tuple[list[float], list[int]]] = {}
    for name, (make, reports) in ways.items():
        values, known = [], []
        for seed in seeds:
            strategy = make()
            values.append(run(strategy, Restarting(seed, reports=reports, rare=rare)))
            known.append(0 if name == "FedAvg" else len(strategy.aggregator.known))
        found[name] = values, known
    return found


if __name__ == "__main__":
    from flwr.supercore.task_identity import TaskIdentity

    logging.disable(logging.CRITICAL)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    print("| way | one restarts (optimum 2.5) | clients known | six restart (optimum 5) | clients known |")
    print("|---|---|---|---|---|")
    one, six = table(ONE), table(SIX)
    for way in one:
        cells = []
        for values, known in (one[way], six[way]):
            cells += [" / ".join(f"{value:.2f}" for value in values)]
            cells += [" / ".join(map(str, known)) if any(known) else "–"]
        print(f"| {way} | {' | '.join(cells)} |")
