"""Samples in memory-mapped files: what was written comes back, nothing is half written, and names travel, not data."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstale import training
from fedstale.checks import InvalidInput
from fedstale.tasks import Task, open_clients, write_clients

SIZES = (5, 1, 8, 3)


def clients() -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    for size in SIZES:
        yield rng.normal(size=(size, 2, 3)), rng.integers(3, size=size)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    found = write_clients(tmp_path / "train", clients())
    assert found.sizes.tolist() == list(SIZES)
    for i, (x, y) in enumerate(clients()):
        own_x, own_y = found.client(i)
        assert isinstance(own_x, torch.Tensor)
        assert isinstance(own_y, torch.Tensor)
        np.testing.assert_array_equal(own_x.numpy(), x.astype(np.float32))
        np.testing.assert_array_equal(own_y.numpy(), y)
    assert found.fingerprint() == open_clients(tmp_path / "train").fingerprint()


def test_several_inputs_by_name(tmp_path: Path) -> None:
    def made() -> Iterator[dict[str, Any]]:
        for n in (3, 2):
            yield {"ids": np.arange(2 * n).reshape(n, 2), "mask": np.ones((n, 2), dtype=bool), "label": np.arange(n)}

    found = write_clients(tmp_path, made())
    x = open_clients(tmp_path).x
    assert isinstance(x, dict)
    assert sorted(x) == ["ids", "mask"]
    assert x["mask"].dtype == torch.bool
    assert found.num_samples == 5


def test_it_travels_as_a_name(tmp_path: Path) -> None:
    found = write_clients(tmp_path, ((np.ones((4000, 50)), np.zeros(4000, dtype=int)) for _ in range(3)))
    sent = pickle.dumps(found)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).offsets, found.offsets)


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    def other() -> Iterator[tuple[Any, Any]]:
        yield np.ones((2, 3)), np.zeros(2, dtype=int)
        yield np.ones((2, 4)), np.zeros(2, dtype=int)

    with pytest.raises(InvalidInput, match=r"clients\[1\].*must be of float32 and shape \(3,\)"):
        write_clients(tmp_path, other())
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match="at least one client"):
        write_clients(tmp_path, [])
    with pytest.raises(InvalidInput, match="does not hold clients' samples"):
        open_clients(tmp_path / "nowhere")
    write_clients(tmp_path, clients())
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-20])
    with pytest.raises(InvalidInput, match="does not hold clients' samples"):
        open_clients(tmp_path)


def test_training_is_that_of_data_in_memory(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))

    mapped = write_clients(tmp_path, clients())
    there = Task("there", mapped, mapped, model, functional.cross_entropy, 3, np.zeros(len(SIZES), dtype=np.int64))
    here = Task.from_datasets(model, functional.cross_entropy, list(clients()), list(clients()))
    local = training.LocalTraining(lr=0.1, steps=3, batch_size=4)
    engines = [training.make(task, local, engine="loop", threads=1) for task in (there, here)]
    first, second = (engine.updates(engine.initial, range(len(SIZES)), 0) for engine in engines)
    np.testing.assert_array_equal(first, second)
