"""A client: trains when it takes part, and fails when it does not, as a device that is away."""

from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedstale.flower import identity_mod
from fedstale_baseline.task import partition, takes_part, train

app = ClientApp(mods=[identity_mod])


@app.train()
def train_locally(msg: Message, context: Context) -> Message:
    """Run local SGD on the client's own digits."""
    client, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    config: dict[str, Any] = dict(msg.content.config_records["config"])
    if not takes_part(client, clients, config["p-min"], config["seed"], config["server-round"]):
        raise RuntimeError("this client does not take part in this round")
    data = partition(client, clients, config["swap"])
    model = train(
        msg.content.array_records["arrays"].to_numpy_ndarrays(),
        data,
        steps=int(context.run_config["local-steps"]),
        batch_size=int(context.run_config["batch-size"]),
        lr=float(context.run_config["learning-rate"]),
        seed=(config["seed"], config["server-round"], client, 1),
    )
    content = RecordDict({"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": len(data[1])})})
    return Message(content, reply_to=msg)
