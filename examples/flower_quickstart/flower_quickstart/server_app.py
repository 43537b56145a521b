"""The server: as for Flower's FedAvg, with another strategy."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from fedstale.flower import TemperedFedStale  # instead of: from flwr.serverapp.strategy import FedAvg
from flower_quickstart.task import Net, evaluate, load_test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the digits model on whoever shows up."""
    config = context.run_config
    output = Path(str(config["output"])) if config["output"] else None

    strategy = TemperedFedStale(
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_train_nodes=1,
        min_available_nodes=int(config["min-nodes"]),
        identity="metric:client-id",  # client_app.py reports it: a device that restarts is found again
        checkpoint=output / "checkpoint" if output else None,
        resume="auto" if output else "never",
        store=output / "runs" if output else None,
    )

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net(seed=0).state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=global_evaluate,
    )
    if output:
        save_file(result.arrays.to_torch_state_dict(), output / "model.safetensors")


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model on digits that no device has."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = evaluate(model, load_test())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
