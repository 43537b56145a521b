"""Clients that leave, by silence (`forget_after`) or by right (`strategy.forget`), and the ghosts of who restarts."""

from __future__ import annotations

import copy
import logging
from collections import deque
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.proto.node_pb2 import NodeInfo

import fedstale as fs
from fedstale.flower import FedStale, RuleStrategy, TemperedFedStale, UnbiasedFedAvg
from fedstale.flower.members import Members
from fedstale.store import Store

from .ghosts import SIX, Restarting, run
from .grid import MemoryGrid, Trainer, first_model, flat, record, trainers
from .test_held_memory import Device

QUICK: Any = {"min_available_nodes": 0, "min_train_nodes": 0, "fraction_evaluate": 0.0, "max_wait": 0.0}


def rounds(strategy: RuleStrategy, grid: MemoryGrid, online: list[list[int]], first: int = 1) -> list[dict[str, Any]]:
    """Run rounds in which these clients are there; return their numbers."""
    model = record(first_model()) if first == 1 else strategy.current_arrays()
    numbers = []
    for t, who in enumerate(online, first):
        grid.online = {1000 + i for i in who}
        replies = grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        new, metrics = strategy.aggregate_train(t, replies)
        assert new is not None
        model = new
        strategy.settle(model)
        numbers.append({name.removeprefix("fedstale/"): value for name, value in (metrics or {}).items()})
    return numbers


KINDS = pytest.mark.parametrize("kind", [TemperedFedStale, FedStale])
ONE_NODE: Any = {**QUICK, "min_available_nodes": 1, "min_train_nodes": 1}


@KINDS
def test_a_device_that_restarts_is_served_with_an_identity_and_taken_for_who_is_away_without(kind: Any) -> None:
    """The ghost experiment, shortened; the optimum is 2.5."""
    for reports in (True, False):
        strategy = kind(**ONE_NODE)
        assert run(strategy, Restarting(0, reports=reports), 150) == pytest.approx(2.5, abs=0.1)
        assert len(strategy.aggregator.known) == len(strategy.aggregator.identities) == 4


@KINDS
def test_of_six_devices_that_restart_none_is_counted_twice(kind: Any) -> None:
    """The optimum is 5: without an identity what is remembered is mixed up, but nearer to it than FedAvg's 1.7."""
    known, mixed = kind(**ONE_NODE), kind(**ONE_NODE)
    assert run(known, Restarting(0, reports=True, rare=SIX), 200) == pytest.approx(5.0, abs=0.1)
    assert 3.0 < run(mixed, Restarting(0, reports=False, rare=SIX), 200) < 5.5
    assert len(mixed.aggregator.known) <= 10


class ThrowAwayKeys(Restarting):
    """Every start brings a key of its own, which nobody has registered: Flower does so without authentication."""

    def get_nodes(self) -> Any:
        return [NodeInfo(node_id=i, public_key=b"made up for %d" % i) for i in self.online]


@KINDS
def test_a_key_that_nobody_registered_finds_nobody_again(kind: Any) -> None:
    """The ghost experiment with identity="key": the tempered rule came to 8.85 with 61 clients."""
    strategy = kind(**ONE_NODE, identity="key")
    assert run(strategy, ThrowAwayKeys(0, reports=False), 150) == pytest.approx(2.5, abs=0.1)
    assert len(strategy.aggregator.known) == 4
    rounds(strategy, MemoryGrid(trainers(range(3))), [[0, 1, 2]] * 51, first=151)
    assert len(strategy.aggregator.known) == 3  # the others were forgotten


@pytest.mark.parametrize("options", [{"forget_after": None}, {"forget_after": 30}, {"identity": "node"}])
def test_who_says_what_node_ids_are_worth_is_taken_at_their_word(options: dict[str, Any]) -> None:
    strategy = FedStale(**ONE_NODE, **options)
    run(strategy, Restarting(0, reports=False), 60)
    assert strategy.aggregator is not None
    assert len(strategy.aggregator.identities) > 8


