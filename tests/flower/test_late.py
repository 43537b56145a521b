"""Late is not lost: who needs more than a round is served through the memory, once, also across a restart."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message
from flwr.supercore.task_identity import TaskIdentity

import fedstale as fs
from fedstale.flower import FedStale, RuleStrategy, UnbiasedFedAvg, UnbiasedFedVARP

from .grid import Model, SlowGrid, Trainer, arrays, first_model, flat, record

QUICK: Any = {"min_available_nodes": 0, "min_train_nodes": 0, "fraction_evaluate": 0.0, "max_wait": 0.0}
SLOW = 1003


class Steady(Trainer):
    """A client without noise, whose optimum is its number."""

    def model(self, received: Model, server_round: int) -> Model:
        return {name: (a - 0.3 * (a - self.client)).astype(a.dtype) for name, a in received.items()}


def slow_grid(takes: float = 1.5) -> SlowGrid:
    """Three clients that answer in time, whose optima are 0, 1, 2, and one of optimum 3 that needs longer."""
    return SlowGrid({1000 + client: Steady(client) for client in range(4)}, {SLOW: takes})


def zeros() -> Any:
    return record({"w": np.zeros(4, "f8")})


def numbers(result: Any, name: str) -> list[Any]:
    return [result.train_metrics_clientapp[t][f"fedstale/{name}"] for t in sorted(result.train_metrics_clientapp)]


@pytest.mark.parametrize("rule", [fs.UnbiasedFedVARP(), fs.rules.TemperedFedStale(), fs.rules.MIFA()], ids=repr)
def test_who_always_needs_one_and_a_half_rounds_is_served(rule: fs.Rule) -> None:
    """Without it the model comes to the mean of the others; with it to the mean of all four."""
    lost = RuleStrategy(rule, late_for=0, **QUICK).start(slow_grid(), zeros(), num_rounds=60)
    assert flat(lost.arrays) == pytest.approx(1.0, abs=0.01)
    assert sum(numbers(lost, "late")) == 0
    strategy, grid = RuleStrategy(rule, **QUICK), slow_grid()
    result = strategy.start(grid, zeros(), num_rounds=60)
    assert flat(result.arrays) == pytest.approx(1.5, abs=0.02)
    # Asked in rounds 1, 3, 5, …: the reply comes in the middle of the next round, and is fetched after that.
    asked = [int(m.metadata.group_id) for m in grid.sent if m.metadata.dst_node_id == SLOW]
    assert asked == [*range(1, 60, 2)]
    assert numbers(result, "late")[:6] == [0, 0, 1, 0, 1, 0]
    assert numbers(result, "busy")[:4] == [1, 1, 1, 1]
    assert numbers(result, "known")[:4] == [3, 3, 4, 4]


def test_with_a_beta_of_its_own_choice_it_is_served_too() -> None:
    result = FedStale(**QUICK).start(slow_grid(), zeros(), num_rounds=100)
    assert flat(result.arrays) == pytest.approx(1.5, abs=0.1)


def test_the_row_holds_the_update_against_the_model_that_was_given() -> None:
    strategy, grid = FedStale(beta=1.0, **QUICK), slow_grid()
    strategy.start(grid, zeros(), num_rounds=3)
    given = flat(grid.sent[3].content.array_records["arrays"])
    assert grid.sent[3].metadata.dst_node_id == SLOW
    assert strategy.aggregator is not None
    client = strategy.aggregator.members["client-id:3"]
    assert strategy.aggregator.state.memory.rows([client])[0] == pytest.approx(0.3 * (given - 3))
    assert strategy.aggregator.state.last_seen[client] == 0  # of the first round


def test_a_rule_without_memory_counts_them_and_keeps_nothing() -> None:
    strategy = UnbiasedFedAvg(**QUICK)
    result = strategy.start(slow_grid(), zeros(), num_rounds=20)
    assert numbers(result, "late")[:6] == [0, 0, 1, 0, 1, 0]
    assert set(numbers(result, "known")) == {3}
    assert not strategy.asking.late.models
    assert flat(result.arrays) == pytest.approx(1.0, abs=0.01)


def test_who_is_late_has_not_contributed() -> None:
    """p̂ counts contributions in time: of three rounds one, where every second work takes 1.5 rounds.

    It is asked and in time in the first, asked and late in the second, busy in the third; and so on.
    """

    class Sometimes(SlowGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            times = sum(m.metadata.dst_node_id == SLOW for m in self.sent)
            self.takes[SLOW] = 1.5 if times % 2 else 0.5
            return super().push_messages(messages)

    grid = Sometimes({1000 + client: Steady(client) for client in range(4)}, {})
    strategy = UnbiasedFedVARP(probabilities="fedau-nocutoff", **QUICK)
    result = strategy.start(grid, zeros(), num_rounds=91)
    assert numbers(result, "participants")[:7] == [4, 3, 3, 4, 3, 3, 4]
    assert strategy.aggregator is not None
    names, state = strategy.aggregator.identities, strategy.aggregator.state
    p = strategy.probabilities.values(state.estimator, np.arange(4), names)
    assert p == pytest.approx([1.0, 1.0, 1.0, 1 / 3], abs=0.02)
    # Three times the weight in every third round: on the mean each step is right, and so is where it ends.
    assert flat(result.arrays) == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_mean_step_is_that_of_all_clients(beta: float) -> None:
    """Constant updates, p = 1/3 known: over three rounds, each client has counted three times, for every β."""

    class Constant(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {name: a - self.client for name, a in received.items()}

    takes = {SLOW: 0.5}
    grid = SlowGrid({1000 + client: Constant(client) for client in range(4)}, takes)
    known = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1 / 3}
    strategy = FedStale(beta=beta, probabilities=known, max_norm_ratio=None, **QUICK)
    model, path = zeros(), [0.0]
    for t in range(1, 14):
        takes[SLOW] = 0.5 if t % 3 == 1 else 1.5
        model = strategy.start(grid, model, num_rounds=1).arrays
        path.append(float(flat(model)[0]))
    steps = -np.diff(path)[1:].reshape(4, 3).mean(axis=1)  # after the first, in which nothing is remembered yet
    assert steps == pytest.approx([1.5] * 4)


def test_a_reply_that_is_of_no_use_is_left_out_and_counted() -> None:
    class Broken(Steady):
        def model(self, received: Model, server_round: int) -> Model:
            return {name: a * np.nan for name, a in received.items()}

    grid = slow_grid()
    grid.nodes[SLOW] = Broken(3)
    strategy = UnbiasedFedVARP(**QUICK)
    result = strategy.start(grid, zeros(), num_rounds=4)
    assert numbers(result, "late") == [0, 0, 0, 0]
    assert numbers(result, "left_out") == [0, 0, 1, 0]
    assert [(t, one.kind) for t, one in strategy.left_out] == [(3, "late")]
    assert strategy.account is not None
    assert strategy.account.balanced
    assert (flat(result.arrays) < 1.0).all()


def test_a_newer_row_stays() -> None:
    """The client comes back on another node in the meantime: what it sent before is of no use any more."""
    grid = slow_grid(2.5)
    grid.online.discard(1004)
    grid.nodes[1004] = Steady(3)
    strategy = UnbiasedFedVARP(**QUICK)
    model = strategy.start(grid, zeros(), num_rounds=1).arrays
    grid.online.add(1004)
    result = strategy.start(grid, model, num_rounds=3)
    assert [one.reason for _, one in strategy.left_out] == ["its client has sent a newer update since"]
    assert numbers(result, "late") == [0, 0, 0]


def test_an_error_or_the_end_of_its_time_frees_the_node() -> None:
    grid = slow_grid(1.5)
    grid.nodes[SLOW] = lambda message: Message(Error(5, "gone"), reply_to=message)
    FedStale(**QUICK).start(grid, zeros(), num_rounds=4)
    assert sum(m.metadata.dst_node_id == SLOW for m in grid.sent) == 2
    grid = slow_grid(1e9)
    FedStale(late_for=1, **QUICK).start(grid, zeros(), num_rounds=4, timeout=1e-4)
    assert sum(m.metadata.dst_node_id == SLOW for m in grid.sent) == 4


def test_a_node_that_is_not_connected_is_not_asked_for() -> None:
    """The SuperLink would say that it is gone, and its reply would be lost."""
    wanted: list[list[str]] = []

    class Noting(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            wanted.append(list(message_ids))
            return super().pull_messages(wanted[-1])

    grid = Noting({1000 + client: Steady(client) for client in range(4)}, {SLOW: 1.5})
    strategy = UnbiasedFedVARP(**QUICK)
    model = strategy.start(grid, zeros(), num_rounds=1).arrays
    del wanted[:]
    grid.online.discard(SLOW)
    model = strategy.start(grid, model, num_rounds=2).arrays
    assert [len(ids) for ids in wanted] == [3, 3]  # the rounds' own
    grid.online.add(SLOW)
    assert numbers(strategy.start(grid, model, num_rounds=1), "late") == [1]


def test_where_all_are_busy_the_round_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or rounds in which nothing can happen would be over at once, all of them."""
    grid = SlowGrid({1000: Steady(0), 1001: Steady(1)}, {1000: 1.5, 1001: 1.7})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        grid.now += 0.25

    monkeypatch.setattr("fedstale.flower.nodes.time.sleep", sleep)
    strategy = UnbiasedFedVARP(**QUICK)
    result = strategy.start(grid, zeros(), num_rounds=2)
    assert len(waits) == 2
    assert numbers(result, "asked") == [2, 1]
    assert numbers(result, "late") == [0, 1]


