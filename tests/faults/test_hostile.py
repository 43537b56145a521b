"""Hostile or broken clients: nothing raises, nothing is poisoned, the offender is counted, named and left out.

The single cases of Flower replies are in tests/flower/test_replies.py; here are random ones, what they found, the
simulation's side. The bounds on what one client can do are in tests/rules/test_guard.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, Error, Message, RecordDict
from numpy.typing import NDArray

import fedstale as fs
from fedstale import participation, rules
from fedstale.checks import printable
from fedstale.flower import FedStale, RuleStrategy
from fedstale.flower.layout import BadArrays, decode
from fedstale.screening import fault, screen
from fedstale.simulation import Simulation
from tests.everything import everything
from tests.flower.grid import MemoryGrid, Model, Trainer, flat, record

from . import hostile
from .hostile_late import LatePair
from .task import flower_task

QUICK: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0, "min_train_nodes": 0, "min_available_nodes": 0}
GOOD: dict[int, Any] = {1000 + client: Trainer(client) for client in range(3)}
BAD = 1666
Matrix = NDArray[np.float64]


@pytest.fixture(autouse=True)
def _task() -> Iterator[None]:
    with flower_task():
        yield


# Random mutations


@pytest.mark.parametrize("mutations", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutated_replies_change_nothing_or_are_sound(mutations: int) -> None:
    counts = hostile.flower(mutations)
    assert counts.total() >= mutations
    assert len(counts) >= 12, "the mutations reach every kind of fault"
    assert counts["taken"] < mutations / 2


@pytest.mark.parametrize("mutations", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutated_replies_that_come_late_change_nothing_or_are_sound(mutations: int) -> None:
    counts = hostile.flower(mutations, pairs=LatePair)
    assert counts.total() >= mutations - 1
    assert counts["late: taken"] > 0
    assert len(counts) >= 10, "the mutations reach every kind of fault"


def test_mutated_rounds_are_refused_without_a_trace() -> None:
    counts = hostile.rule(1200)
    assert counts["applied"] > 200
    assert counts.total() - counts["applied"] > 200


# What was found


def npy(header: str, body: bytes = b"") -> Array:
    text = header.encode().ljust(117) + b"\n"
    return Array("float32", (4,), "numpy.ndarray", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body)


@pytest.mark.parametrize(
    "array",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }", bytes(16)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -2), }", bytes(16)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", bytes(16)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000000000,), }", bytes(16)),
        npy("{'descr': '<f4', 'shape': (4,"),
        npy('{"""'),
        npy("(" * 110),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", bytes(32)),
        Array("float32", (4,), "numpy.ndarray", b"PK\x03\x04" + bytes(100)),
        Array("float32", (4,), "numpy.ndarray", b"\x93NUMPY\x02\x00" + bytes(100)),
        Array("float32", (4,), "numpy.ndarray", b""),
    ],
)
def test_no_bytes_of_an_array_raise_anything_else(array: Array) -> None:
    with pytest.raises(BadArrays, match="cannot be read"):
        decode(array)


class Says(Trainer):
    """A client that reports what it likes."""

    def __init__(self, client: int, **metrics: Any) -> None:
        super().__init__(client, metrics={"client-id": client, **metrics})


def run(nodes: dict[int, Any], rounds: int = 2, model: Model | None = None, **options: Any) -> Any:
    strategy = FedStale(**QUICK, **options)
    result = strategy.start(MemoryGrid(nodes), record(model or hostile.first_model()), num_rounds=rounds)
    return strategy, flat(result.arrays)