def test_places_are_taken_only_beyond_what_was_there_at_once_and_by_nodes_only() -> None:
    members = Members(["node:1", "client-id:2", "node:3", "node:4", ""])
    members.last_heard = np.array([7, 0, 5, 5, 0])
    assert members.succeed(["node:3", "client-id:8", "node:9"], 4, there=[2]) == {}
    assert members.succeed(["node:9"], 3, there=[2]) == {"node:4": "node:9"}
    assert members["node:9"] == 3
    assert "node:4" not in members
    assert members.identities == ["node:1", "client-id:2", "node:3", "node:9", ""]
    assert members.succeed(["node:20", "node:21", "node:22"], 3, there=[2, 3]) == {"node:1": "node:20"}
    assert members.add(["node:20", "node:21"], 9) == [5]


def test_with_known_n_so_many_are_remembered() -> None:
    strategy = FedStale(**ONE_NODE, num_clients=6)
    run(strategy, Restarting(0, reports=False), 60)
    assert strategy.aggregator is not None
    assert len(strategy.aggregator.known) == 6


def test_who_is_silent_for_long_leaves_is_counted_and_comes_back_as_new(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedStale(**QUICK, forget_after=3)
    grid = MemoryGrid(trainers(range(3)))
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, logger="flwr"):
        numbers = rounds(strategy, grid, [[0, 1, 2], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1, 2]])
    assert [n["known"] for n in numbers] == [3, 3, 3, 2, 2, 3]
    assert [n["forgotten"] for n in numbers] == [0, 0, 0, 1, 0, 0]
    assert any("forgotten: client-id:2" in line.getMessage() for line in caplog.records)
    aggregator = strategy.aggregator
    assert aggregator is not None
    assert aggregator.identities == ["client-id:0", "client-id:1", "", "client-id:2"]
    np.testing.assert_allclose(aggregator.state.federation.alpha(), [1 / 3, 1 / 3, 0, 1 / 3, 0])
    p = strategy.probabilities.values(aggregator.state.estimator, np.array([3]), ["client-id:2"])
    assert p[0] == 1.0


def test_who_is_connected_is_not_gone_though_it_is_never_asked() -> None:
    strategy = FedStale(**{**QUICK, "min_train_nodes": 1}, forget_after=3, fraction_train=0.01)
    numbers = rounds(strategy, MemoryGrid(trainers(range(6))), [[*range(6)]] * 30)
    assert sum(n["forgotten"] for n in numbers) == 0


@pytest.mark.parametrize("weights", ["client", "sample"])
@pytest.mark.parametrize("make", [FedStale, UnbiasedFedAvg])
def test_after_somebody_left_the_rest_go_on_as_if_alone(make: Any, weights: str) -> None:
    """With everybody present who is left, the next model is their mean, whatever the one who left had done."""
    strategy = make(**QUICK, weights=weights, forget_after=2)
    grid = MemoryGrid({1000 + i: Trainer(i, examples=10 * (i + 1)) for i in range(4)})
    rounds(strategy, grid, [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]])
    before = flat(strategy.current_arrays())
    rounds(strategy, grid, [[0, 1, 2]], first=4)
    sizes = np.array([10.0, 20.0, 30.0]) if weights == "sample" else np.ones(3)
    replies = [np.concatenate([np.ravel(a) for a in grid.nodes[1000 + i].replies[4].values()]) for i in range(3)]  # type: ignore[attr-defined]
    np.testing.assert_allclose(flat(strategy.current_arrays()), np.average(replies, axis=0, weights=sizes), rtol=1e-5)
    assert np.abs(flat(strategy.current_arrays()) - before).max() > 0


