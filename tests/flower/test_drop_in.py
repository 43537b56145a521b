"""Until told otherwise, a drop-in does what Flower's FedAvg does."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Result,
    Strategy,
)

import fedstale as fs
from fedstale.flower import FedStale, RuleStrategy, TemperedFedStale, UnbiasedFedAvg, UnbiasedFedVARP
from fedstale.rules import ServerAdagrad, ServerAdam, ServerMomentum, ServerYogi

from .grid import MemoryGrid, Model, Node, Trainer, arrays, first_model, flat, record, trainers

QUICK: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0}


class Same(Trainer):
    """Every client moves the model by the same step."""

    def model(self, received: Model, server_round: int) -> Model:
        return {name: (a - 1.0).astype(a.dtype) for name, a in received.items()}


class At(Trainer):
    """A client that answers with its own optimum."""

    def __init__(self, client: int, optimum: float, examples: int) -> None:
        super().__init__(client, examples=examples)
        self.optimum = optimum

    def model(self, received: Model, server_round: int) -> Model:
        return {name: np.full_like(a, self.optimum) for name, a in received.items()}


def one(value: float = 0.0) -> ArrayRecord:
    return record({"w": np.full(1, value)})


def run(strategy: Strategy, nodes: dict[int, Any], rounds: int = 1, start: ArrayRecord | None = None) -> Result:
    return strategy.start(MemoryGrid(nodes), start or one(), num_rounds=rounds)


def test_the_objective_is_that_of_fedavg() -> None:
    """Sizes 1 and 1000, optima −1 and −2; fairness among clients is one word."""
    nodes: dict[int, Node] = {1: At(0, -1.0, 1), 2: At(1, -2.0, 1000)}
    theirs = flat(run(FedAvg(fraction_evaluate=0.0), nodes).arrays)
    np.testing.assert_allclose(flat(run(FedStale(**QUICK), nodes).arrays), theirs)
    np.testing.assert_allclose(theirs, -1.999, atol=1e-3)
    np.testing.assert_allclose(flat(run(FedStale(**QUICK, weights="client"), nodes).arrays), -1.5)


@pytest.mark.parametrize(("options", "share"), [({}, 1 / 2), ({"max_examples_ratio": 2.0}, 2 / 11)])
def test_a_claim_of_very_many_examples_is_bounded(options: Any, share: float) -> None:
    nodes: dict[int, Any] = {i: At(i, 0.0, 50) for i in range(9)} | {9: At(9, 1.0, 10**15)}
    result = run(FedStale(**QUICK, **options), nodes)
    np.testing.assert_allclose(flat(result.arrays), share, rtol=1e-6)
    assert result.train_metrics_clientapp[1]["fedstale/examples_cut"] == 1
    unbounded = run(FedStale(**QUICK, max_examples_ratio=None), nodes)
    np.testing.assert_allclose(flat(unbounded.arrays), 1.0, atol=1e-9)


def test_no_claim_outweighs_all_the_others_and_a_hundredth_stays_small() -> None:
    """Ten times the median of a hundred clients is 9 %; honest sizes within the bounds are not touched."""
    nodes: dict[int, Any] = {i: At(i, 0.0, 50) for i in range(99)} | {99: At(99, 1.0, 10**15)}
    np.testing.assert_allclose(flat(run(FedStale(**QUICK), nodes).arrays), 10 / 109, rtol=1e-6)
    nodes = {i: At(i, 0.0, size) for i, size in enumerate((10, 20, 30))} | {3: At(3, 1.0, 55)}
    result = run(FedStale(**QUICK), nodes)
    np.testing.assert_allclose(flat(result.arrays), 55 / 115, rtol=1e-6)
    assert result.train_metrics_clientapp[1]["fedstale/examples_cut"] == 0


@pytest.mark.parametrize("make", [UnbiasedFedAvg, TemperedFedStale, FedStale])
def test_with_a_fraction_of_the_nodes_steps_are_those_of_fedavg_from_the_first_round_on(make: Any) -> None:
    """A hundred nodes of which 5 % are asked: p = P(asked) · P(answers | asked), and N counts who is connected."""
    options: Any = {"fraction_train": 0.05, "fraction_evaluate": 0.0}
    strategy, grid = make(**options, max_wait=0.0), MemoryGrid({i: Same(i) for i in range(100)})
    model, steps = one(), []
    for t in range(1, 41):
        replies = grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        new, _ = strategy.aggregate_train(t, replies)
        assert new is not None
        steps.append(float(flat(model)[0] - flat(new)[0]))
        model = new
    if make is not FedStale:
        np.testing.assert_allclose(steps, 1.0, rtol=1e-6)
    else:  # see the next test
        np.testing.assert_allclose(steps[:3], 1.0, atol=0.1)
        assert np.mean(steps) == pytest.approx(1.0, abs=0.1)


def test_the_steps_of_fedstale_vary_with_how_many_of_those_asked_are_new() -> None:
    """1 + β (share of all that came before − share of the asked that did): its mean is 1, and one round's is chance."""
    strategy = FedStale(beta=0.5, fraction_train=0.05, **QUICK)
    grid, model, known = MemoryGrid({i: Same(i) for i in range(100)}), one(), set[int]()
    for t in range(1, 31):
        messages = list(strategy.configure_train(t, model, ConfigRecord(), grid))
        asked = {message.metadata.dst_node_id for message in messages}
        new, _ = strategy.aggregate_train(t, grid.send_and_receive(messages))
        assert new is not None
        wanted = 1.0 + 0.5 * (len(known) / 100 - len(asked & known) / 5)
        assert float(flat(model)[0] - flat(new)[0]) == pytest.approx(wanted, abs=1e-5)
        model, known = new, known | asked


