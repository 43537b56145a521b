"""A server's checkpoint: the library's `State`, with what only Flower needs in its notes and arrays.

Those are the names and dtypes of the model's arrays, the arrays beside the vector, identities, and the facts about
the strategy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from ..checks import InvalidInput
from ..state import State
from .aggregator import Aggregator
from .layout import Layout, decode

_FACTS = "flower"
"""The note of a checkpoint that holds the facts about the strategy, as JSON."""
_BUFFER, _RETURNED = "buffer/", "returned/"
"""Before the names of its arrays."""
_CLIENT_BUFFER, _HAVING = "client-buffer/", "client-buffer-of/"
_SENT = "sent/"
"""Before the index of a round whose messages are not all answered: the model that was sent in it."""
_LAST_HEARD = "last_heard"
_LENGTHS = {"update_lengths": "updates", "buffer_lengths": "statistics", "counter_lengths": "counters"}
"""Names of arrays, and what they hold of the `Lengths` that are usual."""


def holds_checkpoint(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / "state.safetensors").exists()


def save(
    aggregator: Aggregator,
    folder: Path,
    strategy: Mapping[str, Any],
    pending_log: Mapping[str, Any],
    returned: ArrayRecord | None = None,
    sent_models: Mapping[int, NDArray[Any]] | None = None,
) -> None:
    """Write a checkpoint (see `State.save`), with facts about the strategy and about the last round.

    `returned` is the model that the round gave, where a strategy built on this one has changed it since: a loop
    that goes through the round again changes it again. `sent_models` are those of rounds that some still work on.
    """
    aggregator.returned = returned
    state, layout = aggregator.state, aggregator.layout
    facts = {
        "strategy": strategy,
        "layout": layout.describe(),
        "identities": aggregator.identities,
        "pending_log": pending_log,
        "by_sample": aggregator.by_sample,
    }
    state.notes[_FACTS] = json.dumps(facts, sort_keys=True)
    state.arrays = {_BUFFER + name: array for name, array in aggregator.buffers.items()}
    state.arrays[_LAST_HEARD] = aggregator.members.last_heard
    for name, kind in _LENGTHS.items():
        last: dict[int, float] = getattr(aggregator.lengths, kind).last
        state.arrays[name] = np.array(sorted(last.items()), dtype=np.float64).reshape(-1, 2)
    sent = aggregator.client_buffers
    for slot in layout.buffers:
        having = [client for client in sorted(sent) if slot.name in sent[client]]
        if having:
            state.arrays[_CLIENT_BUFFER + slot.name] = np.stack([sent[client][slot.name] for client in having])
            state.arrays[_HAVING + slot.name] = np.array(having, dtype=np.int64)
    state.arrays |= {f"{_SENT}{round}": model for round, model in (sent_models or {}).items()}
    if returned is not None:
        state.arrays |= {_RETURNED + slot.name: decode(returned[slot.name]) for slot in layout.slots}
    state.save(folder)


def sent_models(aggregator: Aggregator) -> dict[int, NDArray[Any]]:
    """Return the models of rounds that some still worked on when the checkpoint was written, by the round's index."""
    saved = aggregator.state.arrays
    return {int(name.removeprefix(_SENT)): saved[name] for name in saved if name.startswith(_SENT)}


def load(folder: Path) -> tuple[Aggregator, dict[str, Any], dict[str, Any]]:
    """Read a checkpoint back, with the facts about the strategy and about the last round."""
    state = State.load(folder)
    if _FACTS not in state.notes or state.model is None:
        state.close()
        raise InvalidInput(f"checkpoint {folder} is not of a Flower strategy")
    facts = json.loads(state.notes[_FACTS])
    layout = Layout.from_description(facts["layout"])
    saved = state.arrays
    buffers = {s.name: saved[_BUFFER + s.name].reshape(s.shape) for s in layout.buffers}
    aggregator = Aggregator(state, layout, buffers, facts["identities"], by_sample=facts["by_sample"])
    aggregator.members.last_heard = saved[_LAST_HEARD]
    for name, kind in _LENGTHS.items():
        lengths = saved[name].reshape(-1, 2) if name in saved else ()  # an earlier version did not count counters
        getattr(aggregator.lengths, kind).last = {int(client): float(length) for client, length in lengths}
    for slot in layout.buffers:
        for k, client in enumerate(saved.get(_HAVING + slot.name, ())):
            buffer = saved[_CLIENT_BUFFER + slot.name][k].reshape(slot.shape)
            aggregator.client_buffers.setdefault(int(client), {})[slot.name] = buffer
    if all(_RETURNED + s.name in saved for s in layout.slots):
        returned = {s.name: saved[_RETURNED + s.name].reshape(s.shape) for s in layout.slots}
        aggregator.returned = ArrayRecord({name: Array(array) for name, array in returned.items()})
    return aggregator, facts["strategy"], facts["pending_log"]
