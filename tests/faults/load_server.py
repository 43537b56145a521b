"""The ServerApp of the load test: FedStale on a model of zeros, one line of JSON after every round."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedstale.flower import FedStale

LAYERS = 5
app = ServerApp()


def resident(pid: int | str = "self") -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def model(parameters: int) -> ArrayRecord:
    """A model of zeros in a few layers."""
    each = parameters // LAYERS
    return ArrayRecord({f"layer{i}": Array(np.zeros(each, "f4")) for i in range(LAYERS)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; what each did goes to OUTPUT/rounds.jsonl."""
    config = context.run_config
    output = Path(str(config["output"]))
    strategy = FedStale(
        selection=int(config["ask"]),
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=int(config["nodes"]),
        max_wait=0.0,
        store=output / "runs",
        checkpoint=output / "checkpoint" if config["checkpoint"] else None,
    )
    began = time.monotonic()

    def after(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal began
        line = {"round": server_round, "seconds": time.monotonic() - began, "rss": resident()}
        if strategy.account is not None:
            line |= strategy.account.as_dict()
        with (output / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        while config["pause"] and Path(str(config["pause"])).exists():
            time.sleep(5)
        began = time.monotonic()
        return MetricRecord({"rss": float(line["rss"])})

    rounds, timeout = int(config["rounds"]), float(config["timeout"])
    strategy.start(grid, model(int(config["parameters"])), num_rounds=rounds, timeout=timeout, evaluate_fn=after)
    (output / "model.safetensors").touch()  # `Machine.finish` looks for it
