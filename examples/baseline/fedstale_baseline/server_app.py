"""The server: every β on every swap and seed, one federation after the other, then the table of accuracies."""

import csv
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedstale.analysis import Estimate
from fedstale.flower import FedStale
from fedstale_baseline.task import accuracy, first_model, is_rare

app = ServerApp()
LAST = 10
"""Rounds whose mean accuracy is reported."""
PATIENCE = 20.0
"""Seconds until all nodes must be there."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment."""
    config = context.run_config
    check_nodes(grid, int(config["num-clients"]))
    rows = []
    for swap in str(config["swaps"]).split():
        for beta in str(config["betas"]).split():
            for seed in str(config["seeds"]).split():
                found = run(grid, context, float(beta), float(swap), int(seed))
                rows.append({"swap": swap, "beta": beta, "seed": seed, "accuracy": f"{found:.4f}"})
    if config["output"]:
        with Path(str(config["output"])).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    for line in table(rows):
        print(line, flush=True)


def check_nodes(grid: Grid, wanted: int) -> None:
    """Refuse to begin where there are fewer nodes than clients: Flower's own default is two, and more never come."""
    began = time.monotonic()
    while (there := len(list(grid.get_node_ids()))) < wanted:
        if time.monotonic() - began > PATIENCE:
            raise RuntimeError(
                f"{there} nodes are connected, and num-clients is {wanted}. In a simulation, say how many there are: "
                f"flwr run . local --stream --federation-config 'num-supernodes={wanted} client-resources-num-cpus=1'"
            )
        time.sleep(0.5)


def run(grid: Grid, context: Context, beta: float, swap: float, seed: int) -> float:
    """Run one federation with known probabilities; return the mean accuracy of its last rounds."""
    config, clients = context.run_config, int(context.run_config["num-clients"])
    p_min = float(config["p-min"])
    strategy = FedStale(
        beta=beta,
        weights="client",
        probabilities={client: p_min if is_rare(client, clients) else 1.0 for client in range(clients)},
        identity="metric:partition-id",
        num_clients=clients,
        fraction_evaluate=0.0,
        min_available_nodes=clients,
        max_norm_ratio=None,
        halve_rows_every=None,
    )
    accuracies = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracies.append(accuracy(arrays.to_numpy_ndarrays(), swap))
        return MetricRecord({"accuracy": accuracies[-1]})

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(first_model()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({"p-min": p_min, "swap": swap, "seed": seed}),
        evaluate_fn=evaluate,
    )
    return float(np.mean(accuracies[-LAST:]))


def table(rows: list[dict[str, str]]) -> list[str]:
    """The mean accuracy in percent and its standard error over the seeds: a line for each swap, a column for each β."""
    betas, swaps = (list(dict.fromkeys(row[name] for row in rows)) for name in ("beta", "swap"))
    lines = ["| swap | " + " | ".join(f"β = {beta}" for beta in betas) + " |", "|---" * (len(betas) + 1) + "|"]
    for swap in swaps:
        cells = []
        for beta in betas:
            found = [100 * float(row["accuracy"]) for row in rows if (row["swap"], row["beta"]) == (swap, beta)]
            cells.append(f"{Estimate.of(found):.1f}")
        lines.append(f"| {swap} | " + " | ".join(cells) + " |")
    return lines
