"""Losses and metrics: which names a metric may have, which places count, which shapes go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.analysis import metrics as shown
from fedstale.checks import InvalidInput

X, Y, IDS = np.random.default_rng(3).normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) % 4


def _constant(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.full((len(y),), 42.0)


def _recorded() -> set[str]:
    """What runs of several kinds record."""
    task = fs.Task.from_arrays(X, Y, IDS, batch_size=4)
    more: list[dict[str, Any]] = [
        {"rule": "fedstale", "beta": "auto", "memory_error": True, "update_noise": 2, "quantiles": 2},
        {"server": "synchronous", "deadline": 1.0},
        {"rule": "ace", "server": "asynchronous"},
        {"rule": "fedavg"},
    ]
    found: set[str] = set()
    for options in more:
        found |= set(fs.simulate(task, p_min=1.0, rounds=2, lr=0.1, progress=False, **options).metrics)
    return found


def test_no_metric_may_have_the_name_of_what_runs_record() -> None:
    """A metric called "loss" replaced the test loss and the objective, others whatever had their name."""
    fs.Task.from_arrays(X, Y, IDS, metrics={"accuracy": _constant, "mine": _constant})
    swapped = {"swap_train", "swap_test"}
    for name in {"loss", "round", *swapped, *shown.TITLES, *shown._RECORDED, *_recorded()} - {"accuracy"}:
        with pytest.raises(InvalidInput, match=f"metrics = '{name}': is the name of something that runs record"):
            fs.Task.from_arrays(X, Y, IDS, metrics={name: _constant})


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ([_constant], "metrics = 'list': must be functions by name"),
        ({3: _constant}, "metrics = 3: must be a name of letters and digits"),
        ({"my error": _constant}, "metrics = 'my error': must be a name of letters and digits"),
        ({"size": 3}, r"metrics\['size'\] = 3: must be a function"),
    ],
)
def test_metrics_that_are_no_functions_by_name_are_one_clear_line(metrics: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        fs.Task.from_arrays(X, Y, IDS, metrics=metrics)
    assert "\n" not in str(caught.value)
