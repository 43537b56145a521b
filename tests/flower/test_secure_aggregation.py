"""Flower's SecAgg+ with memory="clients": the same model as without it, as far as its quantisation allows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message
from flwr.client.mod import secaggplus_mod
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.workflow import SecAggPlusWorkflow

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.flower import FedStale, RuleStrategy, TemperedFedStale, memory_mod
from fedstale.flower.secure_wire import SecureScale

from .grid import MemoryGrid, first_model, flat, record
from .test_held_memory import CLIENTS, OPTIONS, Device, devices, scalar

STEP = 2 * 8.0 / 2**22
"""Of Flower's default quantisation."""


class Masked(Device):
    """A device behind Flower's mod; whatever leaves it is noted."""

    def __init__(self, client: int, *, examples: int = 10) -> None:
        super().__init__(client, examples=examples)
        self.sent: list[Message] = []
        self.dead_in: set[str] = set()

    def __call__(self, message: Message) -> Message:
        message = copy.deepcopy(message)  # on a network every node has its own, and Flower's mod empties it
        about: Any = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
        if str(about.get(Key.STAGE)) in self.dead_in:
            return Message(Error(5, "the node died"), reply_to=message)
        behind = lambda m, c: memory_mod(m, c, lambda n, _: self.trainer(n))  # noqa: E731
        reply = secaggplus_mod(message, self.context, behind)
        self.sent.append(reply)
        return reply


def masked(sizes: list[int]) -> dict[int, Any]:
    return {1000 + i: Masked(i, examples=size) for i, size in enumerate(sizes)}


def workflow(**options: Any) -> SecAggPlusWorkflow:
    return SecAggPlusWorkflow(num_shares=CLIENTS, reconstruction_threshold=3, **options)


SIZES = [10 * (i + 1) for i in range(CLIENTS)]
RULES: list[tuple[fs.Rule, Any]] = [
    (fs.FedStale(), "sample"),
    (fs.FedStale(beta=0.5), "client"),
    (fs.rules.TemperedFedStale(theta=0.5, stand_in=False), "sample"),
]


def test_the_default_rule_is_refused_with_what_to_give_instead() -> None:
    strategy = TemperedFedStale(memory="clients", secure_aggregation=workflow(), **OPTIONS)
    with pytest.raises(InvalidInput, match=r"give stand_in=False, theta=0\.5"):
        strategy.start(MemoryGrid(masked(SIZES)), record(first_model()), num_rounds=1)


@pytest.mark.parametrize(("rule", "weights"), RULES, ids=repr)
def test_as_without_it_up_to_the_quantisation(rule: fs.Rule, weights: Any) -> None:
    """Each of six rounds adds at most a step per client, in units of the largest weight over all weights."""
    options: Any = {**OPTIONS, "weights": weights, "memory": "clients", "fraction_evaluate": 0.0}
    plain = RuleStrategy(rule, **options)
    expected = plain.start(MemoryGrid(devices(SIZES)), record(first_model()), num_rounds=6)
    secure = RuleStrategy(rule, secure_aggregation=workflow(max_weight=100.0), **options)
    found = secure.start(MemoryGrid(masked(SIZES)), record(first_model()), num_rounds=6)
    unit = 100.0 / sum(SIZES) if weights == "sample" else 1 / CLIENTS
    error = np.abs(flat(found.arrays) - flat(expected.arrays)).max()
    assert 0 < error <= 2 * 6 * CLIENTS * unit * STEP
    assert plain.aggregator is not None
    assert secure.aggregator is not None
    totals = [strategy.aggregator.state.memory.total for strategy in (plain, secure)]  # type: ignore[union-attr]
    np.testing.assert_allclose(totals[1], totals[0], atol=1e-3 * np.abs(totals[0]).max())
    numbers = found.train_metrics_clientapp[6]
    assert numbers["fedstale/participants"] == CLIENTS
    assert numbers["fedstale/clipped"] == 0
    assert numbers["fedstale/beta"] == pytest.approx(expected.train_metrics_clientapp[6]["fedstale/beta"], abs=1e-4)


def test_the_sum_is_of_what_the_clients_hold_to_the_bit_of_a_float() -> None:
    nodes = masked(SIZES)
    strategy = FedStale(beta=0.5, memory="clients", secure_aggregation=workflow(), **OPTIONS)
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=5)
    kept = 0.0
    for device in nodes.values():
        about = device.context.state.config_records["fedstale"]
        rows = device.context.state.array_records["fedstale.rows"]
        kept = kept + about["masses"][-1] * rows[str(len(rows) - 1)].numpy().astype(np.float64)
    assert strategy.aggregator is not None
    np.testing.assert_allclose(strategy.aggregator.state.memory.total, kept, atol=1e-6 * np.abs(kept).max())


