"""Hostile or broken clients: nothing raises, nothing is poisoned, the offender is counted, named and left out.

The single cases of Flower replies are in tests/flower/test_replies.py; here are random ones, what they found, the
simulation's side, and the two bounds (norm and weight) with the bias that they bring.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

import fedstale as fs
from fedstale import participation, rules
from fedstale.flower import FedStale, RuleStrategy
from fedstale.flower.layout import BadArrays, decode
from fedstale.flower.replies import printable
from fedstale.rules.guard import clip, clip_factors
from fedstale.screening import fault, screen
from fedstale.simulation import Simulation, settings
from tests.enumeration import participation_sets
from tests.flower.grid import MemoryGrid, Model, Trainer, flat, record

from . import hostile
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


def test_mutated_replies_change_nothing_or_are_sound() -> None:
    counts = hostile.flower(800)
    assert counts.total() >= 800
    assert len(counts) >= 12, "the mutations reach every kind of fault"
    assert counts["taken"] < 400


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
    assert printable("a\tb", 10) == "a?b"


def test_metrics_that_nobody_can_average_do_not_end_the_federation() -> None:
    def choke(contents: Any, key: str) -> MetricRecord:
        raise KeyError("accuracy")

    strategy = FedStale(**QUICK, train_metrics_aggr_fn=choke)
    result = strategy.start(MemoryGrid(GOOD), record(hostile.first_model()), num_rounds=2)
    assert result.train_metrics_clientapp[2]["fedstale/participants"] == 3


def test_a_node_that_invents_clients_fills_the_memory_only_so_far() -> None:
    class Crowd(Trainer):
        def __call__(self, message: Message) -> Message:
            self.metrics = {"client-id": int(message.metadata.group_id) + 100}
            return super().__call__(message)

    strategy, _ = run({**GOOD, BAD: Crowd(9)}, rounds=12, max_clients=5)
    assert len(strategy.server.identities) == 5
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

    def pace(self, clients: Any, round: int) -> tuple[Matrix, float]:
        return np.ones(len(clients)), 0.1

    def evaluate(self, model: Matrix) -> Any:
        from fedstale.simulation.loop import Evaluation

        return Evaluation({"excess_loss": float(model @ model)})


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
        estimator=participation.FedAU(),
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
    everybody = np.arange(4)
    assert ours.state.memory.rows(everybody).tobytes() == theirs.state.memory.rows(everybody).tobytes()
    assert ours.state.memory.total.tobytes() == theirs.state.memory.total.tobytes()
    assert ours.state.scalars == theirs.state.scalars
    assert ours.state.estimator is not None
    assert theirs.state.estimator is not None
    for name, column in ours.state.estimator.arrays().items():
        assert column.tobytes() == theirs.state.estimator.arrays()[name].tobytes()
    left = int(np.nansum(ours.column("left_out")))
    assert left == len(caplog.records) > 3
    assert all("client 1 left out" in entry.getMessage() for entry in caplog.records)


def test_by_default_a_simulation_that_is_not_finite_has_diverged() -> None:
    ours = simulation(participation.Bernoulli(np.ones(4)), np.nan, leave_out=False)
    assert ours.run() == "diverged"
    assert ours.state.round == 0
    assert np.isfinite(ours.model).all()


# The bounds


N, D = 5, 3
P = np.array([1.0, 0.6, 0.3, 0.05, 0.01])
CHANCE = np.random.default_rng(11)
H, UPDATES = CHANCE.normal(size=(N, D)), CHANCE.normal(size=(N, D))
ALPHA = CHANCE.dirichlet(np.ones(N))


def expected(rule: fs.Rule) -> tuple[Matrix, Matrix]:
    """E[Δ] by summing over all 2^N sets of participants, and Σ α_i h_i's rows as the rule stored them."""
    total = np.zeros(D)
    stale = np.zeros((N, D))
    for chance, clients in participation_sets(P):
        state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
        rule.combine(state, fs.Round(0, np.arange(N), H, probabilities=np.ones(N)))
        stale = state.memory.rows(np.arange(N)) if rule.memory else stale
        delta = rule.combine(state, fs.Round(1, clients, UPDATES[clients], probabilities=P[clients]))
        total += chance * np.asarray(delta)
    return total, stale


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("max_weight", [None, 1.0, 4.0, 50.0, 1000.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_bias_of_the_bounds_is_what_the_equation_says(
    beta: float, max_weight: float | None, clip_norm: float | None
) -> None:
    """E[Δ] = Σ α_i Δ_i − Σ α_i (1 − c_i) Δ_i − Σ α_i (1 − p_i w_i)(c_i Δ_i − β h_i), exactly."""
    rule = rules.guard(fs.FedStale(beta=beta), clip_norm, max_weight)
    mean, stale = expected(rule)
    c = np.ones(N) if clip_norm is None else np.minimum(1.0, clip_norm / np.linalg.norm(UPDATES, axis=1))
    w = 1 / P if max_weight is None else np.minimum(1 / P, max_weight)
    clipped = c[:, None] * UPDATES
    bias = -(ALPHA * (1 - c)) @ UPDATES - (ALPHA * (1 - P * w)) @ (clipped - beta * stale)
    np.testing.assert_allclose(mean, ALPHA @ UPDATES + bias, atol=1e-12)
    unbiased = clip_norm is None and (max_weight is None or max_weight >= 100)
    assert (np.linalg.norm(bias) < 1e-12) == unbiased


def test_a_memory_that_knows_the_update_takes_the_bias_of_the_cap_away() -> None:
    """With β = 1 the capped rule moves along Σ α_i Δ_i once h_i = Δ_i; with β = 0 the rare client counts c·p_i."""
    for beta, small in ((1.0, True), (0.0, False)):
        rule = rules.Guarded(fs.FedStale(beta=beta), max_weight=4.0)
        state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
        rule.combine(state, fs.Round(0, np.arange(N), UPDATES, probabilities=np.ones(N)))
        mean = sum(chance * np.asarray(_after(rule, clients)) for chance, clients in participation_sets(P))
        assert (np.linalg.norm(mean - ALPHA @ UPDATES) < 1e-12) == small
        state.close()


def _after(rule: fs.Rule, clients: NDArray[np.int64]) -> Matrix:
    state = rule.init(fs.Federation(N, D, weights=ALPHA), memory="ram:float64")
    rule.combine(state, fs.Round(0, np.arange(N), UPDATES, probabilities=np.ones(N)))
    return np.asarray(rule.combine(state, fs.Round(1, clients, UPDATES[clients], probabilities=P[clients])))


def test_a_client_first_seen_after_ten_thousand_rounds_cannot_blow_up_the_model() -> None:
    """Its p̂ is 1/10,002 by then: uncapped, one update of length 1 moves the model by α·10,002."""
    estimator = participation.BetaFrequency()
    counted = estimator.init(2)
    for t in range(10_000):
        estimator.observe(counted, [0], t)
    p = estimator.probabilities(counted, [0, 1])
    assert 1 / p[1] == pytest.approx(10_002)
    moved = {}
    for cap in (None, 100.0):
        rule = rules.guard(fs.FedStale(), None, cap)
        state = rule.init(fs.Federation(2, 3), model=np.zeros(3))
        rule.step(state, fs.Round(10_000, [0, 1], np.eye(3)[:2], probabilities=p))
        assert state.model is not None
        moved[cap] = float(np.linalg.norm(state.model))
    assert moved[None] == pytest.approx(5_001, rel=1e-6)
    assert moved[100.0] == pytest.approx(50, rel=1e-3)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_clipping(dtype: str) -> None:
    rows = [np.array([3, 4], dtype), np.array([0.3, 0.4], dtype), np.zeros(2, dtype)]
    factors = clip_factors(rows, 1.0)
    np.testing.assert_allclose(factors, [0.2, 1.0, 1.0], rtol=1e-3)
    clipped = clip(rows, factors)
    assert clipped[1] is rows[1]
    np.testing.assert_allclose(clipped[0], [0.6, 0.8], rtol=1e-3)
    assert {row.dtype for row in clipped} == {np.dtype(dtype)}
    assert rows[0].tolist() == [3, 4], "the caller's array is not touched"


def test_clipping_bounds_what_cannot_be_squared_and_hides_no_nan() -> None:
    rows = [np.array([1e200, 1e200]), np.array([np.nan, 1.0]), np.array([np.inf, 1.0])]
    factors = clip_factors(rows, 2.0)
    np.testing.assert_allclose(np.linalg.norm(clip(rows[:1], factors[:1])[0]), 2.0)
    assert np.isnan(factors[1:]).all()
    rule = rules.Guarded(fs.FedStale(), clip_norm=1.0)
    state = rule.init(fs.Federation(2, 2))
    with pytest.raises(fs.InvalidInput, match="update of client 1"):
        rule.combine(state, fs.Round(0, [0, 1], [np.ones(2), rows[2]], probabilities=1.0))
    assert state.round == 0


def test_what_is_stored_is_clipped_and_what_was_done_is_reported() -> None:
    rule = rules.Guarded(fs.FedStale(beta=1.0), clip_norm=1.0, max_weight=2.0)
    state = rule.init(fs.Federation(2, 2), memory="ram:float64")
    rule.combine(state, fs.Round(0, [0, 1], np.array([[3.0, 4.0], [0.1, 0.0]]), probabilities=[0.5, 0.1]))
    np.testing.assert_allclose(state.memory.rows([0, 1]), [[0.6, 0.8], [0.1, 0.0]])
    assert state.report["clipped"] == 1
    assert state.report["capped"] == 1


def test_bounds_wrap_every_rule_and_leave_its_state_alone() -> None:
    inner = rules.ServerAdam(fs.FedStale(beta=0.5))
    outer = rules.Guarded(inner, clip_norm=1e9, max_weight=1e9)
    updates = np.random.default_rng(0).normal(size=(3, 4))
    states = [rule.init(fs.Federation(3, 4), model=np.zeros(4)) for rule in (inner, outer)]
    for t in range(5):
        for rule, state in zip((inner, outer), states, strict=True):
            rule.step(state, fs.Round(t, [0, 1, 2], updates * (t + 1), probabilities=[1.0, 0.5, 0.1]))
    assert states[0].model is not None
    assert states[1].model is not None
    assert states[0].model.tobytes() == states[1].model.tobytes()
    assert (outer.name, outer.server_lr, outer.memory, outer.unbiased) == (inner.name, 0.01, True, False)
    inner.step(states[1], fs.Round(5, [0], updates[:1], probabilities=1.0))  # the bounds may be taken off


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rules.Guarded(fs.FedStale(), clip_norm=0.0), "clip_norm = 0.0"),
        (lambda: rules.Guarded(fs.FedStale(), clip_norm=float("nan")), "clip_norm = nan"),
        (lambda: rules.Guarded(fs.FedStale(), max_weight=0.5), "max_weight = 0.5"),
        (lambda: rules.Guarded(rules.Guarded(fs.FedStale())), "not guarded already"),
        (lambda: rules.Guarded(rules.Scaffold(), clip_norm=1.0), "clipping destroys"),
        (lambda: rules.Guarded(rules.ServerAdam(rules.SVRG()), clip_norm=1.0), "clipping destroys"),
        (lambda: rules.Guarded(rules.FedAUAvg(), max_weight=5.0), "its cutoff is the cap"),
        (lambda: FedStale(clip_norm=-1.0), "clip_norm = -1.0"),
        (lambda: FedStale(max_weight=0.1), "max_weight = 0.1"),
        (lambda: settings(clip_norm=0.0), "clip_norm = 0.0"),
        (lambda: settings(max_weight=0.5), "max_weight = 0.5"),
        (lambda: settings(bad_updates="ignore"), "bad_updates = 'ignore'"),
    ],
)
def test_wrong_bounds_are_named(make: Any, text: str) -> None:
    with pytest.raises(fs.InvalidInput, match=text):
        make()