def test_who_does_not_answer_when_asked_weighs_more_and_who_is_not_asked_does_not() -> None:
    """Half of the clients answer every second time; p̂ is the share that is asked times that."""

    class Half(Trainer):
        asked = 0

        def __call__(self, message: Message) -> Message:
            self.asked += 1
            return super().__call__(message) if self.asked % 2 else None  # type: ignore[return-value]

    nodes: dict[int, Node] = {i: (Half if i % 2 else Trainer)(i) for i in range(20)}
    strategy = UnbiasedFedAvg(fraction_train=0.3, late_for=0, **QUICK)
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=300)
    assert strategy.aggregator is not None
    names = strategy.aggregator.identities
    index = np.arange(len(names))
    p = strategy.probabilities.values(strategy.aggregator.state.estimator, index, names, 0.3)
    for name, value in zip(names, p, strict=True):
        odd = int(name.partition(":")[2]) % 2
        assert value == pytest.approx(0.15 if odd else 0.3, rel=0.12)


def test_who_is_away_counts_as_away_though_few_are_asked() -> None:
    """Availability a half, a third asked: p̂ is a sixth. Being away is seen as often as being there."""
    strategy, grid = (
        UnbiasedFedAvg(fraction_train=1 / 3, **{**QUICK, "min_available_nodes": 0}),
        MemoryGrid(trainers(range(30))),
    )
    model = record(first_model())
    chance = np.random.default_rng(0)
    for t in range(1, 601):
        grid.online = {1000 + i for i in range(30) if i >= 10 or chance.random() < 0.5}
        replies = grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        model, _ = strategy.aggregate_train(t, replies)  # type: ignore[assignment]
    assert strategy.aggregator is not None
    names = strategy.aggregator.identities
    p = strategy.probabilities.values(strategy.aggregator.state.estimator, np.arange(30), names, 1 / 3)
    rare = [value for name, value in zip(names, p, strict=True) if int(name.partition(":")[2]) < 10]
    assert np.mean(rare) == pytest.approx(1 / 6, rel=0.1)
    others = [value for name, value in zip(names, p, strict=True) if int(name.partition(":")[2]) >= 10]
    np.testing.assert_allclose(others, 1 / 3)


def test_a_known_probability_needs_n() -> None:
    with pytest.raises(fs.InvalidInput, match=r"num_clients = None: with probabilities=0.05 .* give N"):
        FedStale(probabilities=0.05)
    FedStale(probabilities=0.05, num_clients=100)
    result = run(UnbiasedFedAvg(**QUICK, probabilities=dict.fromkeys(range(20), 0.1)), {i: Same(i) for i in range(2)})
    np.testing.assert_allclose(flat(result.arrays), -1.0)  # 2 of 20 came, as was to be expected


def test_arguments_without_names_are_those_of_fedavg() -> None:
    def aggregate(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"n": len(contents)})

    given: Any = (0.5, 0.25, 3, 4, 5, "n", "a", "c", aggregate, aggregate)
    for make in (FedStale, UnbiasedFedVARP, UnbiasedFedAvg):
        ours, theirs = vars(make(*given)), vars(FedAvg(*given))
        assert {name: ours[name] for name in theirs} == theirs
    with pytest.raises(TypeError, match="multiple values for argument 'fraction_train'"):
        FedStale(0.5, fraction_train=0.5)
    with pytest.raises(TypeError, match="at most 10 arguments"):
        FedStale(*given, 1)