def test_who_is_busy_is_not_asked_to_evaluate_either() -> None:
    grid = slow_grid()
    FedStale(**{**QUICK, "fraction_evaluate": 1.0}).start(grid, zeros(), num_rounds=2)
    evaluating = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert SLOW not in evaluating
    assert len(evaluating) == 6


def test_models_are_kept_only_while_somebody_works_on_them() -> None:
    strategy, grid = UnbiasedFedVARP(**QUICK), slow_grid(2.5)
    for t in range(8):
        strategy.start(grid, zeros(), num_rounds=1)
        assert list(strategy.asking.late.models) == [t - t % 3]
    grid.takes[SLOW] = 0.5
    for _ in range(4):
        strategy.start(grid, zeros(), num_rounds=1)
    assert not strategy.asking.late.models


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
@pytest.mark.parametrize("same_run", [True, False])
def test_pending_work_is_resumed_in_the_same_run_and_given_up_in_another(
    tmp_path: Path, stop: int, same_run: bool
) -> None:
    """Killed while work is pending: within the run of Flower the reply counts once, as without the kill."""
    options: Any = {**QUICK, "checkpoint": tmp_path / "c", "resume": "auto", "store": tmp_path / "s"}
    whole = UnbiasedFedVARP(**QUICK).start(slow_grid(), zeros(), num_rounds=8)
    grid = slow_grid()
    UnbiasedFedVARP(**options).start(grid, zeros(), num_rounds=stop)
    pending = [m.metadata.message_id for m in grid.sent if m.metadata.dst_node_id == SLOW][-1]
    if not same_run:
        TaskIdentity._run_id = 2
    resumed = UnbiasedFedVARP(**options).start(grid, zeros(), num_rounds=8)
    if same_run:
        assert flat(resumed.arrays) == pytest.approx(flat(whole.arrays), abs=1e-12)
        assert numbers(resumed, "late") == numbers(whole, "late")
    else:
        asked = [int(m.metadata.group_id) for m in grid.sent if m.metadata.dst_node_id == SLOW]
        assert stop + 1 in asked  # it is asked at once, whatever it may still be doing
        assert pending in grid.ready  # nobody has fetched it
    with fs.store.Store.open(tmp_path / "s") as store:
        [run] = store.runs()
        assert store.run(run.id).metrics(["late"])["late"].tolist() == numbers(resumed, "late")


