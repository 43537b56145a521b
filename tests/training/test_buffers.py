"""What models keep beside their parameters, however they change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.training import LocalTraining, make

from .problems import plain_updates, relative, task

LOCAL = LocalTraining(lr=0.1, batch_size=8)
CLIENTS = np.arange(4)


class Assigning(nn.Module):
    """A running mean of its own, assigned anew in every step."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
        self.register_buffer("mean", torch.zeros(36))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        out: torch.Tensor = self.inner(x - self.mean)
        return out


class InPlace(Assigning):
    """The same, in the same memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        out: torch.Tensor = self.inner(x - self.mean)
        return out


def test_assigned_buffers_are_kept_and_never_another_clients() -> None:
    problem = task(Assigning)
    plain = make(task(InPlace), LOCAL, engine="loop")
    expected = plain.updates(plain.initial, CLIENTS, 0)
    for threads in (1, 2):
        engine = make(problem, LOCAL, engine="loop", threads=threads)
        updates = engine.updates(engine.initial, CLIENTS, 0)
        assert relative(updates, expected) < 1e-6
        assert relative(updates, plain_updates(problem, LOCAL, engine.initial, engine.batches(CLIENTS, 0), 0.1)) < 1e-6
        np.testing.assert_allclose(engine.client_buffers["mean"], plain.client_buffers["mean"], rtol=1e-5, atol=1e-7)
        alone = engine.updates(engine.initial, CLIENTS[2:], 0).copy()
        np.testing.assert_array_equal(engine.updates(engine.initial, CLIENTS, 0)[2:], alone)
        assert engine.evaluate(engine.initial).loss == pytest.approx(plain.evaluate(plain.initial).loss)


def test_a_run_has_the_assigned_buffer() -> None:
    states, losses = [], []
    for model in (Assigning, InPlace):
        run = fs.simulate(task(model), "fedavg", fs.Bernoulli(np.ones(4)), rounds=3, lr=0.1, progress=False)
        states.append(run.model_state()["mean"])
        losses.append(run.final("test_loss"))
    assert states[0].abs().max() > 0.01
    torch.testing.assert_close(states[0], states[1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("model", [Assigning, InPlace])
def test_vmap_refuses_buffers_that_change(model: Any) -> None:
    with pytest.raises(InvalidInput, match=r"(changes its buffer mean|cannot be vectorised).*: use engine='loop'"):
        make(task(model), LOCAL, engine="vmap")


def test_an_assigned_counter_is_noticed_by_vmap() -> None:
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(36, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            out: torch.Tensor = self.inner(x.flatten(1))
            return out

    with pytest.raises(InvalidInput, match="changes its buffer calls: use engine='loop'"):
        make(task(Counting), LOCAL, engine="vmap")


def test_what_is_cached_on_the_way_is_no_other_clients() -> None:
    class Remembering(nn.Module):
        first: torch.Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(36, 4)
            self.register_buffer("first", None, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            if self.first is None:
                self.first = x.mean(0)
            out: torch.Tensor = self.inner(x - self.first)
            return out

    engine = make(task(Remembering), LOCAL, engine="loop", threads=1)
    alone = engine.updates(engine.initial, CLIENTS[2:], 0).copy()
    np.testing.assert_array_equal(engine.updates(engine.initial, CLIENTS, 0)[2:], alone)


def test_a_buffer_that_changes_its_shape_is_refused() -> None:
    class Growing(Assigning):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = torch.zeros(2, 36)
            out: torch.Tensor = self.inner(x)
            return out

    engine = make(task(Growing), LOCAL, engine="loop")
    with pytest.raises(InvalidInput, match=r"model = 'buffer mean': became shape \(2, 36\): it must keep .* \(36,\)"):
        engine.updates(engine.initial, CLIENTS, 0)


@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_bfloat16_buffers_are_kept(name: str) -> None:
    class Scaled(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(36, 4)
            self.register_buffer("scale", torch.tensor([0.3], dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x.flatten(1) * self.scale.float())
            return out

    problem = task(Scaled)
    engine = make(problem, LOCAL, engine=name)
    expected = plain_updates(problem, LOCAL, engine.initial, engine.batches(CLIENTS, 0), 0.1)
    assert relative(engine.updates(engine.initial, CLIENTS, 0), expected) < 1e-6
    run = fs.simulate(problem, "fedavg", rounds=2, lr=0.1, progress=False)
    assert torch.equal(run.model_state()["scale"], torch.tensor([0.3], dtype=torch.bfloat16))
