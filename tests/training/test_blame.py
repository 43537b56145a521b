"""An error on one client's data is one line that names the client, and the error itself is its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.tasks import Task
from fedstale.training import LocalTraining, make, ray_engine, shared_samples

LOCAL = LocalTraining(lr=0.1, batch_size=4, steps=2)
CLIENTS = np.arange(4)


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3))


def task(*, train: int | None = None, test: int | None = None, **options: Any) -> Task:
    """Pairs of five words; one client may have a sixth."""

    def split(stranger: int | None) -> list[Any]:
        rng = np.random.default_rng(0)
        clients = [(rng.integers(5, size=(8, 2)), rng.integers(3, size=8)) for _ in range(4)]
        if stranger is not None:
            clients[stranger][0][:] = 5
        return clients

    return Task.from_datasets(words, functional.cross_entropy, split(train), split(test), **options)


@pytest.mark.parametrize("name", ["loop", "vmap"])
@pytest.mark.parametrize("threads", [1, 2])
def test_training_names_the_client(name: str, threads: int) -> None:
    engine = make(task(train=3), LOCAL, engine=name, threads=threads)
    with pytest.raises(InvalidInput, match="client = 3: cannot be trained: IndexError: index out of range") as raised:
        engine.updates(engine.initial, CLIENTS, 0)
    assert isinstance(raised.value.__cause__, IndexError)
    assert engine.updates(engine.initial, CLIENTS[:3], 0).any()


@pytest.mark.parametrize("name", ["loop", "vmap"])
@pytest.mark.parametrize("metric", ["by sample", "by client"])
def test_evaluation_names_the_client(name: str, metric: str) -> None:
    metrics = {} if metric == "by sample" else {"largest": lambda logits, y: logits.max()}
    names = ("ann", "bob", "eve", "joe")
    engine = make(task(test=2, metrics=metrics, client_names=names), LOCAL, engine=name)
    assert engine.setup.scoring.by_sample == (metric == "by sample")
    with pytest.raises(InvalidInput, match="client = 'eve': cannot be evaluated: IndexError: index out") as raised:
        engine.evaluate(engine.initial)
    assert isinstance(raised.value.__cause__, IndexError)
    assert np.isfinite(engine.evaluate(engine.initial, clients=[0, 3]).loss)
    with pytest.raises(InvalidInput, match="client = 'eve'"):
        engine.evaluate(engine.initial, clients=[1, 2])


def test_a_metric_that_cannot_be_computed_for_a_client_is_told() -> None:
    def ratio(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tensor(1 / int((y == 0).sum()))

    without = task()
    without.test.y[without.test.offsets[3] :] = 1
    without.train.y[:2] = 0
    engine = make(replace(without, metrics={"ratio": ratio}), LOCAL)
    with pytest.raises(InvalidInput, match="client = 3: cannot be evaluated: ZeroDivisionError: division by zero"):
        engine.evaluate(engine.initial)


def test_after_an_evaluation_that_failed_dropout_still_draws() -> None:
    dropping = lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 3))  # noqa: E731
    engine = make(replace(task(test=1), model=dropping), LOCAL)
    before = engine.updates(engine.initial, CLIENTS, 0).copy()
    with pytest.raises(InvalidInput, match="client = 1"):
        engine.evaluate(engine.initial)
    np.testing.assert_array_equal(engine.updates(engine.initial, CLIENTS, 0), before)


def test_a_run_ends_with_the_line() -> None:
    with pytest.raises(InvalidInput, match="client = 1: cannot be trained: IndexError"):
        fs.simulate(task(train=1), "fedavg", fs.Bernoulli(np.ones(4)), rounds=1, lr=0.1, progress=False)


def test_workers_on_ray_name_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from .ray_stand_in import StandIn

    ray = StandIn()
    monkeypatch.setattr(ray_engine, "connect", lambda address: (ray, True))
    monkeypatch.setattr(shared_samples, "fetch", ray.get)
    engine = make(task(train=3), LOCAL, engine="ray", cluster=ray_engine.ClusterOptions(2))
    with pytest.raises(InvalidInput, match="client = 3: cannot be trained: IndexError"):
        engine.updates(engine.initial, [1, 2, 3], 0)