def test_everybody_may_leave_and_others_come() -> None:
    strategy = FedStale(**QUICK, forget_after=2)
    grid = MemoryGrid(trainers(range(6)))
    numbers = rounds(strategy, grid, [[0, 1], [], [], [], [3], [3, 4]])
    assert [n["known"] for n in numbers] == [2, 2, 0, 0, 1, 2]
    assert strategy.aggregator is not None
    np.testing.assert_allclose(strategy.aggregator.state.federation.alpha().sum(), 1.0)
    assert np.isfinite(flat(strategy.current_arrays())).all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_update_stays_unbiased_for_the_objective_of_those_who_are_in_it(beta: float) -> None:
    """Summed over all participation sets: E Δ = Σ α_i Δ_i over those who are left, whatever was in the memory."""
    chance = np.random.default_rng(0)
    rule, p = fs.FedStale(beta=beta), np.array([0.9, 0.3, 0.5, 0.2])
    state = rule.init(fs.Federation(4, 3), model=np.zeros(3))
    rule.step(state, fs.Round(0, [0, 1, 2, 3], chance.normal(size=(4, 3)), probabilities=p))
    state.forget(np.array([1]))
    left, updates = [0, 2, 3], chance.normal(size=(4, 3))
    mean = np.zeros(3)
    for present in product([False, True], repeat=3):
        who = [i for i, here in zip(left, present, strict=True) if here]
        chances = np.prod([p[i] if here else 1 - p[i] for i, here in zip(left, present, strict=True)])
        round_ = fs.Round(1, who, updates[who], probabilities=p[who])
        mean += chances * np.asarray(rule.combine(copy.deepcopy(state), round_))
    np.testing.assert_allclose(mean, updates[left].mean(axis=0), atol=1e-12)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize("afterwards", [False, True])
def test_a_client_that_is_erased_leaves_nothing_behind(memory: str, afterwards: bool, tmp_path: Path) -> None:
    """Rows (of this and of earlier rounds), identity and statistics: not in RAM, checkpoint or store."""
    where = "ram" if memory == "ram" else f"disk:{tmp_path / 'rows'}"
    options: Any = {**QUICK, "memory": where, "checkpoint": tmp_path / "c", "resume": "auto", "store": tmp_path / "s"}
    nodes: Any = {i: Trainer(i, metrics={"client-id": 777_000_000 + i}) for i in range(3)}
    grid = MemoryGrid(nodes)
    strategy = TemperedFedStale(**options)
    rows = []

    def look(server_round: int, arrays: ArrayRecord) -> None:
        assert strategy.aggregator is not None
        if server_round:
            rows.append(strategy.aggregator.state.memory.rows([1])[0].astype(np.float32).tobytes())

    strategy.start(grid, record(first_model()), num_rounds=5, evaluate_fn=look)
    aggregator = strategy.aggregator
    assert aggregator is not None
    others = aggregator.state.memory.rows([0, 2]).astype(np.float32)
    assert sum(row in everything(tmp_path) for row in rows) > 1  # rows of earlier rounds lie in spare slots
    assert b"777000001" in everything(tmp_path)
    if afterwards:  # another process, which only erases
        aggregator.state.close()
        strategy = TemperedFedStale(**options)
    strategy.forget(777000001)
    files = everything(tmp_path)
    assert not any(row in files for row in rows)
    assert b"777000001" not in files
    assert others[0].tobytes() in files
    aggregator = strategy.aggregator
    assert aggregator is not None
    assert aggregator.identities == ["client-id:777000000", "", "client-id:777000002"]
    assert not aggregator.state.memory.rows([1]).any()
    np.testing.assert_array_equal(aggregator.state.memory.rows([0, 2]).astype(np.float32), others)
    with Store.open(tmp_path / "s", read_only=True) as store:
        stored = store.run(store.runs()[0].id)
        assert stored.info().status == "finished"
        assert [who.tolist() for who in stored.participants().values()] == [[0, 2]] * 5
        p = stored.client_metrics("probability")[1]
        assert np.isnan(p[:, 1]).all()
        assert np.isfinite(p[:, [0, 2]]).all()
    aggregator.state.close()
    grid.online = {0, 2}
    resumed = TemperedFedStale(**options)
    result = resumed.start(grid, record(first_model()), num_rounds=7)
    assert [result.train_metrics_clientapp[t]["fedstale/known"] for t in (5, 6, 7)] == [3, 2, 2]
    assert np.isfinite(flat(result.arrays)).all()


