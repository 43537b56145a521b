"""memory="clients": the same model as with the server's memory, from two vectors per client, and what losses do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.flower import FedStale, NobodyAnswered, RuleStrategy, TemperedFedStale, memory_mod
from fedstale.flower.held_wire import KEY, SUMS

from .grid import MemoryGrid, Model, Trainer, first_model, flat, record, trainers

CLIENTS = 6


class Device:
    """A client app with memory_mod; its state lasts as long as it does."""

    def __init__(self, client: int, *, examples: int = 10, config: dict[str, Any] | None = None) -> None:
        self.trainer = Trainer(client, examples=examples, metrics={})
        self.context = Context(1, 1000 + client, {"client-id": client, **(config or {})}, RecordDict(), {})
        self.reply: Message | None = None

    def __call__(self, message: Message) -> Message:
        reply = memory_mod(message, self.context, lambda m, _: self.trainer(m))
        if SUMS in reply.content:
            self.reply = reply
        return reply


def devices(sizes: list[int] | None = None, **options: Any) -> dict[int, Any]:
    sizes = sizes or [10 * (i + 1) for i in range(CLIENTS)]
    return {1000 + i: Device(i, examples=size, **options) for i, size in enumerate(sizes)}


def present(server_round: int) -> set[int]:
    """Client 0 always comes, the others seldom; nobody comes in round 7, and client 5 joins in round 12."""
    chance = np.random.default_rng([99, server_round])
    p = [1.0, 0.8, 0.5, 0.3, 0.2, 0.6 if server_round >= 12 else 0.0]
    return {1000 + i for i in range(CLIENTS) if server_round != 7 and chance.random() < p[i]}


def rounds(strategy: RuleStrategy, grid: MemoryGrid, first: int, last: int, model: ArrayRecord) -> ArrayRecord:
    for t in range(first, last + 1):
        grid.online = present(t)
        replies = grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        new, _ = strategy.aggregate_train(t, replies)
        assert new is not None
        model = new
    return model


OPTIONS: dict[str, Any] = {
    "max_wait": 0.0,
    "min_available_nodes": 0,
    "min_train_nodes": 0,
    "halve_rows_every": None,
    "forget_after": None,
    "max_norm_ratio": None,
}


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (fs.FedStale(), "sample"),
        (fs.FedStale(beta=0.5, server_lr=0.7), "client"),
        (fs.rules.TemperedFedStale(theta=0.5, stand_in=False), "sample"),
        (fs.rules.TemperedFedStale(), "sample"),
        (fs.rules.ServerAdam(fs.UnbiasedFedVARP()), "client"),
    ],
    ids=repr,
)
def test_thirty_rounds_equal_the_servers_memory(rule: fs.Rule, weights: Any) -> None:
    nodes = {1000 + i: Trainer(i, examples=10 * (i + 1)) for i in range(CLIENTS)}
    with_rows = RuleStrategy(rule, weights=weights, **OPTIONS)
    expected = rounds(with_rows, MemoryGrid(nodes), 1, 30, record(first_model()))  # type: ignore[arg-type]
    ours = RuleStrategy(rule, weights=weights, memory="clients", **OPTIONS)
    found = rounds(ours, MemoryGrid(devices()), 1, 30, record(first_model()))
    np.testing.assert_allclose(flat(found), flat(expected), rtol=2e-5, atol=2e-6)
    assert np.abs(flat(found) - flat(record(first_model()))).max() > 0.1
    assert ours.aggregator is not None
    assert with_rows.aggregator is not None
    assert ours.aggregator.state.memory.nbytes == 0 < with_rows.aggregator.state.memory.nbytes
    p = [strategy.last_round[0].probabilities for strategy in (ours, with_rows) if strategy.last_round]
    np.testing.assert_allclose(p[0], p[1])


def test_a_share_of_the_nodes_is_asked() -> None:
    options = {**OPTIONS, "fraction_train": 0.5, "min_train_nodes": 2, "min_available_nodes": 2}
    nodes = {1000 + i: Trainer(i, examples=10 * (i + 1)) for i in range(CLIENTS)}
    expected = FedStale(beta=0.5, **options).start(MemoryGrid(nodes), record(first_model()), 12)  # type: ignore[arg-type]
    found = FedStale(beta=0.5, memory="clients", **options).start(MemoryGrid(devices()), record(first_model()), 12)
    np.testing.assert_allclose(flat(found.arrays), flat(expected.arrays), rtol=2e-5, atol=2e-6)


def test_a_reply_has_two_vectors_and_no_model() -> None:
    nodes = devices()
    result = FedStale(memory="clients").start(MemoryGrid(nodes), record(first_model()), num_rounds=3)
    d = flat(record(first_model())).size
    reply = nodes[1000].reply
    content = reply.content
    assert [*content.array_records] == [SUMS]
    assert {name: array.shape for name, array in content.array_records[SUMS].items()} == {"step": (d,), "change": (d,)}
    metrics = result.train_metrics_clientapp[3]
    assert metrics["fedstale/upload_vectors"] == 2.0
    assert metrics["fedstale/memory_lost"] == 0.0
    assert metrics["fedstale/participants"] == CLIENTS
    assert metrics["num-examples" if "num-examples" in metrics else "loss"] is not None


def test_an_answer_that_did_not_count_is_not_remembered() -> None:
    """Replies get lost on their way back: the server tells which of a client's rounds counted, and H stays exact."""
    nodes = devices()
    strategy = FedStale(beta=0.5, memory="clients", **OPTIONS)
    grid = MemoryGrid(nodes)
    chance = np.random.default_rng(1)
    model = record(first_model())
    for t in range(1, 25):
        messages = strategy.configure_train(t, model, ConfigRecord(), grid)
        replies = [reply for reply in grid.send_and_receive(messages) if chance.random() < 0.6]
        new, metrics = strategy.aggregate_train(t, replies)
        assert new is not None
        assert metrics is not None
        assert metrics["fedstale/memory_lost"] == 0.0
        model = new
    assert strategy.aggregator is not None
    state = strategy.aggregator.state
    kept = np.zeros_like(state.memory.total)
    for client, name in enumerate(strategy.aggregator.identities):
        context = nodes[1000 + int(name.partition(":")[2])].context
        about, arrays = context.state.config_records[KEY], context.state.array_records["fedstale.rows"]
        place = about["rounds"].index(int(state.last_seen[client]))
        kept += about["masses"][place] * arrays[str(place)].numpy().astype(np.float64)
    np.testing.assert_allclose(state.memory.total, kept, rtol=0, atol=2e-6 * np.abs(kept).max())


