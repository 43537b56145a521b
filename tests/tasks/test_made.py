"""Samples that a function makes: the same runs as with the samples in memory, and nothing is made that nobody needs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.tasks import ClientData, MadeData, Task, make_clients

SIZES = [9, 12, 10, 30, 11, 8]


def pictures(client: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(client)
    return rng.normal(size=(SIZES[client], 3, 8, 8)), rng.integers(4, size=SIZES[client])


def flat(client: int) -> tuple[Any, Any]:
    x, y = pictures(client)
    return x.reshape(len(x), -1), y


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4))


def in_memory(made: MadeData) -> ClientData:
    clients = [made.client(i) for i in range(made.num_clients)]
    return ClientData(torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]), made.offsets)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("function", [pictures, flat])
def test_a_run_is_that_with_the_samples_in_memory(engine: str, function: Any) -> None:
    made = make_clients(function, SIZES)
    model = convolutions if function is pictures else perceptron

    def run(split: ClientData) -> fs.Result:
        task = Task("made", split, split, model, functional.cross_entropy, 4, np.arange(6) % 2)
        options: dict[str, Any] = {"p_min": 0.5, "batch_size": 4, "epochs": 1, "progress": False}
        return fs.simulate(task, rounds=5, engine=engine, threads=1, **options)

    seen, wanted = run(made), run(in_memory(made))
    np.testing.assert_allclose(seen.model, wanted.model, rtol=1e-5, atol=1e-7)
    for metric in ("accuracy", "objective", "test_loss"):
        assert seen.final(metric) == pytest.approx(wanted.final(metric), rel=1e-5)


def test_only_clients_that_are_asked_for_are_made() -> None:
    calls: list[int] = []

    def noted(client: int) -> tuple[Any, Any]:
        calls.append(client)
        return flat(client)

    made = make_clients(noted, SIZES)
    assert calls == [0]
    assert made.x.untyped_storage().nbytes() <= 4 * 192 * SIZES[0]  # no row for each sample
    made.rows(np.array([int(made.offsets[3]) + 2, int(made.offsets[5])]))
    made.client(3)
    assert calls == [0, 3, 5]


def test_it_travels_as_a_function() -> None:
    made = make_clients(flat, SIZES)
    sent = pickle.dumps(made)
    assert len(sent) < 1000
    back = pickle.loads(sent)
    np.testing.assert_array_equal(back.client(4)[0], made.client(4)[0])
    assert back.fingerprint() == made.fingerprint() != make_clients(pictures, SIZES).fingerprint()


def test_samples_by_name() -> None:
    made = make_clients(lambda i: {"ids": np.full((2, 3), i), "mask": np.ones((2, 3)), "label": [i, i]}, [2, 2])
    x, y = made.rows(np.array([3, 0]))
    assert isinstance(x, dict)
    assert isinstance(y, torch.Tensor)
    assert x["ids"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda i: (np.ones((3 - i, 2)), np.zeros(3 - i, dtype=int)), "client 1 = '2 samples': must have 3"),
        (lambda i: (np.ones((3, 2 + i)), np.zeros(3, dtype=int)), "client 1 = .*as the first client's"),
        (lambda i: (np.ones((3, 2)), np.zeros(3, dtype=float if i else int)), "client 1 = .*as the first client's"),
    ],
)
def test_a_client_that_is_not_like_the_others_is_refused(function: Any, message: str) -> None:
    made = make_clients(function, [3, 3])
    with pytest.raises(InvalidInput, match=message):
        made.client(1)


def test_sizes_are_checked() -> None:
    for sizes in ([], [0, 3], [3, -1]):
        with pytest.raises(InvalidInput, match="sizes"):
            make_clients(flat, sizes)
