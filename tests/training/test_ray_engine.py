"""The engine of Ray's actors without Ray: what it sends, who does it, what happens when workers die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale import tasks, training
from fedstale.checks import InvalidInput
from fedstale.training import ray_engine, ray_worker, registry, shared_samples

pytest.importorskip("ray")
from tests.training.ray_stand_in import StandIn


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StandIn]:
    def make(**options: Any) -> StandIn:
        made = StandIn(**options)
        monkeypatch.setattr(ray_engine, "connect", lambda address: (made, True))
        monkeypatch.setattr(shared_samples, "fetch", made.get)
        return made

    return make


def run(engine: str, task: str = "digits-cnn", **options: Any) -> fs.Result:
    usual: dict[str, Any] = {"p_min": 0.5, "rounds": 4, "batch_size": 8, "local_steps": 2, "threads": 1}
    return fs.simulate(task, progress=False, engine=engine, **usual | options)


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "fedstale", "beta": "auto"},
        {"rule": "tempered", "train_loss": True, "memory": "ram:bfloat16"},
        {"rule": "scaffold", "weight_decay": 1e-3},
        {"rule": "afa-cd", "local_steps": None, "epochs": 1, "batch_size": 32},
        {"rule": "fedprox", "bad_updates": "leave-out"},
        {"rule": "svrg"},
    ],
    ids=lambda options: options["rule"],
)
def test_the_same_as_the_loop(stand_in: Callable[..., StandIn], options: dict[str, Any]) -> None:
    stand_in()
    # digits-cnn is so small that "auto" takes vmap, whose products are not grouped as the loop's are
    alone, shared = run("loop", **options), run("ray", workers=3, **options)
    np.testing.assert_allclose(shared.model, alone.model, rtol=1e-4, atol=1e-6)
    for t, clients in enumerate(alone.participants):
        np.testing.assert_array_equal(clients, shared.participants[t])
    for name in ("accuracy", "update_norm", "train_loss"):
        if name in alone.metrics:
            np.testing.assert_allclose(shared.metrics[name], alone.metrics[name], rtol=1e-3)


def local_task() -> tuple[tasks.Task, training.LocalTraining]:
    return tasks.make("digits-cnn", num_clients=10, progress=False), training.LocalTraining(lr=0.1, steps=2)


def loop_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_LARGEST_OTHER", 0)


def test_updates_are_the_loops_to_the_bit(stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    loop_inside(monkeypatch)
    ray = stand_in()
    task, local = local_task()
    loop = training.make(task, local, engine="loop", threads=1)
    for workers in (1, 2, 4):
        cluster = ray_engine.ClusterOptions(workers)
        engine = training.make(task, local, engine="ray", cluster=cluster)
        for t, clients in enumerate(([3, 1, 9], [0], [], list(range(10)))):
            found = np.reshape(engine.updates(engine.initial, clients, t), (-1, loop.num_params))
            np.testing.assert_array_equal(found, loop.updates(loop.initial, clients, t))
    assert len(ray.actors) == 7


@pytest.mark.parametrize("order", range(4))
def test_who_dies_is_replaced_and_nobody_counts_twice(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    loop_inside(monkeypatch)
    ray = stand_in(dies=lambda number, calls: number in (0, 2) and calls == 2, order=order)
    alone, shared = run("loop", rule="mifa"), run("ray", workers=2, rule="mifa")
    np.testing.assert_array_equal(shared.model, alone.model)
    assert len(ray.actors) > 2
    rounds = sum(len(clients) for clients in alone.participants)
    assert len(ray.trained) >= rounds  # some of them again


def test_running_statistics_come_back(stand_in: Callable[..., StandIn]) -> None:
    stand_in()
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(12, 4)), rng.integers(3, size=12)) for _ in range(5)]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    task = tasks.Task.from_datasets(model, functional.cross_entropy, data, data)
    options: dict[str, Any] = {"rounds": 3, "num_clients": 5, "batch_size": 4, "p_min": 0.5, "progress": False}
    alone, shared = (fs.simulate(task, engine=engine, **options) for engine in ("loop", "ray"))
    for name, value in alone.model_state().items():
        np.testing.assert_allclose(shared.model_state()[name], value, rtol=1e-5, atol=1e-6)


def test_data_in_files_are_read_there(stand_in: Callable[..., StandIn], tmp_path: Path) -> None:
    ray = stand_in()
    rng = np.random.default_rng(0)
    made = tasks.write_clients(tmp_path, ((rng.normal(size=(500, 20)), rng.integers(3, size=500)) for _ in range(6)))

    def model() -> nn.Module:
        return nn.Linear(20, 3)

    task = tasks.Task("files", made, made, model, functional.cross_entropy, 3, np.zeros(6, dtype=np.int64))
    local = training.LocalTraining(lr=0.1, steps=3, batch_size=16)
    engines = [training.make(task, local, engine=name) for name in ("loop", "ray")]
    assert sum(ray.puts) < 20_000  # the data are 260 kB
    first, second = (engine.updates(engine.initial, [5, 0, 3], 2) for engine in engines)
    np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-7)


def test_data_are_made_by_the_worker(stand_in: Callable[..., StandIn]) -> None:
    ray = stand_in()

    def made(client: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(client)
        return rng.normal(size=(500, 20)), rng.integers(3, size=500)

    split = tasks.make_clients(made, [500] * 6)
    task = tasks.Task(
        "made", split, split, lambda: nn.Linear(20, 3), functional.cross_entropy, 3, np.zeros(6, dtype=np.int64)
    )
    local = training.LocalTraining(lr=0.1, steps=3, batch_size=16)
    engines = [training.make(task, local, engine=name) for name in ("loop", "ray")]
    assert sum(ray.puts) < 20_000  # the data are 260 kB
    first, second = (engine.updates(engine.initial, [5, 0, 3], 2) for engine in engines)
    np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-7)


def test_workers_that_always_die_end_the_run(stand_in: Callable[..., StandIn]) -> None:
    stand_in(dies=lambda number, calls: True)
    with pytest.raises(InvalidInput, match="workers on Ray died 4 times in a row"):
        run("ray", workers=2)


def test_an_error_of_the_task_is_the_tasks(stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in()
    task, local = local_task()
    engine = training.make(task, local, engine="ray", cluster=ray_engine.ClusterOptions(2))

    def broken(*_: object) -> None:
        raise ArithmeticError("no such loss")

    monkeypatch.setattr(ray_worker, "Samples", broken)
    with pytest.raises(ArithmeticError, match="no such loss"):
        engine.updates(engine.initial, [0], 0)


def test_the_model_goes_out_once_a_round(stand_in: Callable[..., StandIn]) -> None:
    ray = stand_in()
    task, local = local_task()
    engine = training.make(task, local, engine="ray", cluster=ray_engine.ClusterOptions(4))
    before = len(ray.puts)
    engine.updates(engine.initial, list(range(10)), 0)
    assert len(ray.puts) == before + 1
    assert engine.num_params * 4 <= ray.puts[-1] <= engine.num_params * 4 + 5000


def test_more_workers_than_processors_are_refused(stand_in: Callable[..., StandIn]) -> None:
    stand_in(processors=2)
    with pytest.raises(InvalidInput, match="the Ray cluster has processors for 2"):
        run("ray", workers=3)
    with pytest.raises(InvalidInput, match="the Ray cluster has processors and 1 GPUs each for 0"):
        run("ray", gpus_per_worker=1.0)


def test_processors_that_others_use_are_not_waited_for_for_ever(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(processors=2).used = 1
    monkeypatch.setattr(ray_engine, "_PATIENCE", 0.0)
    with pytest.raises(InvalidInput, match="only 1 processors that nobody uses"):
        run("ray", workers=2)


def test_settings_of_ray_are_for_ray() -> None:
    with pytest.raises(InvalidInput, match=r'workers .*for engine "ray" only'):
        run("loop", workers=2)