def test_a_lost_state_counts_as_new() -> None:
    nodes = devices([10] * 12)
    strategy, grid = FedStale(beta=0.5, memory="clients", **OPTIONS), MemoryGrid(nodes)
    model = record(first_model())
    seen = []
    for t in range(1, 6):
        if t == 3:
            nodes[1001].context.state = RecordDict()
        if t == 5:
            nodes[1002].context.state = RecordDict()
        new, metrics = strategy.aggregate_train(
            t, grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        )
        assert new is not None
        assert metrics is not None
        model = new
        seen.append([metrics[f"fedstale/{name}"] for name in ("memory_lost", "memory_anew", "ghosts")])
    assert [row[0] for row in seen] == [0, 0, 1, 0, 1]
    assert [row[1] for row in seen] == [0, 0, 0, 0, 1]  # two of twelve: too many to wait for
    assert seen[2][2] == seen[3][2] == pytest.approx(1 / 12)
    assert seen[4][2] == 0.0
    assert strategy.aggregator is not None
    assert not strategy.aggregator.state.memory.total.any()


def test_resumed_with_rows_on_disk_equals_uninterrupted(tmp_path: Path) -> None:
    """A new server process is a new run of Flower, which has lost every node's state: a folder keeps the rows."""
    grid = MemoryGrid(devices(config={"memory-folder": str(tmp_path / "a")}))
    whole = rounds(FedStale(memory="clients", **OPTIONS), grid, 1, 20, record(first_model()))
    options = {**OPTIONS, "checkpoint": tmp_path / "checkpoint", "resume": "auto", "memory": "clients"}
    first = FedStale(**options)
    half = rounds(
        first, MemoryGrid(devices(config={"memory-folder": str(tmp_path / "b")})), 1, 11, record(first_model())
    )
    first.settle(half)
    first.unlock()
    again = FedStale(**options)
    grid = MemoryGrid(devices(config={"memory-folder": str(tmp_path / "b")}))
    found = rounds(again, grid, 1, 20, record(first_model()))
    np.testing.assert_array_equal(flat(found), flat(whole))
    for file in (tmp_path / "b").iterdir():
        file.write_bytes(b"damaged")
    new, metrics = again.aggregate_train(
        21, grid.send_and_receive(again.configure_train(21, found, ConfigRecord(), grid))
    )
    assert new is not None
    assert metrics is not None
    assert scalar(metrics, "memory_lost") > 0
    resumed = FedStale.resume(tmp_path / "checkpoint")
    assert resumed.held is not None


