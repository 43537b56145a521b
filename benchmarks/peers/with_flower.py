"""Flower's simulation: ServerApp with its FedAvg, ClientApp on Ray, in one Python session (`run_simulation`).

The option is the number of cores of an actor: "1" gives two actors with one thread each on two cores, "2" one actor
with two threads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import CHOSEN, FOLDER, THREADS, client_app
from benchmarks.peers.work import WORKS, Clock, Shards


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clock = Clock("flwr", "ray")
    work, shards, rounds = clock.work, Shards(clock.folder), clock.rounds
    cores = clock.option or "1"
    chosen = next(name for name, one in WORKS.items() if one is work)
    os.environ.update({CHOSEN: chosen, FOLDER: str(clock.folder.resolve()), THREADS: cores})
    model = shards.model(work)
    server_app = ServerApp()

    def ended(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Flower calls this before the first round and after each."""
        if server_round == 0:
            return None
        if clock.due:
            model.load_state_dict(arrays.to_torch_state_dict())
            clock.accuracy = shards.accuracy(model)
        clock.round()
        return None

    class Counting(FedAvg):
        """FedAvg that adds up the samples of which the replies tell."""

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            """Count, then average."""
            answers = list(replies)
            for answer in answers:
                if answer.has_error():
                    raise RuntimeError(f"a client failed: {answer.error.reason}")
                clock.samples += int(answer.content.metric_records["metrics"]["num-examples"])  # type: ignore[arg-type]
            return super().aggregate_train(server_round, answers)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Counting(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
        )
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=ended)

    backend: Any = {
        "client_resources": {"num_cpus": int(cores), "num_gpus": 0.0},
        "init_args": {"num_cpus": os.cpu_count() or 1, "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=work.clients, backend_config=backend)
    if len(clock.seconds) + 1 != rounds:
        raise RuntimeError(f"Flower ended after {len(clock.seconds) + 1} of {rounds} rounds")
    clock.report()


if __name__ == "__main__":
    main()
