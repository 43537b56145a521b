"""What `memory_mod` does behind Flower's `secaggplus_mod`: an app of messages answers a legacy instruction to fit.

The SecAgg+ that Flower has is of its older kind of apps. Here its instruction becomes the message that the app knows,
and the answer becomes the legacy result whose vectors Flower's mod masks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..memory.client_row import Answer, Order
from .held_wire import KEY
from .identity import reported
from .layout import decode
from .secure_wire import SecureScale

_INS, _RES = "fitins", "fitres"
_Contribute = Callable[..., tuple[Answer, np.dtype[Any], RecordDict]]


def instruction(
    order: Order,
    scale: SecureScale,
    *,
    size_key: str,
    federation: str,
    names: list[str],
    arrays_key: str,
    config_key: str,
) -> str:
    """Write what a client must know beside the model, as one text."""
    keys = {"size_key": size_key, "federation": federation, "arrays_key": arrays_key, "config_key": config_key}
    return json.dumps({"order": asdict(order), "scale": asdict(scale), "names": names, **keys})


def asked(content: RecordDict) -> bool:
    """Whether a message is such an instruction."""
    return KEY in content.get(f"{_INS}.config", {})


def reply(message: Message, context: Context, call_next: ClientAppCallable, contribute: _Contribute) -> Message:
    """Let the app train, and return what is to be masked."""
    config = dict(message.content.config_records[f"{_INS}.config"])
    told = json.loads(str(config.pop(KEY)))
    order, scale = Order(**told["order"]), SecureScale(**told["scale"])
    parameters = message.content.array_records[f"{_INS}.parameters"]
    named = zip(told["names"], parameters.values(), strict=True)
    sent = ArrayRecord({name: Array(decode(array)) for name, array in named})
    message.content = RecordDict({told["arrays_key"]: sent, told["config_key"]: ConfigRecord(config)})
    answered = call_next(message, context)
    if answered.has_error():
        return answered
    found, _, other = contribute(
        context, answered.content, sent, order, told["size_key"], told["federation"], scale.grid
    )
    vectors = [found.step / scale.unit, found.change / scale.unit, scale.digits(found.statistics)]
    about = {
        "round": order.round,
        "mass": found.mass,
        "remembered": found.remembered,
        "clipped": int(sum(np.sum(np.abs(vector) >= scale.clipping_range) for vector in vectors)),
        "identity": reported(context),
        "metrics": {key: dict(record) for key, record in other.items() if isinstance(record, MetricRecord)},
    }
    content = RecordDict(
        {
            f"{_RES}.parameters": ArrayRecord({str(k): Array(vector) for k, vector in enumerate(vectors)}),
            f"{_RES}.num_examples": MetricRecord({"num_examples": scale.weight}),
            f"{_RES}.metrics": ConfigRecord({KEY: json.dumps(about)}),
            f"{_RES}.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
    return Message(content, reply_to=message)