@pytest.mark.parametrize("size", [10**400, 1e300, float("inf"), float("nan"), -5, 0])
def test_a_number_of_examples_that_cannot_be_is_not_believed(size: Any) -> None:
    """Two clients with 1e308 examples each make every α_i NaN; 10**400 does not even fit a float."""
    liar = Says(9)
    liar.examples = size
    strategy, model = run({**GOOD, BAD: liar}, weights="sample")
    _, without = run(GOOD, weights="sample")
    assert model.tobytes() == without.tobytes()
    assert {one.node for _, one in strategy.left_out} == {BAD}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bn.running_var", np.array([0.1, -1.0, 0.1], "f4")),
        ("bn.running_var", np.array([0.1, 1e300, 0.1], "f8")),
        ("bn.num_batches_tracked", np.asarray(2**63 - 1, "i8")),
        ("bn.num_batches_tracked", np.asarray(1.5, "f4")),
        ("mask", np.array([3, 4], "i8")),
    ],
)
def test_buffers_beside_the_rule_are_screened_too(name: str, value: NDArray[Any]) -> None:
    class Poisoner(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {**super().model(received, server_round), name: value}

    strategy, model = run({**GOOD, BAD: Poisoner(9)})
    _, without = run(GOOD)
    assert model.tobytes() == without.tobytes()
    assert {one.node for _, one in strategy.left_out} == {BAD}


def test_what_a_client_writes_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    text = "gone\n[INFO] round 3: all is well \x1b[2J" + "x" * 10**6
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy, _ = run({**GOOD, BAD: lambda m: Message(Error(2, text), reply_to=m)}, rounds=1)
    (line,) = [entry.getMessage() for entry in caplog.records if str(BAD) in entry.getMessage()]
    assert line.isprintable()
    assert len(line) < 400
    assert len(strategy.left_out[0][1].reason) <= 300
    assert printable("a\tb", 10) == r"a\tb"


def test_a_node_that_invents_clients_fills_the_memory_only_so_far() -> None:
    class Crowd(Trainer):
        def __call__(self, message: Message) -> Message:
            self.metrics = {"client-id": int(message.metadata.group_id) + 100}
            return super().__call__(message)

    strategy, _ = run({**GOOD, BAD: Crowd(9)}, rounds=12, max_clients=5)
    assert len(strategy.aggregator.identities) == 5
    assert len(strategy.left_out) == 10
    assert all("max_clients = 5" in one.reason for _, one in strategy.left_out)
    assert all("client-id:1" in (one.client or "") for _, one in strategy.left_out)
    with pytest.raises(fs.InvalidInput, match="max_clients = 0"):
        FedStale(max_clients=0)


def test_a_float16_update_that_is_weighted_up_is_no_infinity() -> None:
    rule = fs.UnbiasedFedAvg()
    state = rule.init(fs.Federation(1, 2), model=np.zeros(2, "f4"))
    rule.step(state, fs.Round(0, [0], np.full((1, 2), 1000.0, "f2"), probabilities=[0.001]))
    assert state.model is not None
    np.testing.assert_allclose(state.model, -1e6)


@pytest.mark.parametrize("beta", ["auto", "auto-per-client", "theory"])
@pytest.mark.parametrize(("size", "p"), [(1.0, 1e-300), (1e150, 0.01), (1e153, 1e-5)])
def test_numbers_that_overflow_do_not_spoil_beta_for_ever(beta: str, size: float, p: float) -> None:
    """A sum that became infinite made β NaN, and every later round was refused."""
    rule = fs.FedStale(beta=beta)
    state = rule.init(fs.Federation(2, 3), memory="ram:float64")
    for t in range(4):
        rule.combine(state, fs.Round(t, [0, 1], np.full((2, 3), size), probabilities=[p, 0.5]))
    for t in range(4, 8):
        delta = np.asarray(rule.combine(state, fs.Round(t, [0, 1], np.ones((2, 3)), probabilities=0.5)))
        assert np.isfinite(delta).all()
        assert 0.0 <= state.report["beta"] <= 1.0


def test_every_node_that_was_asked_is_accounted_for() -> None:
    """Contributed, failed, bad, silent, and a stray beside."""

    class Twice(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            return [*replies, replies[0]]

    nodes: dict[int, Any] = {
        **GOOD,
        2000: lambda m: Message(Error(2, "out of memory"), reply_to=m),
        2001: lambda m: Message(RecordDict(), reply_to=m),
        2002: lambda _: None,
    }
    strategy = FedStale(**QUICK)
    result = strategy.start(Twice(nodes), record(hostile.first_model()), num_rounds=1)
    account = strategy.account
    assert account is not None
    assert account.balanced
    assert (account.nodes("failed"), account.nodes("bad"), account.silent) == ((2000,), (2001,), (2002,))
    assert len(account.nodes("stray")) == 1
    numbers = {name: result.train_metrics_clientapp[1][f"fedstale/{name}"] for name in account.numbers()}
    assert numbers == {
        "connected": 6,
        "asked": 6,
        "participants": 3,
        "failed": 1,
        "left_out": 2,
        "conflicts": 0,
        "stray": 1,
        "silent": 1,
    }
    assert [reason["node"] for reason in account.as_dict()["reasons"]] == [one.node for one in account.left_out]


# The simulation's side


def test_screening_says_why() -> None:
    good = np.ones(3, "f4")
    bad = [np.array([1, np.nan, 1], "f4"), np.array([np.inf, 0, 0]), np.full(3, 1e31, "f4"), np.full(3, 1e160)]
    kept, reasons = screen([good, *bad, np.full(3, 60000, "f2"), np.full(3, 1e29, "f4")])
    assert kept == [0, 5, 6]
    assert ["NaN" in reasons[place] for place in (1, 2)] == [True, True]
    assert ["too large" in reasons[place] for place in (3, 4)] == [True, True]
    assert fault(np.full(10**5, 1e28, "f4")) is not None  # the norm counts, not the largest number


class Poisoned:
    """A quadratic trainer; client 1 sends rubbish in every third round."""

    num_params = 4

    def __init__(self, poison: float) -> None:
        self.poison = poison

    def initial(self) -> Matrix:
        return np.zeros(4)

    def updates(self, model: Matrix, clients: Any, round: int, local: Any = None) -> Matrix:
        rows = np.array([0.1 * (model - client) for client in clients]).reshape(len(clients), 4)
        for place, client in enumerate(clients):
            if client == 1 and round % 3 == 0:
                rows[place, 2] = self.poison
        return rows

    def steps_and_lr(self, clients: Any, round: int) -> tuple[Matrix, float]:
        return np.ones(len(clients)), 0.1

    def evaluate(self, model: Matrix) -> Any:
        from fedstale.simulation.interfaces import EvaluationMetrics

        return EvaluationMetrics({"excess_loss": float(model @ model)})


class Without(participation.Bernoulli):
    """The same draws without client 1 in every third round."""

    def available(self, seed: int, round: int) -> Any:
        clients = super().available(seed, round)
        return clients[clients != 1] if round % 3 == 0 else clients


def simulation(process: participation.Process, poison: float, *, leave_out: bool) -> Simulation:
    return Simulation(
        trainer=Poisoned(poison),
        rule=fs.FedStale(),
        participation=participation.Participation.of(process),
        estimator=participation.FedAUEstimator(),
        federation=fs.Federation(4, 4),
        rounds=30,
        leave_out=leave_out,
    )


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e200])
def test_a_simulated_client_with_nonsense_is_left_out(poison: float, caplog: pytest.LogCaptureFixture) -> None:
    p = np.array([1.0, 0.8, 0.5, 0.3])
    with caplog.at_level(logging.WARNING, logger="fedstale"):
        ours = simulation(participation.Bernoulli(p), poison, leave_out=True)
        assert ours.run() == "finished"
    theirs = simulation(Without(p), 0.0, leave_out=True)
    theirs.run()
    assert ours.model.tobytes() == theirs.model.tobytes()
    assert everything(ours.state) == everything(theirs.state)
    left = int(np.nansum(ours.column("left_out")))
    assert left == len(caplog.records) > 3
    assert all("client 1 left out" in entry.getMessage() for entry in caplog.records)


