"""The client's side of a memory that the clients hold: `ClientApp(mods=[memory_mod])`, and nothing else changes.

The app trains and returns its model as for FedAvg; what leaves the device are the two vectors that the server's sums
need. The row is kept in the node's state, or in a file where the node config names a `memory-folder`: Flower keeps a
node's state in the memory of its SuperNode, for one run, and hands all of it to the process of every message and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from ..checks import InvalidInput, fail
from ..memory.client_row import Answer, Order, Row, answer, counted
from ..tensor_file import NONSENSE, read_tensors, write_tensors
from . import secure_client
from .held_wire import KEY, WHO, answer_records, read_order
from .identity import report_identity, reported
from .layout import Layout, decode, read_arrays

_logger = getLogger("flwr")
_FOLDER = "memory-folder"
"""The key of the node config."""
_ROWS = "fedstale.rows"


def memory_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep this client's memory on the device, for a strategy with `memory="clients"`.

    It reports the node config's `client-id` or `partition-id`, as `identity_mod` does. For secure aggregation, put
    Flower's mod before it: `ClientApp(mods=[secaggplus_mod, memory_mod])`.
    """
    content = message.content if message.has_content() else RecordDict()
    if WHO in content.get(KEY, {}):
        return report_identity(Message(RecordDict(), reply_to=message), context)
    if secure_client.asked(content):
        return secure_client.reply(message, context, call_next, _contribute)
    if KEY not in content:
        return report_identity(call_next(message, context), context)
    order, size_key, federation = read_order(content.config_records[KEY])
    del content[KEY]
    sent = next(iter(content.array_records.values()))
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    found, dtype, other = _contribute(context, reply.content, sent, order, size_key, federation)
    other.update(answer_records(found, order, dtype))
    return report_identity(Message(other, reply_to=message), context)


def _contribute(
    context: Context,
    content: RecordDict,
    sent: Mapping[str, Array],
    order: Order,
    size_key: str,
    federation: str,
    grid: tuple[float, float] | None = None,
) -> tuple[Answer, np.dtype[Any], RecordDict]:
    """Turn an app's reply into an answer, and keep the new row; return the reply's other records, too."""
    update = _update(sent, next(iter(content.array_records.values())))
    mass = _size(content, size_key) if size_key else 1.0
    rows = _load(context, federation)
    row = counted([kept for kept in rows if kept.values.shape == update.shape], order)
    found, new = answer(order, row, update, mass, grid)
    _store(context, federation, [new] if row is None else [row, new])
    other = RecordDict({key: record for key, record in content.items() if not isinstance(record, ArrayRecord)})
    return found, update.dtype, other


def _update(sent: Mapping[str, Array], trained: Mapping[str, Array]) -> NDArray[Any]:
    """Δ = w_t − w_i, in the order of the model that was sent."""
    model = read_arrays(sent)
    layout = Layout.of(model, ())
    if layout.buffers:
        raise fail("model", layout.buffers[0].name, 'only floating-point arrays can be trained with memory="clients"')
    vector, _ = layout.split(model)
    return np.asarray(layout.difference(vector, trained))


def _size(content: RecordDict, key: str) -> float:
    for record in content.values():
        value = record.get(key) if isinstance(record, MetricRecord) else None
        if isinstance(value, (int, float)) and value > 0:
            return float(value)
    raise fail(key, None, "the reply's metrics must say how many examples the client has")


def _file(context: Context, federation: str) -> Path | None:
    """Where the row lies on disk; nodes on one machine may share a folder."""
    folder = context.node_config.get(_FOLDER)
    if folder is None:
        return None
    name = sha256(f"{federation} {reported(context)}".encode()).hexdigest()[:32]
    return Path(str(folder)) / f"{name}.row"


def _load(context: Context, federation: str) -> list[Row]:
    """Return the rows that are kept for this federation; what is damaged is lost."""
    file = _file(context, federation)
    if file is None:
        about = context.state.config_records.get(KEY, ConfigRecord())
        arrays = {name: decode(array) for name, array in context.state.array_records.get(_ROWS, ArrayRecord()).items()}
    else:
        try:
            arrays, facts = read_tensors(file) if file.exists() else ({}, {})
            about = ConfigRecord(facts)
        except (InvalidInput, OSError, *NONSENSE) as error:
            _logger.log(WARNING, "the memory of this client is lost: %s", error)
            return []
    if about.get("federation") != federation:
        return []
    masses, rounds = about["masses"], about["rounds"]
    assert isinstance(masses, list)  # noqa: S101 - as `_store` wrote them
    assert isinstance(rounds, list)  # noqa: S101
    return [Row(arrays[str(k)], float(masses[k]), int(rounds[k])) for k in range(len(masses))]


def _store(context: Context, federation: str, rows: list[Row]) -> None:
    about: dict[str, Any] = {
        "federation": federation,
        "masses": [row.mass for row in rows],
        "rounds": [row.round for row in rows],
    }
    file = _file(context, federation)
    if file is None:
        context.state[KEY] = ConfigRecord(about)
        context.state[_ROWS] = ArrayRecord({str(k): Array(row.values) for k, row in enumerate(rows)})
    else:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_tensors(file, {str(k): row.values for k, row in enumerate(rows)}, about)