def test_a_reply_fetched_by_a_process_that_died_is_lost_and_never_counted_twice(tmp_path: Path) -> None:
    options: Any = {**QUICK, "checkpoint": tmp_path / "c", "resume": "auto"}
    grid = slow_grid()
    UnbiasedFedVARP(**options).start(grid, zeros(), num_rounds=2)
    dying = UnbiasedFedVARP(**options)
    dying.begin_start()
    model = dying.prepare(zeros()).arrays()
    list(dying.configure_train(3, model, ConfigRecord(), grid))  # it fetches the reply, and dies
    dying.unlock()
    result = UnbiasedFedVARP(**options).start(grid, zeros(), num_rounds=6)
    assert numbers(result, "late") == [0, 0, 0, 0, 0, 0]
    assert numbers(result, "busy") == [1] * 6


def test_erasing_a_client_gives_up_what_it_works_on(tmp_path: Path) -> None:
    grid, strategy = slow_grid(), UnbiasedFedVARP(**QUICK, checkpoint=tmp_path / "c")
    model = strategy.start(grid, zeros(), num_rounds=3).arrays
    assert strategy.asking.late.busy == {SLOW}
    strategy.forget(3)
    assert not strategy.asking.late.busy
    assert not strategy.asking.late.models
    result = strategy.start(grid, model, num_rounds=1)
    assert numbers(result, "late") == [0]


