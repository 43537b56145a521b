"""Several Flower nodes in one process, for the load test: `python -m tests.faults.load_nodes ADDRESS FOLDER CLIENT…`.

Each node is a connection of its own through Flower's SuperNode code (`fleet_http_connection`): it registers with a
key of its own, sends heartbeats, pulls messages and pushes replies over HTTP. What a SuperNode does beside that,
starting a process per message, is left out: the ClientApp is a function in the node's thread.

SIGTERM lets the nodes leave in order; SIGKILL is for the test to send.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import flwr.supercore.heartbeat as heartbeat
import flwr.supernode.fleet_http_connection as connection
import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects

HEARTBEAT = 10  # the shortest that Flower allows: a killed node is noticed after twice that
POLL = 2.0
BROKEN = 0.02
"""How often a node fails, and how often it answers with NaN."""


def answer(client: int, message: Message) -> Message:
    """Move the model towards the client's own optimum; sometimes fail, sometimes answer with NaN."""
    server_round = int(message.metadata.group_id)
    chance = np.random.default_rng([client, server_round]).random()
    if chance < BROKEN:
        return Message(Error(2, "the device ran out of memory"), reply_to=message)
    model = {}
    for name, array in message.content.array_records["arrays"].items():
        values = array.numpy()
        values *= np.float32(0.9)
        values += np.float32(0.1 * client)
        if chance > 1 - BROKEN:
            values[0] = np.nan
        model[name] = Array(values)
    metrics = MetricRecord({"client-id": client, "num-examples": 1 + client})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


def serve(client: int, address: str, stop: threading.Event, log: Path) -> None:
    """One node: connect, and answer messages one at a time until told to leave."""
    link = connection.http_request_response(address, insecure=True)
    with link as (node, receive, send, _, _, pull, push, confirm), log.open("a") as file:
        while not stop.is_set():
            got = receive()
            if got is None:
                stop.wait(POLL)
                continue
            began = time.monotonic()
            stub, tree = got
            run, name = stub.metadata.run_id, stub.metadata.message_id
            contents = pull_objects([one.object_id for one in iterate_object_tree(tree)], partial(pull, run))
            confirm(run, name)
            message = inflate_object_from_contents(name, contents)
            assert isinstance(message, Message)
            message.metadata.__dict__["_message_id"] = name
            reply = answer(client, message)
            del contents, message
            reply.metadata.__dict__["_message_id"] = reply.object_id
            with no_object_id_recompute():
                wanted, session = send(reply, get_object_tree(reply), time.monotonic() - began)
                parts = get_all_nested_objects(reply)
                push_objects(parts, partial(push, run, session), object_ids_to_push=wanted)
            group = int(stub.metadata.group_id)
            file.write(json.dumps({"node": node, "client": client, "round": group}) + "\n")
            file.flush()


def main() -> None:
    """Host the nodes of some clients."""
    address, folder, *clients = sys.argv[1:]
    connection.HEARTBEAT_DEFAULT_INTERVAL = heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT  # type: ignore[attr-defined]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [
        threading.Thread(target=serve, args=(int(one), address, stop, Path(folder) / f"answered-{one}.jsonl"))
        for one in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