def test_a_real_app_with_the_mod_and_a_server_without_the_word() -> None:
    """Flower's ClientApp around it; and the mod does nothing but report an id where no order comes."""
    trainers_of = {i: Trainer(i, metrics={}) for i in range(3)}
    app = ClientApp(mods=[memory_mod])
    app.train()(lambda message, context: trainers_of[int(context.node_config["partition-id"])](message))
    contexts = {i: Context(1, i, {"partition-id": i}, RecordDict(), {}) for i in range(3)}
    grid = MemoryGrid({i: lambda m, c=contexts[i]: app(m, c) for i in range(3)})  # type: ignore[misc]
    options: dict[str, Any] = {"beta": 0.5, "fraction_evaluate": 0.0, **OPTIONS}
    plain = FedStale(**options).start(grid, record(first_model()), num_rounds=3)
    assert not contexts[0].state
    held = FedStale(memory="clients", **options)
    found = held.start(grid, record(first_model()), num_rounds=3)
    np.testing.assert_allclose(flat(found.arrays), flat(plain.arrays), rtol=2e-5, atol=2e-6)
    assert held.aggregator is not None
    assert held.aggregator.identities == ["partition-id:0", "partition-id:1", "partition-id:2"]
    assert contexts[0].state


def test_an_erased_client_is_in_no_sum() -> None:
    nodes = devices()
    strategy = FedStale(memory="clients", **OPTIONS)
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=3)
    assert strategy.aggregator is not None
    assert strategy.aggregator.state.memory.total.any()
    strategy.forget(0)
    assert not strategy.aggregator.state.memory.total.any()
    assert len(strategy.aggregator.known) == CLIENTS - 1
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
    assert len(strategy.aggregator.known) == CLIENTS


def test_clients_without_the_mod_are_told_what_is_missing() -> None:
    def without(message: Message, trainer: Any) -> Message:
        if "arrays" not in message.content:
            return Message(Error(2, "KeyError: 'arrays'"), reply_to=message)
        reply: Message = trainer(message)
        return reply

    nodes = {node: lambda m, t=trainer: without(m, t) for node, trainer in trainers([0, 1]).items()}
    with pytest.raises(NobodyAnswered, match=r"mods=\[fedstale.flower.memory_mod\]"):
        FedStale(memory="clients").start(MemoryGrid(nodes), record(first_model()), num_rounds=1)  # type: ignore[arg-type]


def scalar(metrics: MetricRecord, name: str) -> float:
    value = metrics[f"fedstale/{name}"]
    assert isinstance(value, (int, float))
    return float(value)


