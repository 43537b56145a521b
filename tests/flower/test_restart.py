"""The same command twice: whatever is built on the strategy, a restarted run ends as an uninterrupted one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

import fedstale as fs
from fedstale.durable import FileInUse, FileTrouble
from fedstale.flower import FedStale, TemperedFedStale
from fedstale.flower.history import History
from tests.combinations import combinations

from .grid import MemoryGrid, Node, Trainer, arrays, first_model, flat, record, round_of, trainers

Made = Callable[[Path | None], Strategy]
QUICK: Any = {"max_wait": 0.0, "min_available_nodes": 0, "min_train_nodes": 0}


class Sometimes(Trainer):
    """Comes as a function of (client, round) only."""

    def __call__(self, message: Message) -> Message:
        if message.metadata.message_type == "train" and (round_of(message) + self.client) % 3 == 0:
            return Message(fs_error(), reply_to=message)
        return super().__call__(message)


def fs_error() -> Any:
    from flwr.app import Error

    return Error(2, "busy")


def sometimes(first_node: int = 1000) -> dict[int, Node]:
    return {first_node + i: Sometimes(i) for i in range(4)}


class Killed(BaseException):
    """The process is gone."""


class Dying(MemoryGrid):
    """A grid whose server dies when it sends the messages of this round."""

    def __init__(self, nodes: dict[int, Node], at: int) -> None:
        super().__init__(nodes)
        self.at = at

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train" and round_of(message) >= self.at:
                raise Killed
        return super().send_and_receive(messages, timeout=timeout)


class OwnInit(TemperedFedStale):
    """Like Flower's strategy for tuning language models: it counts bytes in an attribute of its own."""

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor
        self.bytes_seen = 0

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.bytes_seen += sum(array.numpy().nbytes for array in arrays.values()) * len(messages)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        model, metrics = super().aggregate_train(server_round, replies)
        return scaled(model, self.factor), metrics


def scaled(model: ArrayRecord | None, factor: float) -> ArrayRecord | None:
    return None if model is None else record({n: (factor * a).astype(a.dtype) for n, a in arrays(model).items()})


class OwnStart(TemperedFedStale):
    """Like Flower's advanced example: a copy of Flower's loop that keeps the best model, and here changes it too."""

    best = 0.0
    factor = 1.0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: Any = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        result, model = Result(), initial_arrays
        for t in range(1, num_rounds + 1):
            sent = self.configure_train(t, model, ConfigRecord(), grid)
            new, metrics = self.aggregate_train(t, grid.send_and_receive(messages=sent, timeout=timeout))
            if new is not None:
                result.arrays = model = scaled(new, self.factor) or new
            if metrics is not None:
                result.train_metrics_clientapp[t] = metrics
            sent = self.configure_evaluate(t, model, ConfigRecord(), grid)
            found = self.aggregate_evaluate(t, grid.send_and_receive(messages=sent, timeout=timeout))
            if found is not None:
                result.evaluate_metrics_clientapp[t] = found
        return result


class OwnStartThatScales(OwnStart):
    factor = 0.5


