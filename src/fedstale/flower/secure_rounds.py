"""A round of training through Flower's SecAgg+: the server learns the sums of the answers, and no answer.

Flower's workflow is of its older kind of apps. It is given what it needs of such an app, and runs as it is.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import FitIns, parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from ..checks import Float, printable
from ..memory.client_row import Order
from ..tensor_file import NONSENSE
from .held_wire import KEY, SUMS
from .secure_client import instruction
from .secure_wire import SecureScale

_logger = getLogger("flwr")


@dataclass(frozen=True)
class SecureSums:
    """What came out of the protocol: whose answers are in the sums, what each says in the clear, and the sums."""

    contents: dict[int, RecordDict]
    """By node."""
    step: Float
    change: Float
    statistics: Float
    clipped: int
    """How many numbers were too large for the clipping range."""


def secure_sums(
    workflow: Any,
    grid: Grid,
    messages: Sequence[Message],
    orders: Mapping[int, Order],
    *,
    server_round: int,
    by_sample: bool,
    size_key: str,
    federation: str,
    arrays_key: str,
    config_key: str,
    timeout: float | None,
    length: int,
) -> SecureSums | None:
    """Run the protocol with the nodes of these messages; None where it did not come to an end."""
    scale = SecureScale.of(workflow, by_sample=by_sample)
    first = messages[0].content
    arrays = first.array_records[arrays_key]
    told = {"federation": federation, "arrays_key": arrays_key, "config_key": config_key}
    texts = {
        node: instruction(order, scale, size_key=size_key if by_sample else "", names=list(arrays), **told)
        for node, order in orders.items()
    }
    bridge = _Bridge(texts, dict(first.config_records[config_key]))
    state = RecordDict(
        {
            MAIN_PARAMS_RECORD: arrays,
            MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: server_round}),
        }
    )
    context = Context(run_id=0, node_id=0, node_config={}, state=state, run_config={})
    run = copy.copy(workflow)
    run.timeout = workflow.timeout if workflow.timeout is not None else timeout
    legacy = LegacyContext(context=context, strategy=bridge, client_manager=bridge)  # type: ignore[arg-type]
    try:
        run(grid, legacy)
    except Exception as error:  # what clients send must not end the federation
        _logger.log(WARNING, "round %d: secure aggregation failed: %s", server_round, printable(repr(error), 300))
        return None
    if not bridge.results:
        return None
    count = len(bridge.results)
    sums = [count * vector for vector in parameters_to_ndarrays(bridge.results[0][1].parameters)]
    if [vector.shape for vector in sums] != [(length,), (length,), scale.digits(np.zeros(2)).shape]:
        return None
    said = {proxy.node_id: _said(result.metrics) for proxy, result in bridge.results}
    contents = {node: content for node, (content, _) in said.items()}
    step, change = sums[0] * scale.unit, sums[1] * scale.unit
    clipped = sum(count for _, count in said.values())
    return SecureSums(contents, step, change, scale.statistics(sums[2]), clipped)


def _said(metrics: Mapping[str, Any]) -> tuple[RecordDict, int]:
    """What a client said in the clear, as the content of a reply, and how many of its numbers were clipped."""
    try:
        about = json.loads(str(metrics[KEY]))
        return _content(about), int(about["clipped"])
    except NONSENSE:
        return RecordDict({SUMS: ArrayRecord()}), 0


def _content(about: Mapping[str, Any]) -> RecordDict:
    content = RecordDict({key: MetricRecord(record) for key, record in about["metrics"].items()})
    content[SUMS] = ArrayRecord()
    numbers = {"round": about["round"], "mass": about["mass"], "remembered": about["remembered"]}
    content[KEY] = ConfigRecord({**numbers, "statistics": [0.0, 0.0]})
    if about["identity"] is not None:
        name, value = about["identity"]
        content["identity"] = ConfigRecord({name: value})
    return content


@dataclass(frozen=True)
class _Proxy:
    node_id: int


class _Bridge:
    """What the workflow wants of a strategy and of a client manager."""

    def __init__(self, texts: Mapping[int, str], config: dict[str, Any]) -> None:
        self._texts = texts
        self._config = config
        self.results: list[tuple[Any, Any]] = []

    def num_available(self) -> int:
        """How many nodes are asked."""
        return len(self._texts)

    def configure_fit(self, _round: int, parameters: Any, _manager: Any) -> list[tuple[_Proxy, FitIns]]:
        """Everybody who is asked, each with an order of its own."""
        return [(_Proxy(node), FitIns(parameters, {**self._config, KEY: text})) for node, text in self._texts.items()]

    def aggregate_fit(self, _round: int, results: Any, _failures: Any) -> tuple[None, dict[str, Any]]:
        """Keep what came out; the sums are in every result."""
        self.results = list(results)
        return None, {}
