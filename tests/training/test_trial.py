"""What is seen on two samples first: whether a model bears channels-last convolutions, and whether it draws numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstale.checks import InvalidInput
from fedstale.training import LocalTraining, flatten, make

from .problems import MODELS, cnn, plain_updates, relative, task

LOCAL = LocalTraining(lr=0.1, batch_size=8)
CLIENTS = np.arange(4)


class Viewing(nn.Module):
    """The CNN of torch's first tutorial: `view` needs the strides of plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3)
        self.out = nn.Linear(5 * 2 * 2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.max_pool2d(functional.relu(self.convolution(x)), 2)
        out: torch.Tensor = self.out(h.view(-1, 5 * 2 * 2))
        return out


class Reshaping(Viewing):
    """The same function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.max_pool2d(functional.relu(self.convolution(x)), 2)
        out: torch.Tensor = self.out(h.flatten(1))
        return out


@pytest.mark.parametrize("name", ["auto", "loop", "vmap", "fastest"])
def test_a_cnn_that_views_trains_as_in_plain_torch(name: str) -> None:
    problem = task(Viewing, channels=3)
    engine = make(problem, LOCAL, engine=name)
    updates = engine.updates(engine.initial, CLIENTS, 0)
    expected = plain_updates(problem, LOCAL, engine.initial, engine.batches(CLIENTS, 0), 0.1)
    assert relative(updates, expected) < 1e-5
    assert 0 <= engine.evaluate(engine.initial).accuracy <= 1


def test_only_such_models_leave_channels_last() -> None:
    assert make(task(Reshaping, channels=3), LOCAL, engine="loop").setup.train.channels_last
    assert not make(task(Viewing, channels=3), LOCAL, engine="loop").setup.train.channels_last


def test_a_metric_that_views_leaves_channels_last_too() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            h = self.convolution(x)
            return h if not self.training else h.contiguous()

    def loss(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(h.mean((2, 3)), y)

    def largest(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return h.view(len(y), -1).amax(1)

    whole = task(Reshaping, channels=3)
    problem = replace(whole, model=Pixels, loss=loss, num_classes=None, metrics={"largest": largest})
    engine = make(problem, LOCAL, engine="loop")
    assert np.isfinite(engine.evaluate(engine.initial).metrics()["largest"])


def test_a_trial_of_two_samples_refuses_no_model() -> None:
    class AtLeastThree(Reshaping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and len(x) < 3:
                raise RuntimeError("too few")
            return super().forward(x)

    engine = make(task(AtLeastThree, channels=3), LOCAL, engine="loop")
    usual = make(task(Reshaping, channels=3), LOCAL, engine="loop")
    updates = usual.updates(usual.initial, CLIENTS, 0)
    assert np.array_equal(engine.updates(engine.initial, CLIENTS, 0), updates)


def perceptron(noise: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> Callable[[], nn.Module]:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(36, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(noise(self, torch.tanh(self.inner(x.flatten(1)))))
            return out

    return Noisy


NOISY: dict[str, Callable[[], nn.Module]] = {
    "functional dropout": perceptron(lambda model, h: functional.dropout(h, 0.5, model.training)),
    "depth": perceptron(lambda model, h: h * (torch.rand(len(h), 1) < 0.5) * 2 if model.training else h),
    "always": perceptron(lambda _, h: h + 0.3 * torch.randn_like(h)),
}


@pytest.mark.parametrize("noise", NOISY)
def test_random_numbers_of_any_kind_are_seeded(noise: str) -> None:
    """As those of dropout are: by run, round and client, whatever the threads and the state of torch."""
    found: list[tuple[Any, Any]] = []
    for threads in (1, 2, 1):
        torch.manual_seed(len(found))
        engine = make(task(NOISY[noise]), LOCAL, threads=threads, seed=3)
        before = torch.random.get_rng_state()
        updates = engine.updates(engine.initial, CLIENTS, 0).copy()
        alone = engine.updates(engine.initial, CLIENTS[2:], 0)
        np.testing.assert_array_equal(alone, updates[2:])
        losses = engine.evaluate(engine.initial).losses
        assert torch.equal(torch.random.get_rng_state(), before)
        np.testing.assert_array_equal(engine.evaluate(engine.initial).losses, losses)
        found.append((updates, losses))
    for updates, losses in found[1:]:
        np.testing.assert_array_equal(updates, found[0][0])
        np.testing.assert_array_equal(losses, found[0][1])


def test_a_loss_that_draws_is_seeded_too() -> None:
    def noisy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits + torch.randn_like(logits), y)

    first, again = (make(task(loss=noisy), LOCAL, threads=2) for _ in range(2))
    updates = first.updates(first.initial, CLIENTS, 0)
    np.testing.assert_array_equal(again.updates(again.initial, CLIENTS, 0), updates)


@pytest.mark.parametrize("noise", NOISY)
def test_vmap_refuses_random_numbers(noise: str) -> None:
    with pytest.raises(InvalidInput, match=r"other random numbers .*: use engine='loop'"):
        make(task(NOISY[noise]), LOCAL, engine="vmap")


@pytest.mark.parametrize("model", MODELS)
def test_other_models_draw_nothing(model: str) -> None:
    assert not make(task(MODELS[model]), LOCAL).setup.stochastic


def test_making_an_engine_leaves_the_model_and_the_stream_alone() -> None:
    before = torch.random.get_rng_state()
    problem = task(cnn)
    engine = make(problem, LOCAL, seed=5)
    np.testing.assert_array_equal(engine.initial, flatten(problem.build(5)))
    assert torch.equal(torch.random.get_rng_state(), before)