def test_replies_that_nobody_asked_for_are_not_taken_for_late_ones() -> None:
    class Forging(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            forged = Message(self.ready[self.sent[3].metadata.message_id][1].content, reply_to=self.sent[3])
            forged.metadata.__dict__["_src_node_id"] = 1000
            return [forged, *super().pull_messages(message_ids)]

    grid = Forging({1000 + client: Steady(client) for client in range(4)}, {SLOW: 1.5})
    strategy = UnbiasedFedVARP(**QUICK)
    strategy.start(grid, zeros(), num_rounds=1)
    assert strategy.asking.late.fetch(grid, [SLOW]) == {SLOW}
    assert strategy.asking.late.take() == []


def test_part_of_a_model_late_and_a_model_with_buffers() -> None:
    model = {**first_model(), "bn.running_mean": np.zeros(3, "f4")}
    grid = SlowGrid({1000 + client: Trainer(client) for client in range(4)}, {SLOW: 1.5})
    strategy = FedStale(**QUICK)
    result = strategy.start(grid, record(model), num_rounds=5)
    assert sum(numbers(result, "late")) == 2
    assert strategy.aggregator is not None
    assert sorted(strategy.aggregator.client_buffers) == [0, 1, 2, 3]  # its statistics count too
    assert arrays(result.arrays)["bn.running_mean"].shape == (3,)


def test_late_for_must_be_a_number_of_rounds() -> None:
    for wrong in (-1, 1.5, "x", None):
        with pytest.raises(ValueError, match="late_for"):
            FedStale(late_for=wrong)  # type: ignore[arg-type]


def test_waiting_for_the_busy_ends_with_the_timeout() -> None:
    grid = SlowGrid({1000: Steady(0), 1001: Steady(1)}, {1000: 1e9, 1001: 1e9})
    began = time.monotonic()
    with pytest.raises(fs.flower.NobodyAnswered):
        UnbiasedFedVARP(**QUICK).start(grid, zeros(), num_rounds=2, timeout=0.05)
    assert time.monotonic() - began < 20


def test_a_server_that_starts_again_does_not_wait_for_ever_for_nodes_at_work(tmp_path: Path) -> None:
    grid = SlowGrid({1000: Steady(0), 1001: Steady(1)}, {1000: 1e9, 1001: 1e9})
    options: Any = {**QUICK, "checkpoint": tmp_path, "resume": "auto", "identity": "node"}
    model, first = zeros(), UnbiasedFedVARP(**options)
    first.aggregate_train(1, grid.send_and_receive(first.configure_train(1, model, ConfigRecord(), grid)))
    first.settle(model)
    first.unlock()
    with pytest.raises(fs.flower.NobodyAnswered):
        UnbiasedFedVARP(**options).start(grid, model, num_rounds=2, timeout=0.05)