MIGRATION: dict[str, tuple[Strategy, RuleStrategy]] = {
    "FedAvg()": (FedAvg(), TemperedFedStale()),
    "FedProx(proximal_mu=0.1)": (FedProx(proximal_mu=0.1), TemperedFedStale(proximal_mu=0.1)),
    "FedAvgM(server_learning_rate=0.5, server_momentum=0.9)": (
        FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
        RuleStrategy(ServerMomentum(fs.TemperedFedStale(), server_lr=0.5, beta1=0.9)),
    ),
    "FedAdagrad(eta=0.1, tau=1e-3)": (
        FedAdagrad(eta=0.1, tau=1e-3),
        RuleStrategy(ServerAdagrad(fs.TemperedFedStale(), server_lr=0.1, tau=1e-3)),
    ),
    "FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)": (
        FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
        RuleStrategy(ServerAdam(fs.TemperedFedStale(), server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)),
    ),
    "FedYogi(eta=0.01, beta_1=0.9, beta_2=0.99, tau=1e-3)": (
        FedYogi(eta=0.01, beta_1=0.9, beta_2=0.99, tau=1e-3),
        RuleStrategy(ServerYogi(fs.TemperedFedStale(), server_lr=0.01, beta1=0.9, beta2=0.99, tau=1e-3)),
    ),
}
FIRST_STEP = {"FedAdam": np.sqrt(1 - 0.99**2) / (1 - 0.9**2)}
"""Flower's FedAdam multiplies the step of round t by √(1 − β₂^(t+1)) / (1 − β₁^(t+1)), which goes to 1."""


class Proximal(Trainer):
    """A client that heeds the config's proximal-mu."""

    def __call__(self, message: Message) -> Message:
        self.mu = message.content.config_records["config"].get("proximal-mu", 0.0)
        return super().__call__(message)

    def model(self, received: Model, server_round: int) -> Model:
        moved = super().model(received, server_round)
        return {name: (a - (a - moved[name]) / (1 + self.mu)).astype(a.dtype) for name, a in received.items()}  # type: ignore[operator]


@pytest.mark.parametrize("name", MIGRATION)
def test_the_migration_table_runs_and_with_everybody_there_gives_the_same(name: str) -> None:
    """The table of docs/flower.md; what it says there of FedAdam and FedYogi is what is asserted here."""
    theirs, ours = MIGRATION[name]
    start = record(first_model("float64"))
    nodes: dict[int, Node] = {i: Proximal(i, examples=10 * (i + 1)) for i in range(4)}
    expected, found = (flat(run(strategy, nodes, 1, start).arrays) - flat(start) for strategy in (theirs, ours))
    found *= FIRST_STEP.get(name.partition("(")[0], 1.0)
    # The adaptive ones start from v = τ², as their paper has it, where Flower starts from 0.
    exact = name.startswith(("FedAvg", "FedProx"))
    assert np.linalg.norm(found - expected) <= (1e-6 if exact else 0.02) * np.linalg.norm(expected)


def test_clients_that_return_a_part_of_the_model() -> None:
    """A head, or adapters: what is not sent has not moved; one that sends another part than most is left out."""

    class Head(Trainer):
        names: tuple[str, ...] = ("conv.bias", "scale")

        def model(self, received: Model, server_round: int) -> Model:
            return {name: a for name, a in super().model(received, server_round).items() if name in self.names}

    class Other(Head):
        names = ("conv.weight",)

    strategy = FedStale(**QUICK)
    result = run(strategy, {1: Head(0), 2: Head(1), 3: Head(2), 4: Other(3)}, 3, record(first_model()))
    whole = run(FedStale(**QUICK), {1: Trainer(0), 2: Trainer(1), 3: Trainer(2)}, 3, record(first_model()))
    for name in ("conv.bias", "scale"):
        np.testing.assert_allclose(arrays(result.arrays)[name], arrays(whole.arrays)[name], rtol=1e-6)
    np.testing.assert_array_equal(arrays(result.arrays)["conv.weight"], first_model()["conv.weight"])
    assert {reply.node for _, reply in strategy.left_out} == {4}