def test_bounds_are_settings_and_do_what_the_rule_does() -> None:
    options: Any = {"rounds": 30, "num_clients": 6, "p_min": 0.2, "memory": "ram:float64"}
    bounded = fs.simulate("quadratic", clip_norm=0.01, max_weight=2.0, beta=0.5, **options)
    given = fs.simulate(
        "quadratic", rule=rules.Guarded(fs.FedStale(beta=0.5), clip_norm=0.01, max_weight=2.0), **options
    )
    free = fs.simulate("quadratic", beta=0.5, **options)
    assert bounded.model.tobytes() == given.model.tobytes()
    assert bounded.model.tobytes() != free.model.tobytes()
    assert np.nansum(bounded.metrics["clipped"]) > 0
    assert np.nansum(bounded.metrics["capped"]) > 0


def test_bounded_runs_are_not_taken_for_runs_without_bounds() -> None:
    """Lock-step batches know no bounds: such runs go alone."""
    from fedstale.sweeps.lockstep import eligible

    plain = settings(task="digits-mlp")
    assert eligible(plain)
    for change in ({"clip_norm": 1.0}, {"max_weight": 5.0}, {"bad_updates": "leave-out"}):
        assert not eligible(plain.but(**change))


def test_the_flower_strategy_bounds_and_resumes_with_its_bounds(tmp_path: Path) -> None:
    class Huge(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {n: a + np.float32(1e20) if a.dtype == "f4" else a for n, a in received.items()}

    nodes = {**GOOD, BAD: Huge(9)}
    model: Model = {"w": np.zeros(6, "f4")}
    options: Any = {**QUICK, "clip_norm": 1.0, "max_weight": 3.0}
    strategy = FedStale(**options, checkpoint=tmp_path)
    strategy.start(MemoryGrid(nodes), record(model), num_rounds=2)
    assert strategy.server is not None
    norms = np.linalg.norm(strategy.server.state.memory.rows(range(4)), axis=1)
    assert norms.max() <= 1 + 1e-6
    resumed = FedStale.resume(tmp_path)
    assert (resumed.options["clip_norm"], resumed.options["max_weight"]) == (1.0, 3.0)
    after = resumed.start(MemoryGrid(nodes), record(model), num_rounds=4)
    whole = RuleStrategy(rules.Guarded(fs.FedStale(), clip_norm=1.0, max_weight=3.0), **QUICK)
    same = whole.start(MemoryGrid(nodes), record(model), num_rounds=4)
    assert flat(after.arrays).tobytes() == flat(same.arrays).tobytes()
    assert np.abs(flat(after.arrays)).max() < 20