def test_by_default_a_simulation_that_is_not_finite_has_diverged() -> None:
    ours = simulation(participation.Bernoulli(np.ones(4)), np.nan, leave_out=False)
    assert ours.run() == "diverged"
    assert ours.state.round == 0
    assert np.isfinite(ours.model).all()


def test_the_flower_strategy_bounds_and_resumes_with_its_bounds(tmp_path: Path) -> None:
    class Huge(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {n: a + np.float32(1e20) if a.dtype == "f4" else a for n, a in received.items()}

    nodes = {**GOOD, BAD: Huge(9)}
    model: Model = {"w": np.zeros(6, "f4")}
    options: Any = {**QUICK, "clip_norm": 1.0, "max_weight": 3.0}
    strategy = FedStale(**options, checkpoint=tmp_path)
    strategy.start(MemoryGrid(nodes), record(model), num_rounds=2)
    assert strategy.aggregator is not None
    norms = np.linalg.norm(strategy.aggregator.state.memory.rows(range(4)), axis=1)
    assert norms.max() <= 1 + 1e-6
    resumed = FedStale.resume(tmp_path)
    assert (resumed.options["clip_norm"], resumed.options["max_weight"]) == (1.0, 3.0)
    after = resumed.start(MemoryGrid(nodes), record(model), num_rounds=4)
    whole = RuleStrategy(rules.Guarded(fs.FedStale(), clip_norm=1.0, max_weight=3.0), **QUICK)
    same = whole.start(MemoryGrid(nodes), record(model), num_rounds=4)
    assert flat(after.arrays).tobytes() == flat(same.arrays).tobytes()
    assert np.abs(flat(after.arrays)).max() < 20
