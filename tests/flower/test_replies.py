"""Bad replies are left out, counted and logged with the node's id; the round equals the round without them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedstale.flower import FedStale

from .grid import MemoryGrid, Model, Node, Trainer, first_model, flat, record

GOOD = {1000: Trainer(0), 1001: Trainer(1), 1002: Trainer(2)}
BAD = 1666


def run(nodes: dict[int, Any], rounds: int = 3, **options: Any) -> tuple[FedStale, Result]:
    strategy = FedStale(fraction_evaluate=0.0, **options)
    return strategy, strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=rounds)


def spoil(change: Callable[[Model], object]) -> Node:
    """A trainer whose model is changed before it is sent."""

    class Spoiled(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            model = super().model(received, server_round)
            change(model)
            return model

    return Spoiled(9)


def answer(content: Callable[[Message], Message | None]) -> Node:
    return content


def poke(value: float) -> Callable[[Model], object]:
    def change(model: Model) -> None:
        model["conv.weight"][1, 0, 2] = value

    return change


def raw(message: Message, array: Array) -> Message:
    model = {name: Array(np.asarray(a)) for name, a in first_model().items()} | {"conv.bias": array}
    metrics = MetricRecord({"num-examples": 1, "client-id": 9})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


def npy(array: NDArray[Any]) -> bytes:
    return Array(array).data


BAD_REPLIES: dict[str, tuple[Node, str]] = {
    "wrong shape": (spoil(lambda m: m.update({"conv.bias": np.zeros(5, "f4")})), "conv.bias has shape (5,)"),
    "transposed": (spoil(lambda m: m.update({"conv.weight": m["conv.weight"].T})), "conv.weight has shape (3, 2, 4)"),
    "NaN": (spoil(poke(np.nan)), "NaN"),
    "infinity": (spoil(poke(np.inf)), "infinity"),
    "too large": (spoil(poke(3e38)), "too large"),
    "missing array": (spoil(lambda m: m.pop("scale")), "missing arrays: scale"),
    "extra array": (spoil(lambda m: m.update({"more": np.zeros(2, "f4")})), "unknown arrays: more"),
    "integers": (spoil(lambda m: m.update({"conv.bias": np.zeros(4, "i8")})), "int64"),
    "empty": (answer(lambda m: Message(RecordDict(), reply_to=m)), "0 ArrayRecords"),
    "two ArrayRecords": (
        answer(lambda m: Message(RecordDict({"a": record(first_model()), "b": record(first_model())}), reply_to=m)),
        "2 ArrayRecords",
    ),
    "error": (answer(lambda m: Message(Error(2, "out of memory"), reply_to=m)), "error 2: out of memory"),
    "cut short": (
        answer(lambda m: raw(m, Array("float32", (4,), "numpy.ndarray", npy(np.zeros(4, "f4"))[:-3]))),
        "read",
    ),
    "no header": (answer(lambda m: raw(m, Array("float32", (4,), "numpy.ndarray", b"nothing"))), "cannot be read"),
    "other format": (answer(lambda m: raw(m, Array("float32", (4,), "pickle", b"cos\nsystem\n"))), "pickle"),
    "lies about shape": (
        answer(lambda m: raw(m, Array("float32", (4,), "numpy.ndarray", npy(np.zeros(3, "f4"))))),
        "(3,)",
    ),
}


@pytest.mark.parametrize("kind", BAD_REPLIES)
def test_a_bad_reply_is_left_out(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    node, reason = BAD_REPLIES[kind]
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy, result = run({**GOOD, BAD: node})
    _, without = run(GOOD)
    np.testing.assert_array_equal(flat(result.arrays), flat(without.arrays))
    counted = "failed" if kind == "error" else "left_out"
    assert [result.train_metrics_clientapp[t][f"fedstale/{counted}"] for t in (1, 2, 3)] == [1, 1, 1]
    assert [result.train_metrics_clientapp[t]["fedstale/participants"] for t in (1, 2, 3)] == [3, 3, 3]
    assert [(t, one.node) for t, one in strategy.left_out] == [(1, BAD), (2, BAD), (3, BAD)]
    assert all(reason in one.reason for _, one in strategy.left_out), strategy.left_out[0]
    assert any(str(BAD) in line.getMessage() and reason in line.getMessage() for line in caplog.records)


def test_a_dead_node_is_known_by_the_message_it_did_not_answer() -> None:
    """The SuperLink answers for it with source id 1."""

    def dead(message: Message) -> Message:
        reply = Message(Error(5, "node unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    strategy, _ = run({**GOOD, BAD: dead}, rounds=1)
    assert [(one.node, one.kind) for _, one in strategy.left_out] == [(BAD, "failed")]


def test_replies_of_another_round_twice_or_of_strangers_do_not_count() -> None:
    late: list[Message] = []

    class Late(Trainer):
        def __call__(self, message: Message) -> Message:
            late.append(super().__call__(message))
            return late[-1]

    nodes: dict[int, Any] = {**GOOD, 1001: Late(1)}
    strategy, grid = FedStale(), MemoryGrid(nodes)
    model = record(first_model())
    for t in (1, 2):
        replies = list(grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid)))
        replies += [late[0], replies[0], Trainer(8)(grid.sent[-1])]
        forged = Trainer(2)(grid.sent[-1])
        forged.metadata.__dict__["_src_node_id"] = 4711
        replies.append(forged)
        model, _ = strategy.aggregate_train(t, replies)  # type: ignore[assignment]
    _, plain = run(GOOD, rounds=2)
    np.testing.assert_array_equal(flat(model), flat(plain.arrays))
    reasons = [one.reason for _, one in strategy.left_out]
    assert sum("has answered already" in reason for reason in reasons) == 5
    assert sum("answers no message of round" in reason for reason in reasons) == 3


def test_two_nodes_cannot_answer_as_one_client() -> None:
    strategy, result = run({**GOOD, BAD: Trainer(2)})
    _, without = run(GOOD)
    np.testing.assert_array_equal(flat(result.arrays), flat(without.arrays))
    assert "same client client-id:2" in strategy.left_out[0][1].reason


def test_a_client_of_unknown_probability_or_size_is_left_out() -> None:
    strategy, _ = run(GOOD, probabilities={0: 0.5, "client-id:1": 0.5})
    assert {one.node for _, one in strategy.left_out} == {1002}
    strategy, _ = run({**GOOD, BAD: Trainer(7, examples=0)}, weights="sample")
    assert {one.node for _, one in strategy.left_out} == {BAD}


@pytest.mark.parametrize(
    ("claim", "said"),
    [(0, "its num-examples is 0"), (-3, "is -3"), (1e16, "is 1e+16"), (float("nan"), "is nan"), ([1, 2], "is a list")],
)
def test_a_number_of_examples_that_cannot_be_is_named(claim: Any, said: str) -> None:
    """It was said not to have told any."""
    strategy, _ = run({**GOOD, BAD: Trainer(7, examples=claim)}, weights="sample", rounds=1)
    reason = strategy.left_out[0][1].reason
    assert said in reason
    assert "above 0 and up to 1e+15" in reason


def test_metrics_that_do_not_fit_together_do_not_stop_a_round() -> None:
    nodes = {**GOOD, 1003: Trainer(3, metrics={"client-id": 3, "other": 1.0})}
    _, result = run(nodes)
    assert result.train_metrics_clientapp[3]["fedstale/participants"] == 4
    assert result.train_metrics_clientapp[3]["loss"] == 1.0  # of the three whose metrics have the same names
