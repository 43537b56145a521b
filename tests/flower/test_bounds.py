"""What one reply can do by default: names, lengths, rows that nobody renews."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

import fedstale as fs
from fedstale.flower import FedStale, TemperedFedStale, UnbiasedFedAvg
from fedstale.flower.bounds import LengthBound

from .grid import MemoryGrid, Model, Node, Trainer, arrays, first_model, flat, record, trainers

QUICK: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0, "min_available_nodes": 0, "min_train_nodes": 0}


class Named(Trainer):
    """A client that chooses the names of its metrics."""

    def __call__(self, message: Message) -> Message:
        metrics: dict[str, Any] = {"num-examples": 10, "client-id": self.client, **self.extra}
        model = self.model(arrays(message.content.array_records["arrays"]), 1)
        return Message(RecordDict({"arrays": record(model), "metrics": MetricRecord(metrics)}), reply_to=message)

    extra: dict[str, Any] = {"acc\nuracy": 0.5, "x" * 5_000_000: 1.0}


def test_names_of_metrics_are_cleaned_and_cut(tmp_path: Path) -> None:
    """Such names ended a run with a store and made its checkpoint unreadable, or slowed every later round."""
    options: Any = {**QUICK, "checkpoint": tmp_path / "c", "resume": "auto", "store": tmp_path / "s"}
    nodes: dict[int, Node] = {1: Named(0), 2: Named(1)}
    FedStale(**options).start(MemoryGrid(nodes), record(first_model()), num_rounds=2)
    result = FedStale(**options).start(MemoryGrid(nodes), record(first_model()), num_rounds=4)
    names = [name for name in result.train_metrics_clientapp[4] if not name.startswith("fedstale/")]
    assert r"acc\nuracy" in names
    assert max(map(len, names)) <= 101
    assert all((tmp_path / "c" / name).stat().st_size < 50_000 for name in ("history.jsonl", "state.safetensors"))


@pytest.mark.parametrize("dtype", ["g", ">f8", "f2"])
def test_statistics_in_an_odd_dtype_do_not_end_the_run(tmp_path: Path, dtype: str) -> None:
    """A running mean in long double was kept as it came, and no checkpoint could be written any more."""

    class Odd(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {n: a.astype(dtype) if n.startswith("bn") else a for n, a in received.items()}

    model = {"w": np.zeros(4, "f4"), "bn.running_mean": np.zeros(4, "f4")}
    options: Any = {**QUICK, "checkpoint": tmp_path / "c", "resume": "auto"}
    for rounds in (2, 3):
        result = FedStale(**options).start(MemoryGrid({1: Odd(1), 2: Trainer(2)}), record(model), num_rounds=rounds)
        assert result.train_metrics_clientapp[rounds]["fedstale/participants"] == 2
    assert arrays(result.arrays)["bn.running_mean"].dtype == np.float32


def test_one_that_names_its_metrics_otherwise_does_not_spoil_those_of_the_rest() -> None:
    nodes: dict[int, Node] = {**trainers([0, 1]), 9: Named(9)}
    result = FedStale(**QUICK).start(MemoryGrid(nodes), record(first_model()), num_rounds=1)
    assert result.train_metrics_clientapp[1]["loss"] == 0.5


def attacked(strategy: Any, rounds: int = 100) -> float:
    """Ten clients at 0 … 9 with noise; in round 5 an eleventh sends +100 and is never seen again. Return the model."""

    class Once(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {name: a + 100.0 for name, a in received.items()}

    grid, model = MemoryGrid({**trainers(range(10)), 5000: Once(99)}), record({"w": np.zeros(1)})
    path = []
    for t in range(1, rounds + 1):
        grid.online = {*range(1000, 1010)} | ({5000} if t == 5 else set())
        new, _ = strategy.aggregate_train(
            t, grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        )
        model = new
        path.append(float(flat(model)[0]))
    return float(np.mean(path[-20:]))


def test_one_huge_update_that_is_never_renewed_does_not_hold_the_model() -> None:
    """The optimum of the ten is 4.5. The memory repeats the update for ever if nothing bounds or fades it."""
    unbounded = attacked(FedStale(beta=1.0, **QUICK, max_norm_ratio=None, halve_rows_every=None))
    assert unbounded > 40
    assert attacked(FedStale(beta=1.0, **QUICK)) < 10
    assert attacked(FedStale(beta=1.0, **QUICK, max_norm_ratio=None, halve_rows_every=10)) < 40


@pytest.mark.slow
def test_after_three_hundred_rounds_of_the_default_rule_it_is_all_but_gone() -> None:
    assert attacked(TemperedFedStale(**QUICK, max_norm_ratio=None, halve_rows_every=None), 300) > 100
    assert attacked(TemperedFedStale(**QUICK), 300) < 6


class Normalised(Trainer):
    """A client of six with the running mean .25, which counts its batches; the seventh is hostile."""

    def model(self, received: Model, server_round: int) -> Model:
        hostile = self.client == 6
        counter = received["bn.num_batches_tracked"]
        return {
            "w": received["w"] * 0.9,
            "bn.running_mean": np.full(3, 1e6 if hostile else 0.25, "f4"),
            "bn.num_batches_tracked": np.asarray(2**52 if hostile else counter + 1, dtype=counter.dtype),
        }


NORMALISED: Model = {"w": np.ones(2), "bn.running_mean": np.zeros(3, "f4"), "bn.num_batches_tracked": np.asarray(0)}


def statistics_after(strategy: Any, rounds: int) -> Model:
    """Return the model when the hostile client was there for three rounds and never again."""
    grid, model = MemoryGrid({i: Normalised(i) for i in range(7)}), record(NORMALISED)
    for t in range(1, rounds + 1):
        grid.online = set(range(7 if t <= 3 else 6))
        model, _ = strategy.aggregate_train(
            t, grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
        )
    return arrays(model)


def test_counters_are_bounded_and_what_is_remembered_of_statistics_fades() -> None:
    """The counter ended at 6.4e14 and the mean at 1.04, for ever: nothing bounded the one or faded the other."""
    bounded = statistics_after(FedStale(**QUICK, halve_rows_every=10), 100)
    assert 50 <= bounded["bn.num_batches_tracked"] <= 110  # of 100 rounds
    np.testing.assert_allclose(bounded["bn.running_mean"], 0.25, atol=0.01)
    kept = statistics_after(FedStale(**QUICK, halve_rows_every=None), 100)
    assert kept["bn.running_mean"].max() > 0.5
    off = statistics_after(FedStale(**QUICK, max_norm_ratio=None), 5)
    assert off["bn.num_batches_tracked"] > 1e14


def test_what_is_usual_is_known_after_a_restart_and_whole_numbers_that_stand_still_are_bounded_too(
    tmp_path: Path,
) -> None:
    grid, options = MemoryGrid({i: Normalised(i) for i in range(7)}), {**QUICK, "checkpoint": tmp_path}
    strategy = FedStale(**options)
    strategy.start(grid, record(NORMALISED), num_rounds=3)
    resumed = FedStale.resume(tmp_path)
    assert strategy.aggregator is not None
    assert resumed.aggregator is not None
    for kind in ("updates", "statistics", "counters"):
        known = getattr(strategy.aggregator.lengths, kind).last
        assert len(known) == 7
        assert getattr(resumed.aggregator.lengths, kind).last == known
    bound = LengthBound(least=1.0)
    assert bound.factors({0: 0.0, 1: 0.0, 2: 0.0, 3: 100.0}, 10.0)[3] == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["w", "bn.running_mean"])
def test_updates_and_buffers_much_longer_than_usual_are_shortened_and_counted(name: str) -> None:
    class Far(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {
                n: (a + (1e6 if n == name and self.client == 3 else 0.1)).astype(a.dtype) for n, a in received.items()
            }

    start = {"w": np.zeros(4, "f4"), "bn.running_mean": np.zeros(4, "f4")}
    nodes: dict[int, Node] = {i: Far(i) for i in range(4)}
    result = FedStale(**QUICK).start(MemoryGrid(nodes), record(start), num_rounds=1)
    np.testing.assert_allclose(arrays(result.arrays)[name], (3 * 0.1 + 10 * 0.1) / 4, rtol=1e-5)
    assert result.train_metrics_clientapp[1]["fedstale/shortened"] == 1
    off = FedStale(**QUICK, max_norm_ratio=None).start(MemoryGrid(nodes), record(start), num_rounds=1)
    assert arrays(off.arrays)[name].max() > 1e5


def test_the_bound_is_against_the_others_and_remembers_them() -> None:
    bound = LengthBound()
    assert bound.factors({0: 1.0, 1: 1.0, 2: 50.0}, 10.0) == {0: 1.0, 1: 1.0, 2: 1.0}  # two others say nothing
    assert bound.factors({3: 2.0}, 10.0) == {3: 1.0}
    assert bound.factors({4: 100.0}, 10.0) == {4: pytest.approx(0.15)}  # others: 1, 1, 2, 50, so that 1.5 is usual
    assert bound.last[4] == pytest.approx(15.0)
    assert bound.factors({4: 100.0}, None) == {4: 1.0}


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_the_bias_of_shortening_is_what_was_cut_off_and_nothing_else(beta: float) -> None:
    """Summed over all participation sets: E Δ = Σ α_i Δ_i with the shortened Δ_i, whatever the memory holds."""
    rule, p = fs.FedStale(beta=beta), np.array([0.9, 0.5, 0.3, 0.2])
    updates = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [300.0, 400.0]])
    factors = LengthBound().factors({i: float(np.linalg.norm(u)) for i, u in enumerate(updates)}, 10.0)
    short = updates * np.array([factors[i] for i in range(4)])[:, None]
    assert np.linalg.norm(short[3]) == pytest.approx(10.0)
    mean = np.zeros(2)
    for present in product([False, True], repeat=4):
        who = np.flatnonzero(present)
        state = rule.init(fs.Federation(4, 2))
        rule.combine(state, fs.Round(0, [0, 1, 2, 3], np.ones((4, 2)), probabilities=p))
        chances = np.prod(np.where(present, p, 1 - p))
        mean += chances * np.asarray(rule.combine(state, fs.Round(1, who, short[who], probabilities=p[who])))
    np.testing.assert_allclose(mean, short.mean(axis=0), atol=1e-12)


def test_rows_fade_and_a_resumed_run_fades_them_alike(tmp_path: Path) -> None:
    def run(strategy: FedStale, online: list[list[int]], first: int) -> None:
        grid = MemoryGrid(trainers(range(3)))
        model = record(first_model()) if first == 1 else strategy.current_arrays()
        for t, who in enumerate(online, first):
            grid.online = {1000 + i for i in who}
            model, _ = strategy.aggregate_train(  # type: ignore[assignment]
                t, grid.send_and_receive(strategy.configure_train(t, model, ConfigRecord(), grid))
            )
            strategy.settle(model)

    options: Any = {**QUICK, "halve_rows_every": 3, "checkpoint": tmp_path, "resume": "auto"}
    strategy = FedStale(**options)
    run(strategy, [[0, 1, 2]], 1)
    assert strategy.aggregator is not None
    first = strategy.aggregator.state.memory.rows([2])
    run(strategy, [[0, 1]] * 4, 2)
    np.testing.assert_allclose(strategy.aggregator.state.memory.rows([2]), 0.5 * first)
    strategy.unlock()
    resumed = FedStale(**options)
    resumed.prepare(record(first_model()))
    run(resumed, [[0, 1]] * 2, 6)
    assert resumed.aggregator is not None
    np.testing.assert_allclose(resumed.aggregator.state.memory.rows([2]), 0.25 * first)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_norm_ratio": 0.5}, "max_norm_ratio = 0.5"),
        ({"max_examples_ratio": 0.0}, "max_examples_ratio = 0.0"),
        ({"halve_rows_every": 0}, "halve_rows_every = 0"),
        ({"forget_after": 0}, "forget_after = 0"),
    ],
)
def test_a_bound_that_is_none_is_named(options: Any, text: str) -> None:
    with pytest.raises(fs.InvalidInput, match=text):
        UnbiasedFedAvg(**options)


@pytest.mark.parametrize("robust", ["median", "trimmed", "norms:2"])
def test_robust_combination_is_one_word_and_is_resumed(tmp_path: Path, robust: str) -> None:
    class Hostile(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {name: (a - 50.0).astype(a.dtype) for name, a in received.items()}

    nodes: dict[int, Node] = {**trainers(range(6)), 9: Hostile(9)}
    options: Any = {**QUICK, "beta": 1.0, "max_norm_ratio": None, "checkpoint": tmp_path / "c"}
    start = record({"w": np.zeros(3, "f8")})
    FedStale(**options, robust=robust).start(MemoryGrid(nodes), start, num_rounds=2)
    resumed = FedStale.resume(tmp_path / "c")
    assert resumed.options["robust"] == robust
    model = resumed.start(MemoryGrid(nodes), start, num_rounds=6).arrays
    assert np.abs(flat(model)).max() < 5
    del options["checkpoint"]
    assert np.abs(flat(FedStale(**options).start(MemoryGrid(nodes), start, num_rounds=6).arrays)).max() > 30
    with pytest.raises(ValueError, match="robust"):
        FedStale(robust="mean")