class Liar(Device):
    def __init__(self, client: int, change: Any) -> None:
        super().__init__(client)
        self.change = change

    def __call__(self, message: Message) -> Message:
        reply = super().__call__(message)
        if KEY in reply.content:
            self.change(reply.content)
        return reply


def vector(value: float, length: int) -> Array:
    return Array(np.full(length, value, dtype=np.float32))


D = flat(record(first_model())).size
LIES = {
    "nan": lambda c: c[SUMS].__setitem__("step", vector(np.nan, D)),
    "huge": lambda c: c[SUMS].__setitem__("change", vector(3e38, D)),
    "short": lambda c: c[SUMS].__setitem__("step", vector(0.0, 3)),
    "whole numbers": lambda c: c[SUMS].__setitem__("step", Array(np.zeros(D, dtype=np.int64))),
    "one vector": lambda c: c[SUMS].__delitem__("change"),
    "no weight": lambda c: c[KEY].__setitem__("mass", 0.0),
    "a text": lambda c: c[KEY].__setitem__("mass", "10"),
    "much weight": lambda c: c[KEY].__setitem__("mass", 1e12),
    "no residual": lambda c: c[SUMS].pop("residual"),
    "a short residual": lambda c: c[SUMS].__setitem__("residual", vector(0.0, 1)),
    "another round": lambda c: c[KEY].__setitem__("round", 77),
    "statistics": lambda c: c[KEY].__setitem__("statistics", [float("inf"), 0.0]),
    "one statistic": lambda c: c[KEY].__setitem__("statistics", [0.0]),
    "not a bit": lambda c: c[KEY].__setitem__("remembered", 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_none_is_left_out(lie: str) -> None:
    nodes = devices([10] * 5)
    strategy = TemperedFedStale(memory="clients", **OPTIONS)
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
    bad = Liar(4, LIES[lie])
    bad.context = nodes[1004].context
    result = strategy.start(MemoryGrid({**nodes, 1004: bad}), record(first_model()), num_rounds=2)
    assert strategy.last_round is not None
    assert strategy.last_round[0].clients.tolist() == [0, 1, 2, 3]
    assert np.isfinite(flat(result.arrays)).all()


def test_what_cannot_be_had_is_refused_in_one_line() -> None:
    for options, word in (
        ({"beta": "auto-per-client"}, "auto"),
        ({"clip_norm": 1.0}, "clip"),
        ({"max_norm_ratio": 5.0}, "length"),
        ({"robust": "median"}, "compare with others"),
        ({"secure_aggregation": 3}, "SecAggPlusWorkflow"),
    ):
        with pytest.raises(InvalidInput, match=word) as caught:
            FedStale(memory="clients", **options).start(MemoryGrid(devices()), record(first_model()), num_rounds=1)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="memory"):
        FedStale(secure_aggregation=object())  # type: ignore[arg-type]
    norm: Model = {**first_model(), "bn.running_mean": np.zeros(3, dtype=np.float32)}
    with pytest.raises(InvalidInput, match="GroupNorm"):
        FedStale(memory="clients").start(MemoryGrid(devices()), record(norm), num_rounds=1)


def test_part_of_a_model() -> None:
    """A client that trains a head and sends only that."""

    class Head(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {"conv.bias": super().model(received, server_round)["conv.bias"]}

    nodes: dict[int, Any] = devices()
    for i, device in enumerate(nodes.values()):
        device.trainer = Head(i, metrics={})
    plain: dict[int, Any] = {1000 + i: Head(i) for i in range(CLIENTS)}
    expected = FedStale(beta=0.5, **OPTIONS).start(MemoryGrid(plain), record(first_model()), num_rounds=4)
    found = FedStale(beta=0.5, memory="clients", **OPTIONS).start(
        MemoryGrid(nodes), record(first_model()), num_rounds=4
    )
    np.testing.assert_allclose(flat(found.arrays), flat(expected.arrays), rtol=2e-5, atol=2e-6)
