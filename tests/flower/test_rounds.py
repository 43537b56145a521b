"""Rounds of a federation whose nodes come, fail, join and go; selection; evaluation; numbers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

import fedstale as fs
from fedstale.flower import FedStale, NobodyAnswered, RuleStrategy, UnbiasedFedAvg
from fedstale.flower import nodes as nodes_module
from fedstale.participation import Forgetting, LeastRecent

from .grid import MemoryGrid, Trainer, first_model, flat, record, round_of, trainers

QUICK: Any = {"min_available_nodes": 0, "min_train_nodes": 0, "fraction_evaluate": 0.0, "max_wait": 0.0}


class Scripted(MemoryGrid):
    """A grid in which the online clients change from round to round."""

    def __init__(self, rounds: list[list[int]]) -> None:
        super().__init__(trainers(range(10)))
        self.rounds = rounds

    def get_nodes(self) -> Any:
        self.online = {1000 + i for i in self.rounds[0]}
        del self.rounds[0]
        return super().get_nodes()


def test_a_round_with_nobody_applies_the_stale_term() -> None:
    strategy = FedStale(beta=0.5, **QUICK)
    result = strategy.start(Scripted([[0, 1], [], []]), record(first_model()), num_rounds=1)
    before, assert_server = flat(result.arrays), strategy.aggregator
    assert assert_server is not None
    stale = assert_server.state.memory.rows([0, 1]).mean(axis=0)
    result = strategy.start(Scripted([[]]), result.arrays, num_rounds=1)
    np.testing.assert_allclose(flat(result.arrays), before - 0.5 * stale, rtol=1e-5, atol=1e-6)
    assert result.train_metrics_clientapp[1]["fedstale/participants"] == 0


def test_a_run_in_which_nobody_ever_answered_fails() -> None:
    with pytest.raises(NobodyAnswered, match="in any of 2 rounds: no node answered"):
        FedStale(**QUICK).start(Scripted([[], []]), record(first_model()), num_rounds=2)


def test_clients_join_and_leave_and_come_back_to_their_row() -> None:
    strategy = FedStale(**QUICK)
    grid = Scripted([[0, 1], [0, 1], [0, 1, 2], [0, 2], [0], [0, 1]])
    result = strategy.start(grid, record(first_model()), num_rounds=6)
    assert strategy.aggregator is not None
    assert strategy.aggregator.identities == ["client-id:0", "client-id:1", "client-id:2"]
    assert strategy.aggregator.state.last_seen.tolist()[:3] == [5, 5, 3]
    numbers = result.train_metrics_clientapp
    assert [numbers[t]["fedstale/known"] for t in range(1, 7)] == [2, 2, 3, 3, 3, 3]
    assert [numbers[t]["fedstale/staleness_max"] for t in range(1, 7)] == [0, 1, 1, 1, 2, 3]
    # FedAU: client 1 came in rounds 1, 2, 3 and 6, so that its intervals were 1, 1, 1 and 3.
    p = strategy.probabilities.values(strategy.aggregator.state.estimator, np.arange(3), strategy.aggregator.identities)
    np.testing.assert_allclose(p, [1.0, 4 / 6, 1.0])
    beta = numbers[6]["fedstale/beta"]
    assert isinstance(beta, float)
    assert 0.0 <= beta <= 1.0


def test_who_is_absent_for_whatever_reason_has_a_smaller_probability() -> None:
    """Client 1 fails in two rounds of three; client 2 is only asked, and never answers."""

    class Failing(Trainer):
        def __call__(self, message: Message) -> Message:
            if round_of(message) % 3:
                raise_nan = super().__call__(message)
                raise_nan.content["arrays"] = record({k: a * np.nan for k, a in first_model().items()})
                return raise_nan
            return super().__call__(message)

    strategy = UnbiasedFedAvg(**QUICK, late_for=0)
    grid = MemoryGrid({1: Trainer(0), 2: Failing(1), 3: lambda _: None})
    result = strategy.start(grid, record(first_model()), num_rounds=12)
    assert strategy.aggregator is not None
    p = strategy.probabilities.values(strategy.aggregator.state.estimator, np.arange(2), strategy.aggregator.identities)
    np.testing.assert_allclose(p, [1.0, 4 / 10])  # it joined in round 3: intervals 1, 3, 3, 3
    assert result.train_metrics_clientapp[12]["fedstale/asked"] == 3
    assert result.train_metrics_clientapp[12]["fedstale/connected"] == 3


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, 10),
        ({"fraction_train": 0.35}, 3),
        ({"fraction_train": 0.1, "min_train_nodes": 4}, 4),
        ({"selection": 7}, 7),
    ],
)
def test_selection_is_separate_from_availability(options: dict[str, Any], asked: int) -> None:
    def asked_in(seed: int) -> list[set[int]]:
        strategy = FedStale(**{**QUICK, **options}, seed=seed)
        grid = MemoryGrid(trainers(range(10)))
        result = strategy.start(grid, record(first_model()), num_rounds=4)
        assert [result.train_metrics_clientapp[t]["fedstale/asked"] for t in range(1, 5)] == [asked] * 4
        groups = [m.metadata.group_id for m in grid.sent]
        return [
            {m.metadata.dst_node_id for m, g in zip(grid.sent, groups, strict=True) if g == str(t)} for t in range(1, 5)
        ]

    assert asked_in(0) == asked_in(0)
    if asked < 10:
        assert asked_in(0) != asked_in(1)
        assert asked_in(0)[0] != asked_in(0)[1]


def test_a_selection_of_the_library_sees_who_came_last() -> None:
    strategy = FedStale(**QUICK, selection=LeastRecent(5))
    strategy.start(MemoryGrid(trainers(range(10))), record(first_model()), num_rounds=4)
    assert strategy.aggregator is not None
    assert sorted(strategy.aggregator.state.last_seen.tolist()[:10]) == [2] * 5 + [3] * 5


def test_the_first_round_waits_for_nodes_and_later_ones_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "_POLL", 0.01)
    options = {**QUICK, "min_available_nodes": 2, "max_wait": 0.05}
    grid = Scripted([[], [0], [0, 1], *[[0]] * 1000])
    result = FedStale(**options).start(grid, record(first_model()), num_rounds=2)
    assert [result.train_metrics_clientapp[t]["fedstale/participants"] for t in (1, 2)] == [2, 1]


def test_work_that_nobody_waits_for_expires() -> None:
    for late_for in (0, 2):
        grid = MemoryGrid(trainers([0, 1]))
        FedStale(late_for=late_for).start(grid, record(first_model()), num_rounds=1, timeout=77.0)
        ttls = {message.metadata.message_type: message.metadata.ttl for message in grid.sent}
        assert ttls == {"train": (1 + late_for) * 77.0, "evaluate": 77.0}


def test_evaluation_at_the_clients_and_at_the_server() -> None:
    seen: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"norm": float(np.linalg.norm(flat(arrays)))})

    strategy = FedStale(evaluate_metrics_aggr_fn=lambda contents, key: MetricRecord({"nodes": len(contents)}))
    grid = MemoryGrid({**trainers([0, 1]), 7: lambda _: None})
    result = strategy.start(grid, record(first_model()), num_rounds=2, evaluate_fn=evaluate)
    assert seen == [0, 1, 2]
    assert [result.evaluate_metrics_clientapp[t]["nodes"] for t in (1, 2)] == [2, 2]
    assert result.evaluate_metrics_serverapp[2]["norm"] == float(np.linalg.norm(flat(result.arrays)))


def test_a_model_that_was_changed_between_rounds_is_where_updates_are_measured_from() -> None:
    from flwr.app import ConfigRecord

    strategy, grid = UnbiasedFedAvg(server_lr=0.5, **QUICK), MemoryGrid({1: Trainer(3)})
    model = record(first_model())
    for t in (1, 2):
        doubled = record({name: 2 * array.numpy() for name, array in model.items()})
        replies = grid.send_and_receive(strategy.configure_train(t, doubled, ConfigRecord(), grid))
        model, _ = strategy.aggregate_train(t, replies)  # type: ignore[assignment]
        reply = np.concatenate([np.ravel(a) for a in grid.nodes[1].replies[t].values()])  # type: ignore[attr-defined]
        np.testing.assert_allclose(flat(model), 0.5 * flat(doubled) + 0.5 * reply, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"probabilities": "fedua"}, "unknown probabilities 'fedua': did you mean fedau"),
        ({"probabilities": "known"}, "a mapping"),
        ({"probabilities": 0.0}, "probabilities = 0.0"),
        ({"probabilities": {3: 1.5}}, r"probabilities\[3\] = 1.5"),
        ({"weights": "samples"}, "weights = 'samples'"),
        ({"memory": "tape"}, "memory = 'tape'"),
        ({"identity": "metric:"}, "identity = 'metric:'"),
        ({"fraction_train": 1.5}, "fraction_train = 1.5"),
        ({"min_train_nodes": -1}, "min_train_nodes = -1"),
        ({"selection": 0}, "selection = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"max_wait": -1.0}, "max_wait = -1.0"),
        ({"max_wait": "abc"}, "max_wait = 'abc': must be a number of seconds"),
        ({"max_wait": float("nan")}, "max_wait = nan"),
        ({"proximal_mu": "x"}, "proximal_mu = 'x': must be a finite number"),
        ({"proximal_mu": -1}, "proximal_mu = -1"),
        ({"averaged_buffers": "*bn*"}, r"averaged_buffers = '\*bn\*': must be a list of patterns"),
        ({"averaged_buffers": None}, "averaged_buffers = None"),
        ({"averaged_buffers": [3]}, r"averaged_buffers = \[3\]"),
        ({"train_metrics_aggr_fn": "mean"}, "train_metrics_aggr_fn = 'mean': must be a function"),
        ({"evaluate_metrics_aggr_fn": 3}, "evaluate_metrics_aggr_fn = 3: must be a function"),
        ({"num_clients": 0}, "num_clients = 0"),
        ({"beta": 2.0}, "beta = 2.0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(fs.InvalidInput, match=text):
        FedStale(**options)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="'fraction_fit': did you mean fraction_train"):
        FedStale(fraction_fit=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'bet': did you mean beta"):
        FedStale(bet=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'zzz'$"):
        FedStale(zzz=0.5)  # type: ignore[call-arg]


def test_every_estimator_runs() -> None:
    for spec in ("fedau", "fedau-nocutoff", "beta", "forgetting", "daily", 0.5, Forgetting(decay=0.9)):
        strategy = RuleStrategy(fs.FedStale(beta=1.0), probabilities=spec, num_clients=2, **QUICK)
        result = strategy.start(Scripted([[0, 1], [1], [0]]), record(first_model()), num_rounds=3)
        assert np.isfinite(flat(result.arrays)).all()
        p = result.train_metrics_clientapp[3]["fedstale/p_min"]
        assert isinstance(p, float)
        assert 0.0 < p <= 1.0


@pytest.mark.parametrize(
    "rule", [fs.rules.MIFA(), fs.rules.AFACD(max_delay=0), fs.rules.FedAU(), fs.rules.ServerAdam(fs.FedStale())]
)
def test_rules_that_leave_local_training_alone_run(rule: fs.Rule, tmp_path: Path) -> None:
    grid = Scripted([[0, 1], [1, 2], [0], [0, 1, 2]])
    RuleStrategy(rule, **QUICK, checkpoint=tmp_path).start(grid, record(first_model()), num_rounds=2)
    result = RuleStrategy.resume(tmp_path).start(grid, record(first_model()), num_rounds=4)
    assert np.isfinite(flat(result.arrays)).all()


@pytest.mark.parametrize("rule", [fs.rules.Scaffold(), fs.rules.FedProx(), fs.rules.FedDyn()])
def test_rules_that_change_local_training_are_refused(rule: fs.Rule) -> None:
    with pytest.raises(fs.InvalidInput, match="changes the local training"):
        RuleStrategy(rule, **QUICK).start(Scripted([[0]]), record(first_model()), num_rounds=1)


def test_a_rule_that_selects_by_itself_does() -> None:
    strategy = RuleStrategy(fs.rules.FedLaAvg(m=3), **QUICK)
    result = strategy.start(MemoryGrid(trainers(range(10))), record(first_model()), num_rounds=3)
    assert [result.train_metrics_clientapp[t]["fedstale/asked"] for t in (1, 2, 3)] == [3, 3, 3]
    assert result.train_metrics_clientapp[3]["fedstale/known"] == 9


def test_waiting_costs_nothing_when_nodes_are_there() -> None:
    began = time.monotonic()
    FedStale().start(MemoryGrid(trainers([0, 1])), record(first_model()), num_rounds=3)
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("beta", [1.0, 0.5, "auto-per-client"])
def test_the_memory_follows_a_client_whose_number_of_examples_changes(beta: Any) -> None:
    """With everybody present the stale term and its correction cancel only if both use the n_i of today."""

    class Changing(Trainer):
        def __call__(self, message: Message) -> Message:
            if self.client == 1:
                self.examples = [10, 40, 5, 5, 100][round_of(message) - 1]
            return super().__call__(message)

    grid = MemoryGrid({1000 + i: Changing(i) for i in range(3)})
    strategy = FedStale(beta=beta, weights="sample", **QUICK)
    ours = strategy.start(grid, record(first_model()), num_rounds=5)
    theirs = FedAvg(fraction_evaluate=0.0).start(grid, record(first_model()), num_rounds=5)
    np.testing.assert_allclose(flat(ours.arrays), flat(theirs.arrays), rtol=2e-6, atol=2e-6)
    assert strategy.aggregator is not None
    assert np.asarray(strategy.aggregator.state.federation.sizes).tolist()[:3] == [10.0, 100.0, 10.0]
