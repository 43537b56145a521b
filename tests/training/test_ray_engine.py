"""The engine of Ray's actors without Ray: what it sends, who does it, what happens when workers die."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale import ray_cluster, tasks, training
from fedstale.checks import InvalidInput
from fedstale.simulation import Callback, Simulation
from fedstale.simulation.identity import identity
from fedstale.store import Store
from fedstale.training import ray_engine, ray_worker, registry, shared_samples
from fedstale.training.schedule import WorkerSpeeds

pytest.importorskip("ray")
from tests.training.ray_stand_in import OutOfMemoryError, StandIn


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


@pytest.mark.parametrize("inner", ["loop", "vmap"])
@pytest.mark.parametrize(("workers", "clients"), [(2, 2), (2, 10), (8, 8), (8, 10), (3, 10)])
def test_every_worker_has_something_to_do(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch, workers: int, clients: int, inner: str
) -> None:
    if inner == "loop":
        loop_inside(monkeypatch)
    ray = stand_in(processors=8)
    task, local = local_task()
    engine = training.make(task, local, engine="ray", cluster=ray_engine.ClusterOptions(workers))
    engine.updates(engine.initial, list(range(10)), 0)  # all have started
    before = [actor.pieces for actor in ray.actors]
    assert isinstance(engine, ray_engine.RayEngine)
    engine._speeds = WorkerSpeeds(workers)
    engine.updates(engine.initial, list(range(clients)), 1)
    assert all(actor.pieces > seen for actor, seen in zip(ray.actors, before, strict=True))


@pytest.mark.parametrize("order", range(3))
def test_half_of_the_workers_may_die_at_once(stand_in: Callable[..., StandIn], order: int) -> None:
    """A machine is lost with all workers on it; some of the new ones find no processor, and the others do the rest."""
    ray = stand_in(
        processors=8,
        dies=lambda number, calls: number < 4 and calls == 2,
        order=order,
        starts=lambda number: number < 8 or number % 2 == 0,
        death=OutOfMemoryError,
    )
    alone, shared = run("loop", rule="mifa"), run("ray", workers=8, rule="mifa")
    np.testing.assert_allclose(shared.model, alone.model, rtol=1e-4, atol=1e-6)
    assert len(ray.actors) == 12
    assert not any(actor.pieces for actor in ray.actors[9::2])  # who is not there is given nothing


def test_nobody_who_starts_is_told(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    late: list[int] = []
    ray = stand_in(starts=lambda number: False)
    wait = ray.wait

    def waiting(references: Any, num_returns: int, timeout: float | None) -> Any:
        late.append(1)
        if len(late) == 3:
            for reference in references:
                reference.answers = True
        return wait(references, num_returns, timeout)

    monkeypatch.setattr(ray, "wait", waiting)
    monkeypatch.setattr(ray, "_starts", lambda number: False)
    task, local = local_task()
    engine = training.make(task, local, engine="ray", cluster=ray_engine.ClusterOptions(2))
    ray._starts = lambda number: True
    for actor in ray.actors:
        actor.train = type(actor)(remote=_answering(actor.train.remote))
    assert len(engine.updates(engine.initial, [0, 1], 0)) == 2
    assert caplog.text.count("no worker on Ray has started yet") == 2


def _answering(remote: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        reference = remote(*given)
        reference.answers = True
        return reference

    return call


@pytest.mark.parametrize(
    ("there", "share", "room"),
    [
        ({"CPU": 8.0}, 0.0, 8),
        ({"CPU": 8.0}, 1.0, 0),
        ({"CPU": 8.0, "GPU": 2.0}, 0.6, 2),
        ({"CPU": 8.0, "GPU": 2.0}, 0.5, 4),
        ({"CPU": 3.0, "GPU": 2.0}, 0.5, 3),
        ({"CPU": 8.0, "GPU": 3.0}, 2.0, 1),
        ({"CPU": 8.0, "GPU": 1.0}, 1 / 3, 3),
    ],
)
def test_a_part_of_a_gpu_is_of_one(there: dict[str, float], share: float, room: int) -> None:
    assert ray_engine._room(there, share) == room


def test_what_cannot_be_sent_is_told_in_a_line(stand_in: Callable[..., StandIn]) -> None:
    stand_in()
    lock = threading.Lock()

    def model() -> nn.Module:
        with lock:
            return nn.Linear(4, 3)

    data = [(np.zeros((4, 4)), np.zeros(4, dtype=np.int64))]
    task = tasks.Task.from_datasets(model, functional.cross_entropy, data, data)
    with pytest.raises(InvalidInput, match=r"cannot be sent to workers on Ray \(cannot pickle '_thread.lock' object\)"):
        training.make(task, training.LocalTraining(lr=0.1, steps=1), engine="ray")


def test_why_a_worker_cannot_be_made() -> None:
    told = (
        "The actor died because of an error raised in its creation task, ray::Worker.__init__()\n  File …\nFoo: bar\n"
    )
    assert ray_engine._reason(RuntimeError(told)).endswith("ray::Worker.__init__() … Foo: bar")
    assert ray_engine._reason(RuntimeError("one\ntwo")) == "one"
    assert ray_engine._reason(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(("address", "given"), [(None, "local"), ("local", "local"), ("auto", "auto")])
def test_without_an_address_no_cluster_is_joined(
    address: str | None, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    seen: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: seen.append(options["address"]))
    ray_cluster.connect(address)
    assert seen == [given]


def test_a_worker_holds_its_share_of_the_data_and_little_more(stand_in: Callable[..., StandIn]) -> None:
    ray = stand_in()
    task, _ = local_task()
    shared = shared_samples.SharedSamples(task.train, ray, 4)
    for client in [*range(10), *range(10)]:
        x, _ = shared.client(client)
        np.testing.assert_array_equal(x[""], task.train.client(client)[0])
        assert len(shared._fetched) <= max(2, 2 * -(-len(shared._blocks) // 4))


def test_a_run_goes_on_where_its_cluster_is_now(stand_in: Callable[..., StandIn], tmp_path: Path) -> None:
    ray = stand_in()

    class Interrupted(Callback):
        def on_round(self, simulation: Simulation, record: Any) -> None:
            if record.round == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("ray", workers=2, rule="mifa", store=tmp_path, callbacks=[Interrupted()])
    with Store.open(tmp_path, create=False) as store:
        (info,) = store.runs()
    assert identity(info.config) == identity({**info.config, "workers": 3, "ray_address": "auto"})
    gone_on = fs.resume(info.id, store=tmp_path, workers=3)
    assert len(ray.actors) == 2 + 3
    np.testing.assert_allclose(gone_on.model, run("loop", rule="mifa").model, rtol=1e-4, atol=1e-6)


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
    with pytest.raises(InvalidInput, match="a worker on Ray died 4 times in a row"):
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
    with pytest.raises(InvalidInput, match=r"gpus_per_worker = 1.0: the Ray cluster has .* 1 GPUs each for 0"):
        run("ray", gpus_per_worker=1.0)


def test_processors_that_others_use_are_not_waited_for_for_ever(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(processors=2).used = 1
    monkeypatch.setattr(ray_engine, "_PATIENCE", 0.0)
    with pytest.raises(InvalidInput, match="processors that nobody uses for 1 only"):
        run("ray", workers=2)


def test_settings_of_ray_are_for_ray() -> None:
    with pytest.raises(InvalidInput, match=r'workers .*for engine "ray" only'):
        run("loop", workers=2)