def test_what_leaves_a_device_is_masked() -> None:
    """The vectors of a reply look like noise over all of the modulus, and hold no array besides."""
    nodes = masked(SIZES)
    strategy = FedStale(beta=0.5, memory="clients", secure_aggregation=workflow(), **OPTIONS)
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
    sent = [reply for reply in nodes[1000].sent if "fitres.parameters" in reply.content]
    assert len(sent) == 1
    assert not sent[0].content.array_records["fitres.parameters"]
    arrays = sent[0].content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
    numbers = np.concatenate([np.ravel(bytes_to_ndarray(a)) for a in arrays])
    assert 0.2 < numbers.mean() / 2**32 < 0.8
    assert numbers.std() > 0.2 * 2**32


def test_a_device_that_dies_in_the_protocol_was_not_there() -> None:
    nodes = masked(SIZES)
    strategy = FedStale(beta=0.5, memory="clients", secure_aggregation=workflow(), **OPTIONS)
    grid = MemoryGrid(nodes)
    result = strategy.start(grid, record(first_model()), num_rounds=2)
    nodes[1002].dead_in = {Stage.COLLECT_MASKED_VECTORS}
    result = strategy.start(grid, result.arrays, num_rounds=1)
    assert strategy.last_round is not None
    assert strategy.last_round[0].clients.tolist() == [0, 1, 3, 4, 5]
    nodes[1002].dead_in = set()
    for node in (1000, 1001, 1003, 1004):  # too few are left to open the sums: a round in which nobody came
        nodes[node].dead_in = {Stage.UNMASK}
    result = strategy.start(grid, result.arrays, num_rounds=1)
    assert strategy.last_round[0].clients.tolist() == []
    for device in nodes.values():
        device.dead_in = set()
    strategy.start(grid, result.arrays, num_rounds=1)
    assert strategy.last_round[0].clients.tolist() == [0, 1, 2, 3, 4, 5]
    assert strategy.last_round[1]["memory_lost"] == 0


def test_too_small_a_clipping_range_is_counted() -> None:
    strategy = FedStale(beta=0.5, memory="clients", secure_aggregation=workflow(clipping_range=1e-3), **OPTIONS)
    result = strategy.start(MemoryGrid(masked(SIZES)), record(first_model()), num_rounds=2)
    assert scalar(result.train_metrics_clientapp[2], "clipped") > 0


def test_statistics_of_any_size_come_out_of_the_sums() -> None:
    scale = SecureScale(8.0, 2**22, 1000.0, 1.0)
    values = np.array([[1e-9, 3.5], [2e5, -7e8], [0.0, 1e-5]])
    digits = sum(scale.digits(row) for row in values)
    np.testing.assert_allclose(scale.statistics(np.asarray(digits)), values.sum(axis=0), atol=3 * 2.0**-40, rtol=1e-12)
    assert np.abs(scale.digits(np.array([1e300, -np.inf]))).max() < 8.0
    with pytest.raises(InvalidInput, match="quantization_range"):
        SecureScale.of(workflow(quantization_range=2**10), by_sample=True)


@pytest.mark.parametrize("lie", ["nothing", "text", "weight"])
def test_a_hostile_answer_costs_a_round_and_not_the_run(lie: str) -> None:
    """Nobody can take it out of the sums: the round counts as one in which nobody came."""
    nodes = masked(SIZES)
    strategy = FedStale(beta=0.5, memory="clients", secure_aggregation=workflow(), **OPTIONS)
    grid = MemoryGrid(nodes)
    before = strategy.start(grid, record(first_model()), num_rounds=1)
    honest = nodes[1003]

    def lying(message: Message) -> Message:
        reply: Message = honest(message)
        if "fitres.metrics" in reply.content:
            said = {"nothing": "", "text": "[1, 2", "weight": '{"round": 1, "mass": -3, "remembered": true}'}[lie]
            reply.content["fitres.metrics"] = ConfigRecord({"fedstale": said})
        return reply

    grid.nodes[1003] = lying
    result = strategy.start(grid, before.arrays, num_rounds=1)
    assert strategy.last_round is not None
    assert strategy.last_round[0].clients.tolist() == []
    grid.nodes[1003] = honest
    result = strategy.start(grid, result.arrays, num_rounds=1)
    assert strategy.last_round[0].clients.tolist() == [0, 1, 2, 3, 4, 5]
    assert strategy.last_round[1]["memory_lost"] == 0
    assert np.isfinite(flat(result.arrays)).all()
