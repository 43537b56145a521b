from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.checks import InvalidInput, UnknownName
from fedstale.training import LocalTraining, make

from .problems import task

LOCAL = LocalTraining(lr=0.1, batch_size=8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"engine": "lop"}, "unknown engine 'lop': did you mean loop"),
        ({"engine": "jax"}, "known: auto, fastest, loop, ray, vmap"),
        ({"precision": "bfloat"}, "did you mean bfloat16"),
        ({"precision": "float64"}, "did you mean bfloat16 or float32"),
        ({"device": "gpu"}, "device = 'gpu'"),
        ({"device": "meta"}, "device = 'meta'"),
        ({"threads": 0}, "threads = 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        make(task(), LOCAL, **options)


def test_names_have_an_error_of_their_own() -> None:
    with pytest.raises(UnknownName):
        make(task(), LOCAL, engine="x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_asked_for_but_not_there() -> None:
    with pytest.raises(InvalidInput, match="device = 'cuda': torch finds 0 CUDA devices"):
        make(task(), LOCAL, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_cuda_agrees_with_the_cpu(name: str) -> None:
    there, here = (make(task(), LOCAL, engine=name, device=device) for device in ("cuda", "cpu"))
    a, b = (engine.updates(engine.initial, [0, 1], 0) for engine in (there, here))
    assert np.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"model": np.zeros(3)}, r"model = 'array of shape \(3,\)'"),
        ({"clients": [0, 0]}, "only once"),
        ({"clients": [4]}, r"clients\[0\] = 4"),
        ({"round": -1}, "round = -1"),
        ({"linear": np.zeros(3)}, r"linear = 'array of shape \(3,\)'"),
        ({"prox": -1.0}, "prox = -1.0"),
    ],
)
@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_wrong_rounds_are_named(name: str, arguments: dict[str, Any], named: str) -> None:
    engine = make(task(), LOCAL, engine=name)
    with pytest.raises(InvalidInput, match=named):
        engine.updates(**{"model": engine.initial, "clients": [0, 1], "round": 0, **arguments})


def test_a_model_that_vmap_cannot_do_is_named_and_auto_loops() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(36, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h: torch.Tensor = self.layer(x.flatten(1))
            return h if h.sum().item() > 0 else 2.0 * h

    with pytest.raises(InvalidInput, match="cannot be vectorised"):
        make(task(Branching), LOCAL, engine="vmap")
    engine = make(task(Branching), LOCAL, engine="auto")
    engine.updates(engine.initial, [0, 1], 0)
    assert engine.resolved_name == "loop"


def test_an_error_in_a_client_reaches_the_caller() -> None:
    def broken(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(y) > 2:  # more than are tried out before
            raise RuntimeError("this loss is broken")
        return logits.mean()

    engine = make(task(loss=broken), LOCAL, engine="loop", threads=2)
    with pytest.raises(InvalidInput, match="cannot be trained: RuntimeError: this loss is broken"):
        engine.updates(engine.initial, [0, 1, 2], 0)


def test_the_model_is_the_tasks_own() -> None:
    problem = task()
    engine = make(problem, LOCAL, seed=5)
    module = engine.module(engine.initial)
    for a, b in zip(module.parameters(), problem.build(5).parameters(), strict=True):
        assert torch.equal(a, b)
    assert not np.array_equal(engine.initial, make(problem, LOCAL, seed=6).initial)
    engine.initial[:] = 0.0
    assert engine.initial.any()