class Wrapper(Strategy):
    """A strategy around another, with Flower's own loop."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner

    def configure_train(self, *given: Any) -> Any:
        return self.inner.configure_train(*given)

    def aggregate_train(self, *given: Any) -> Any:
        model, metrics = self.inner.aggregate_train(*given)
        return scaled(model, 0.9), metrics

    def configure_evaluate(self, *given: Any) -> Any:
        return self.inner.configure_evaluate(*given)

    def aggregate_evaluate(self, *given: Any) -> Any:
        return self.inner.aggregate_evaluate(*given)

    def summary(self) -> None:
        self.inner.summary()


def options(folder: Path | None) -> Any:
    return QUICK if folder is None else {**QUICK, "checkpoint": folder, "resume": "auto"}


MADE: dict[str, Made] = {
    "plain": lambda folder: TemperedFedStale(**options(folder)),
    "paper": lambda folder: FedStale(**options(folder)),
    "own init, model halved": lambda folder: OwnInit(0.5, **options(folder)),
    "own start": lambda folder: OwnStart(**options(folder)),
    "own start, model halved": lambda folder: OwnStartThatScales(**options(folder)),
    "wrapper": lambda folder: Wrapper(TemperedFedStale(**options(folder))),
}


def same(one: Result, other: Result) -> None:
    np.testing.assert_array_equal(flat(one.arrays), flat(other.arrays))
    for table in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        ours, theirs = getattr(one, table), getattr(other, table)
        assert {t: dict(r) for t, r in ours.items()} == {t: dict(r) for t, r in theirs.items()}


@pytest.mark.parametrize(("kind", "at"), combinations(list(MADE), [2, 1, 4, 6]))
def test_the_same_command_twice_ends_as_one(kind: str, at: int, tmp_path: Path) -> None:
    """What is saved is the model that is sent next, whoever changed it after `aggregate_train`."""
    whole = MADE[kind](None).start(MemoryGrid(sometimes()), record(first_model()), num_rounds=6)
    with pytest.raises(Killed):
        MADE[kind](tmp_path / "c").start(Dying(sometimes(), at), record(first_model()), num_rounds=6)
    resumed = MADE[kind](tmp_path / "c").start(MemoryGrid(sometimes(7000)), record(first_model()), num_rounds=6)
    same(resumed, whole)
    assert sorted(resumed.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    third = MADE[kind](tmp_path / "c").start(MemoryGrid({}), record(first_model()), num_rounds=6)  # all is done
    same(third, whole)


def test_the_halved_model_is_the_one_that_is_resumed(tmp_path: Path) -> None:
    """Three rounds and three are six: a checkpoint written before the model was halved gave another model."""
    grid = MemoryGrid(trainers(range(3)))
    whole = OwnInit(0.5, **QUICK).start(grid, record(first_model()), num_rounds=6)
    OwnInit(0.5, **options(tmp_path)).start(grid, record(first_model()), num_rounds=3)
    resumed = OwnInit(0.5, **options(tmp_path)).start(grid, record(first_model()), num_rounds=6)
    np.testing.assert_array_equal(flat(resumed.arrays), flat(whole.arrays))


def test_evaluation_by_the_server_is_in_the_result_too_and_not_done_twice(tmp_path: Path) -> None:
    rounds: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        rounds.append(server_round)
        return MetricRecord({"norm": float(np.linalg.norm(flat(arrays)))})

    def run(strategy: TemperedFedStale, grid: Grid) -> Result:
        return strategy.start(grid, record(first_model()), num_rounds=5, evaluate_fn=evaluate)

    whole = run(TemperedFedStale(**QUICK), MemoryGrid(sometimes()))
    rounds.clear()
    with pytest.raises(Killed):
        run(TemperedFedStale(**options(tmp_path)), Dying(sometimes(), 3))
    same(run(TemperedFedStale(**options(tmp_path)), MemoryGrid(sometimes())), whole)
    assert rounds == [0, 1, 2, 3, 4, 5]


def test_killed_after_the_checkpoint_the_round_is_evaluated_later(tmp_path: Path) -> None:
    class DyingEvaluation(MemoryGrid):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            messages = list(messages)
            if messages and messages[0].metadata.message_type == "evaluate" and round_of(messages[0]) == 3:
                raise Killed
            return super().send_and_receive(messages, timeout=timeout)

    whole = TemperedFedStale(**QUICK).start(MemoryGrid(sometimes()), record(first_model()), num_rounds=5)
    with pytest.raises(Killed):
        TemperedFedStale(**options(tmp_path)).start(DyingEvaluation(sometimes()), record(first_model()), num_rounds=5)
    same(
        TemperedFedStale(**options(tmp_path)).start(MemoryGrid(sometimes()), record(first_model()), num_rounds=5), whole
    )


def test_a_second_start_runs_more_rounds_from_the_model_it_is_given() -> None:
    """As Flower's FedAvg does; what is known of the clients stays."""

    def twice(strategy: FedAvg) -> tuple[Result, Result]:
        grid = MemoryGrid({1: Trainer(1), 2: Trainer(2)})
        first = strategy.start(grid, record(first_model()), num_rounds=2)
        other = record({name: array + 5 for name, array in first_model().items()})
        return first, strategy.start(grid, other, num_rounds=3)

    ours, theirs = twice(TemperedFedStale(weights="sample")), twice(FedAvg())
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(flat(one.arrays), flat(other.arrays), rtol=2e-6)
        assert sorted(one.train_metrics_clientapp) == sorted(other.train_metrics_clientapp)