def test_a_round_does_not_wait_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    def connected(grid: Any, identity: Any, at_least: int, max_wait: float | None, *_: Any) -> list[int]:
        waits.append(max_wait)
        time.sleep(min(max_wait or 0.0, 0.05))
        return identity.register_nodes(grid.get_nodes())  # type: ignore[no-any-return]

    monkeypatch.setattr("fedstale.flower.asking.connected", connected)
    FedStale(max_wait=0.05).start(MemoryGrid(trainers([0, 1])), record(first_model()), num_rounds=2)
    assert waits[2] == 0.05  # the training of the second round
    assert waits[3] == 0.0  # its evaluation


def test_a_timeout_for_each_round() -> None:
    grid = MemoryGrid(trainers([0, 1]))
    FedStale(**QUICK).start(grid, record(first_model()), num_rounds=3, timeout=lambda t: 10.0 * t)
    lives = 1 + FedStale().options["late_for"]
    assert [message.metadata.ttl for message in grid.sent] == [lives * t for t in (10.0, 10.0, 20.0, 20.0, 30.0, 30.0)]


def test_a_metrics_function_sees_replies_as_they_came_and_may_fail() -> None:
    def ids(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"ids": [int(c["metrics"]["client-id"]) for c in contents]})  # type: ignore[arg-type]

    result = run(FedStale(**QUICK, train_metrics_aggr_fn=ids), trainers([3, 5]), 1, record(first_model()))
    assert result.train_metrics_clientapp[1]["ids"] == [3, 5]

    def broken(contents: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError("no such metric")

    with pytest.raises(KeyError, match="no such metric"):
        run(FedStale(**QUICK, train_metrics_aggr_fn=broken), trainers([3, 5]), 1, record(first_model()))


@pytest.mark.parametrize("kind", [FedAvg, FedStale])
def test_a_metrics_function_may_have_nothing_to_say(kind: Any) -> None:
    """Flower's FedAvg runs with one that returns None; here it ended in an AttributeError."""
    strategy = kind(train_metrics_aggr_fn=lambda *_: None, evaluate_metrics_aggr_fn=lambda *_: None)
    result = run(strategy, trainers([0, 1]), 2, record(first_model()))
    assert not [n for numbers in result.train_metrics_clientapp.values() for n in numbers if "fedstale/" not in n]
    assert not result.evaluate_metrics_clientapp


class OwnPrivacy(DifferentialPrivacyServerSideFixedClipping):
    """A wrapper of a user's, which configures rounds without Flower's code."""

    def configure_train(this, *arguments: Any) -> Any:
        return this.strategy.configure_train(*arguments)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: OwnPrivacy(s, 1.0, 0.5, 2),
        lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1.0, 0.5, 2),
        lambda s: DifferentialPrivacyClientSideAdaptiveClipping(s, 0.1, 20),
    ],
)
def test_flowers_central_privacy_is_refused_with_the_reason(wrap: Any) -> None:
    with pytest.raises(fs.InvalidInput, match="a rare client counts 1/p times and is remembered"):
        run(wrap(FedStale(**QUICK)), trainers([0, 1]), 1, record(first_model()))


def test_secure_aggregation_is_refused_in_one_line() -> None:
    for call in ("initialize_parameters", "configure_fit", "aggregate_fit"):
        with pytest.raises(fs.InvalidInput, match=r"legacy workflows such as SecAgg\+: the server needs each client"):
            getattr(FedStale(**QUICK), call)(None)


def test_running_statistics_of_who_is_away_are_remembered(tmp_path: Any) -> None:
    """Two clients with the statistics 0 and 4; the second is away: the mean stays 2, also after a restart."""

    class Statistics(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {name: np.full_like(a, 4.0 * self.client) for name, a in received.items()}

    start = {"w": np.zeros(2), "bn.running_mean": np.zeros(3, "f4"), "bn.num_batches_tracked": np.asarray(0)}
    options: Any = {**QUICK, "min_available_nodes": 1, "min_train_nodes": 1, "checkpoint": tmp_path, "resume": "auto"}
    grid = MemoryGrid({1: Statistics(0), 2: Statistics(1)})
    FedStale(**options).start(grid, record(start), num_rounds=1)
    grid.online = {1}
    strategy = FedStale(**options)
    result = strategy.start(grid, record(start), num_rounds=4)
    np.testing.assert_allclose(arrays(result.arrays)["bn.running_mean"], 2.0)
    assert arrays(result.arrays)["bn.num_batches_tracked"] == 2
    strategy.forget(1)
    again = strategy.start(grid, result.arrays, num_rounds=1)
    np.testing.assert_allclose(arrays(again.arrays)["bn.running_mean"], 0.0)
