"""Large models: replies are let go when they have been applied, and not every round need be saved."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedstale.checks import InvalidInput
from fedstale.difference import Difference
from fedstale.flower import FedStale
from fedstale.flower.aggregator import Aggregator
from fedstale.flower.layout import Layout, decode, encode
from fedstale.state import State

from .grid import MemoryGrid, Trainer, first_model, flat, record, trainers

OPTIONS: Any = {"fraction_evaluate": 0.0, "min_available_nodes": 3, "seed": 1}


@pytest.fixture
def grid() -> MemoryGrid:
    return MemoryGrid(trainers(range(3)))


def test_replies_are_let_go_when_they_have_been_applied(grid: MemoryGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the next model is made, nothing of them is in memory, without waiting for garbage to be collected."""
    read: list[weakref.ref[Difference]] = []
    alive: list[int] = []
    difference, arrays = Layout.difference, Aggregator.arrays

    def reading(self: Layout, *arguments: Any) -> Difference:
        found = difference(self, *arguments)
        read.append(weakref.ref(found))
        return found

    def counting(self: Aggregator) -> ArrayRecord:
        alive.append(sum(ref() is not None for ref in read))
        return arrays(self)

    monkeypatch.setattr(Layout, "difference", reading)
    monkeypatch.setattr(Aggregator, "arrays", counting)
    FedStale(**OPTIONS).start(grid, record(first_model()), num_rounds=2)
    assert len(read) == 6
    assert alive
    assert not any(alive)


def test_the_model_of_the_last_round_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[weakref.ref[Array]] = []
    alive: list[int] = []
    apply_round = Aggregator.apply_round

    class Forgetful(MemoryGrid):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            model = next(iter(messages)).content["arrays"]
            assert isinstance(model, ArrayRecord)
            sent.append(weakref.ref(next(iter(model.values()))))
            replies = super().send_and_receive(messages, timeout=timeout)
            self.sent.clear()
            return replies

    def counting(self: Aggregator, *arguments: Any) -> Any:
        gc.collect()
        alive.append(sum(ref() is not None for ref in sent[1:]))  # the first one is the caller's
        return apply_round(self, *arguments)

    monkeypatch.setattr(Aggregator, "apply_round", counting)
    grid = Forgetful({1000 + i: Trainer(i) for i in range(3)})
    FedStale(**OPTIONS).start(grid, record(first_model()), num_rounds=4)
    assert alive == [0, 1, 1, 1]


def test_a_subclass_that_sees_the_replies_keeps_them(grid: MemoryGrid) -> None:
    found = []

    class Looking(FedStale):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            count = len([*replies])
            result = super().aggregate_train(server_round, replies)
            found.append((count, [len(reply.content.array_records["arrays"]) for reply in replies]))
            return result

    Looking(**OPTIONS).start(grid, record(first_model()), num_rounds=1)
    assert found == [(3, [3, 3, 3])]


def test_a_function_of_the_user_sees_the_whole_reply(grid: MemoryGrid) -> None:
    found = []

    def aggregate(contents: list[RecordDict], key: str) -> MetricRecord:
        found.append([len(content.array_records["arrays"]) for content in contents])
        return aggregate_metricrecords(contents, key)

    FedStale(**OPTIONS, train_metrics_aggr_fn=aggregate).start(grid, record(first_model()), num_rounds=1)
    assert found == [[3, 3, 3]]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64", "bool", ">f4"])
def test_an_array_is_sent_as_flower_writes_it(shape: tuple[int, ...], kind: str) -> None:
    array = np.ones(shape).astype(kind)
    assert encode(array) == Array(array)
    turned = np.asfortranarray(array)
    np.testing.assert_array_equal(decode(encode(turned)), array)


class Dies(Exception):
    pass


def test_saved_every_few_rounds_a_run_goes_on_from_the_last_one(tmp_path: Path) -> None:
    whole = FedStale(**OPTIONS).start(MemoryGrid(trainers(range(3))), record(first_model()), num_rounds=7)
    options: Any = {**OPTIONS, "checkpoint": tmp_path, "checkpoint_every": 3, "resume": "auto", "memory": "ram"}
    rounds = 0

    def dying(message: Message) -> Message:
        nonlocal rounds
        rounds += 1
        if rounds == 6:
            raise Dies
        return Trainer(0)(message)

    with pytest.raises(Dies):
        FedStale(**options).start(MemoryGrid({**trainers(range(3)), 1000: dying}), record(first_model()), num_rounds=7)
    assert State.load(tmp_path).round == 3
    again = FedStale(**options).start(MemoryGrid(trainers(range(3))), record(first_model()), num_rounds=7)
    np.testing.assert_array_equal(flat(again.arrays), flat(whole.arrays))
    assert again.train_metrics_clientapp.keys() == whole.train_metrics_clientapp.keys()
    assert State.load(tmp_path).round == 7  # the end is always saved


def test_checkpoint_every_is_a_number_of_rounds() -> None:
    with pytest.raises(InvalidInput, match="checkpoint_every = 0"):
        FedStale(checkpoint_every=0)