@pytest.mark.parametrize("at", [2, 4, 5])
def test_two_starts_in_one_app_survive_a_crash_in_either(at: int, tmp_path: Path) -> None:
    """Rounds 1 to 3, then with another model 1 to 3 again: the messages of round 4 of 6 say round 1."""

    class DyingLater(MemoryGrid):
        sends = 0

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            self.sends += 1
            if self.sends >= at:
                raise Killed
            return super().send_and_receive(messages, timeout=timeout)

    def app(folder: Path | None, grid: Grid) -> tuple[Result, Result]:
        strategy = TemperedFedStale(**options(folder), fraction_evaluate=0.0)
        first = strategy.start(grid, record(first_model()), num_rounds=3)
        return first, strategy.start(grid, scaled(record(first_model()), 3.0) or ArrayRecord(), num_rounds=3)

    whole = app(None, MemoryGrid(sometimes()))
    with pytest.raises(Killed):
        app(tmp_path, DyingLater(sometimes()))
    resumed = app(tmp_path, MemoryGrid(sometimes()))
    same(resumed[1], whole[1])
    assert sorted(resumed[0].train_metrics_clientapp) == [1, 2, 3]


def test_auto_refuses_what_the_checkpoint_does_not_fit(tmp_path: Path) -> None:
    grid = MemoryGrid(trainers(range(2)))
    TemperedFedStale(**options(tmp_path)).start(grid, record(first_model()), num_rounds=1)
    for change, text in (
        ({"beta": 0.5}, "rule"),
        ({"weights": "client"}, "weights = 'client': the checkpoint was written with 'sample'"),
        ({"memory": "ram:bfloat16"}, "memory = 'ram:bfloat16': the checkpoint was written with 'ram'"),
    ):
        with pytest.raises(fs.InvalidInput, match=text):
            TemperedFedStale(**{**options(tmp_path), **change}).start(grid, record(first_model()), num_rounds=2)
    with pytest.raises(fs.InvalidInput, match='resume = \'always\': must be "never" or "auto"'):
        TemperedFedStale(checkpoint=tmp_path, resume="always")  # type: ignore[arg-type]
    with pytest.raises(fs.InvalidInput, match="needs the folder"):
        TemperedFedStale(resume="auto")
    TemperedFedStale(**options(tmp_path), fraction_train=0.5).start(grid, record(first_model()), num_rounds=2)


def test_resume_of_a_class_with_its_own_init_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(fs.InvalidInput, match=r'OwnInit\(…, checkpoint=path, resume="auto"\)'):
        OwnInit.resume(tmp_path)


def test_a_loop_of_ones_own_keeps_a_second_server_away_too(tmp_path: Path) -> None:
    first = OwnStart(**options(tmp_path))
    grid = MemoryGrid(trainers(range(2)))
    first.start(grid, record(first_model()), num_rounds=1)
    with pytest.raises(FileInUse):
        OwnStart(**options(tmp_path)).start(grid, record(first_model()), num_rounds=2)
    first.unlock()
    OwnStart(**options(tmp_path)).start(grid, record(first_model()), num_rounds=2)


def test_half_a_line_of_history_and_lines_of_a_round_that_was_lost_do_not_count(tmp_path: Path) -> None:
    grid = MemoryGrid(trainers(range(2)))
    whole = TemperedFedStale(**QUICK).start(grid, record(first_model()), num_rounds=4)
    TemperedFedStale(**options(tmp_path)).start(grid, record(first_model()), num_rounds=2)
    History(tmp_path).add("train", 3, {"loss": 99.0})
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('["train", 4, {"lo')
    same(TemperedFedStale(**options(tmp_path)).start(grid, record(first_model()), num_rounds=4), whole)
    same(TemperedFedStale(**options(tmp_path)).start(grid, record(first_model()), num_rounds=4), whole)


def test_a_flipped_bit_of_the_history_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    made = History(tmp_path)
    made.add("train", 1, {"loss": 0.25, "seen": [1, 2]})
    made.add("evaluate", 1, None)
    made.load(1)
    assert dict(made.get("train", 1) or {}) == {"loss": 0.25, "seen": [1, 2]}
    assert made.has("evaluate", 1)
    file = tmp_path / "history.jsonl"
    whole = file.read_bytes()
    for at in range(len(whole) - 1):  # the last byte ends a line, without which it is half a line
        for bit in range(8):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(FileTrouble, match=r"history\.jsonl: line [12] is damaged"):
                made.load(1)


def test_a_store_that_a_loop_of_ones_own_does_not_write_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        OwnStart(**QUICK, store=tmp_path / "s").start(MemoryGrid(trainers([0])), record(first_model()), num_rounds=2)
    assert sum("store" in line.getMessage() for line in caplog.records) == 1