def test_forgetting_during_a_run_and_somebody_who_is_not_there(tmp_path: Path) -> None:
    strategy = TemperedFedStale(**QUICK)
    rounds(strategy, MemoryGrid(trainers(range(3))), [[0, 1, 2]])
    strategy.forget(2)
    with pytest.raises(fs.InvalidInput, match="client = 2: must be one of the 2 known clients"):
        strategy.forget(2)
    rounds(strategy, MemoryGrid(trainers(range(3))), [[0, 1, 2]], first=2)
    assert strategy.aggregator is not None
    assert strategy.aggregator.identities == ["client-id:0", "client-id:1", "", "client-id:2"]


def reachable(value: object, seen: set[int]) -> str:
    """Return the texts of everything that an object of ours holds."""
    if id(value) in seen:
        return ""
    seen.add(id(value))
    if isinstance(value, dict):
        return " ".join(reachable(inner, seen) for pair in value.items() for inner in pair)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return " ".join(reachable(inner, seen) for inner in value)
    ours = type(value).__module__.startswith("fedstale")
    return reachable(vars(value), seen) if ours and hasattr(value, "__dict__") else repr(value)


@pytest.mark.parametrize("memory", ["ram", "clients"])
def test_the_name_of_who_was_erased_is_gone_from_memory(memory: str) -> None:
    """The account of the last round kept it, and so did who holds its memory itself."""
    nodes: Any = {i: Trainer(i, metrics={"client-id": 777_000_000 + min(i, 1)}) for i in range(3)}
    strategy = FedStale(**QUICK, memory=memory)
    if memory == "clients":
        nodes = {i: Device(i, config={"client-id": 777_000_000 + min(i, 1)}) for i in range(3)}
    strategy.start(MemoryGrid(nodes), record(first_model()), num_rounds=2)
    assert "777000001" in reachable(strategy, set())
    assert strategy.account is not None
    assert strategy.account.left_out
    strategy.forget(777000001)
    assert "777000001" not in reachable(strategy, set())
    assert strategy.account.balanced


def test_a_resumed_run_knows_since_when_somebody_is_silent(tmp_path: Path) -> None:
    options: Any = {**QUICK, "forget_after": 4, "checkpoint": tmp_path, "resume": "auto"}
    strategy, grid = TemperedFedStale(**options), MemoryGrid(trainers(range(3)))
    rounds(strategy, grid, [[0, 1, 2], [0, 1], [0, 1]])
    strategy.unlock()
    resumed = TemperedFedStale(**options)
    resumed.prepare(record(first_model()))
    assert [n["known"] for n in rounds(resumed, grid, [[0, 1], [0, 1], [0, 1]], first=4)] == [3, 2, 2]


@pytest.mark.parametrize("memory", ["lowrank:2", "clustered:2"])
def test_a_memory_that_mixes_clients_cannot_forget_one(memory: str) -> None:
    """The default ended the run in round 52, and a refused forget() had removed half of the client."""
    with pytest.raises(fs.InvalidInput, match=r"forget_after = 1: .*cannot be taken out"):
        FedStale(**QUICK, memory=memory, forget_after=1)
    strategy, grid = FedStale(**QUICK, memory=memory), MemoryGrid(trainers(range(3), metrics={}))
    rounds(strategy, grid, [[0, 1, 2], *[[0, 1]] * 55])
    aggregator = strategy.aggregator
    assert aggregator is not None
    assert aggregator.identities == ["node:1000", "node:1001", "node:1002"]
    alpha, last_seen = aggregator.state.federation.alpha(), aggregator.state.last_seen.copy()
    with pytest.raises(fs.InvalidInput, match="cannot be taken out"):
        strategy.forget("node:1002")
    with pytest.raises(fs.InvalidInput, match="cannot be taken out"):
        aggregator.state.forget(np.array([2]))
    assert aggregator.identities == ["node:1000", "node:1001", "node:1002"]
    assert strategy.identity.nodes[1002] == "node:1002"
    np.testing.assert_array_equal(aggregator.state.federation.alpha(), alpha)
    np.testing.assert_array_equal(aggregator.state.last_seen, last_seen)
    rounds(strategy, grid, [[0, 1, 2]], first=57)
