"""The strategy is the library's rule, and with everybody present it is Flower's FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

import fedstale as fs
from fedstale.flower import FedStale, RuleStrategy, TemperedFedStale, UnbiasedFedAvg, UnbiasedFedVARP
from fedstale.participation import FedAUEstimator
from tests.combinations import combinations

from .grid import MemoryGrid, Model, Trainer, first_model, flat, record, trainers

ROUNDS = 30
CLIENTS = 6


def present(server_round: int) -> list[int]:
    """Client 0 always comes, the others seldom; nobody comes in round 7, and client 5 joins in round 12."""
    if server_round == 7:
        return []
    chance = np.random.default_rng([99, server_round])
    p = [1.0, 0.8, 0.5, 0.3, 0.2, 0.6 if server_round >= 12 else 0.0]
    return [i for i in range(CLIENTS) if chance.random() < p[i]]


def vector(model: Model) -> NDArray[np.float32]:
    return np.concatenate([np.ravel(a) for a in model.values()]).astype(np.float32)


def by_the_library(rule: fs.Rule, weights: Any, sizes: dict[int, int]) -> NDArray[Any]:
    """Feed the library's rule with the same clients' updates; clients get rows in the order of appearance."""
    model = first_model()
    clients = {i: Trainer(i) for i in range(CLIENTS)}
    order: list[int] = []
    state: fs.State | None = None
    estimator = FedAUEstimator()
    for t in range(1, ROUNDS + 1):
        came = present(t)
        order += [i for i in came if i not in order]
        grown = [float(sizes[i]) for i in order] if weights == "sample" else None
        if state is None:
            federation = fs.Federation(len(order), vector(model).size, weights=weights, sizes=grown)
            state = rule.init(federation, model=vector(model))
            state.estimator = estimator.init(len(order))
        state.grow(len(order), grown)
        assert state.estimator is not None
        estimator.grow(state.estimator, len(order))
        rows = np.array(sorted(order.index(i) for i in came), dtype=np.int64)
        w = vector(model)
        updates = np.array([w - vector(clients[order[row]].model(model, t)) for row in rows], dtype=np.float32)
        p = estimator.probabilities(state.estimator, rows)
        rule.step(state, fs.Round(t - 1, rows, updates.reshape(len(rows), w.size), probabilities=p))
        estimator.observe(state.estimator, rows, t - 1)
        assert state.model is not None
        model, start = {}, 0
        for name, array in first_model().items():
            model[name] = state.model[start : start + array.size].reshape(array.shape).copy()
            start += array.size
    return vector(model)


def by_flower(strategy: RuleStrategy, sizes: dict[int, int]) -> NDArray[Any]:
    nodes = {1000 + i: Trainer(i, examples=sizes[i]) for i in range(CLIENTS)}
    grid = MemoryGrid(nodes)  # type: ignore[arg-type]
    model = record(first_model())
    for t in range(1, ROUNDS + 1):
        grid.online = {1000 + i for i in present(t)}
        grid.reverse = t % 2 == 0
        replies = grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        new, _ = strategy.aggregate_train(t, replies)
        assert new is not None
        model = new
    return flat(model)


SAME: list[tuple[Any, fs.Rule]] = [
    (TemperedFedStale, fs.TemperedFedStale()),
    (FedStale, fs.FedStale()),
    (UnbiasedFedVARP, fs.UnbiasedFedVARP()),
    (UnbiasedFedAvg, fs.UnbiasedFedAvg()),
    (lambda **o: FedStale(beta=0.5, server_lr=0.7, **o), fs.FedStale(beta=0.5, server_lr=0.7)),
    (lambda **o: FedStale(beta="auto-per-client", **o), fs.FedStale(beta="auto-per-client")),
    (lambda **o: RuleStrategy(fs.FedVARP(), **o), fs.FedVARP()),
    (lambda **o: RuleStrategy(fs.FedAvg(), **o), fs.FedAvg()),
]


@pytest.mark.parametrize(("pair", "weights"), combinations(SAME, ["sample", "client"]))
def test_thirty_rounds_equal_the_library(pair: tuple[Any, fs.Rule], weights: str) -> None:
    strategy, rule = pair
    sizes = {i: 10 * (i + 1) for i in range(CLIENTS)}
    made = strategy(weights=weights, max_wait=0.0, min_available_nodes=0, min_train_nodes=0)
    found = by_flower(made, sizes)
    expected = by_the_library(rule, weights, sizes)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(found - flat(record(first_model()))).max() > 0.1


@pytest.mark.parametrize("strategy", [TemperedFedStale, FedStale, UnbiasedFedVARP, UnbiasedFedAvg])
def test_everybody_present_equals_flowers_fedavg(strategy: Any) -> None:
    """Weighted by the number of examples, as FedAvg does, whatever beta is."""
    nodes = {1000 + i: Trainer(i, examples=10 * (i + 1)) for i in range(CLIENTS)}
    ours = strategy(weights="sample").start(MemoryGrid(nodes), record(first_model()), num_rounds=10)  # type: ignore[arg-type]
    theirs = FedAvg().start(MemoryGrid(nodes), record(first_model()), num_rounds=10)  # type: ignore[arg-type]
    np.testing.assert_allclose(flat(ours.arrays), flat(theirs.arrays), rtol=2e-6, atol=2e-6)
    for t in range(1, 11):
        assert ours.train_metrics_clientapp[t]["loss"] == pytest.approx(theirs.train_metrics_clientapp[t]["loss"])
        assert "client-id" not in ours.train_metrics_clientapp[t]


def test_a_reply_of_float64_for_a_float32_model_is_taken() -> None:
    class Wide(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {name: a.astype(np.float64) for name, a in super().model(received, server_round).items()}

    wide = FedStale().start(MemoryGrid({1: Wide(0), 2: Wide(1)}), record(first_model()), num_rounds=3)
    plain = FedStale().start(MemoryGrid({1: Trainer(0), 2: Trainer(1)}), record(first_model()), num_rounds=3)
    np.testing.assert_array_equal(flat(wide.arrays), flat(plain.arrays))


def test_known_probabilities_are_used_per_client() -> None:
    p = {0: 1.0, 1: 0.25}
    strategy = UnbiasedFedAvg(probabilities=p, min_available_nodes=0, num_clients=2)
    start = first_model()
    result = strategy.start(MemoryGrid(trainers([0, 1])), record(start), num_rounds=1)
    w = vector(start)
    updates = {i: w - vector(Trainer(i).model(start, 1)) for i in p}
    expected = w - sum(updates[i] / (2 * p[i]) for i in p)
    np.testing.assert_allclose(flat(result.arrays), expected, rtol=1e-6)
