"""A device: nothing here knows about fedstale."""

from typing import cast

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_quickstart.task import Net, evaluate, load_partition, train

app = ClientApp()


@app.train()
def train_locally(msg: Message, context: Context) -> Message:
    """Train the received model on the device's own digits and send it back."""
    partition = int(context.node_config["partition-id"])
    data = load_partition(partition, int(context.node_config["num-partitions"]))
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    server_round = cast(int, msg.content.config_records["config"]["server-round"])
    loss = train(
        model,
        data,
        epochs=int(context.run_config["local-epochs"]),
        batch_size=int(context.run_config["batch-size"]),
        lr=float(context.run_config["learning-rate"]),
        seed=1000 * server_round + partition,
    )
    # The client-id lets the server find this device's last update again after a restart.
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(data[1]), "client-id": partition})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate_locally(msg: Message, context: Context) -> Message:
    """Test the received model on the device's own digits."""
    data = load_partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    loss, accuracy = evaluate(model, data)
    metrics = MetricRecord({"eval-loss": loss, "eval-accuracy": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
