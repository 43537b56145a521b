"""What Flower's clients do: a ClientApp in a module of its own, because Ray's actors import it.

Actors keep the shards they have mapped and their model between messages, as a careful user does.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.peers.work import WORKS, Shards, Work, local_sgd

CHOSEN, FOLDER, THREADS = "PEERS_WORK", "PEERS_FOLDER", "PEERS_THREADS"
"""What the actors are told, in environment variables that Ray hands on."""


@lru_cache(maxsize=1)
def kept(chosen: str, folder: str, threads: str) -> tuple[Work, Shards, nn.Sequential]:
    """What an actor keeps between messages."""
    torch.set_num_threads(int(threads))
    work, shards = WORKS[chosen], Shards(Path(folder))
    return work, shards, shards.model(work)


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the node's client from the model in the message."""
    work, shards, model = kept(*(os.environ[name] for name in (CHOSEN, FOLDER, THREADS)))
    record = message.content["arrays"]
    assert isinstance(record, ArrayRecord)
    model.load_state_dict(record.to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    count = local_sgd(model, *shards.client(client), work)
    answer: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": count}),
    }
    return Message(RecordDict(answer), reply_to=message)
