"""Losses and metrics: which names a metric may have, which places count, which shapes go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.analysis import metrics as shown
from fedstale.checks import InvalidInput
from fedstale.tasks import accuracy, mean_absolute_error, sequence_cross_entropy

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


def test_places_without_a_class_are_left_out_of_the_accuracy_as_of_the_loss() -> None:
    """A perfect model had an accuracy of 0.5 where half of the places were padding."""
    ids = np.random.default_rng(0).integers(5, size=(60, 6))
    y = ids.copy()
    y[:, 3:] = -100
    y[:, 4] = np.where(np.arange(60) % 2, (ids[:, 4] + 1) % 5, -100)  # 30 wrong ones of 210

    def perfect() -> nn.Module:
        model = nn.Embedding(5, 5)
        model.weight.data = 10 * torch.eye(5)
        return model

    data = [(ids[k::3], y[k::3]) for k in range(3)]
    task = fs.Task.from_datasets(perfect, sequence_cross_entropy, data, data, metrics={"accuracy": accuracy})
    seen = fs.training.make(task, fs.training.LocalTraining(lr=0.1))
    assert seen.evaluate(seen.initial).accuracy == pytest.approx(180 / 210)
    few = torch.tensor(y[:2])
    assert float(accuracy(perfect()(torch.tensor(ids[:2])), few)) == pytest.approx(6 / 7)


def test_targets_of_another_shape_are_not_spread_over_all_samples() -> None:
    """Outputs (n, 1) and targets (n,) gave (n, n) errors; classes (n, 1) an accuracy over all pairs."""
    model = lambda: nn.Linear(3, 1)  # noqa: E731
    loss = lambda outputs, y: functional.mse_loss(outputs.squeeze(1), y)  # noqa: E731
    task = fs.Task.from_arrays(X, X[:, 0], IDS, model=model, loss=loss, metrics={"mae": mean_absolute_error})
    told = r"metrics = 'mae': cannot be computed: targets = 'shape \(2,\)': must be of shape \(2, 1\)"
    with pytest.raises(InvalidInput, match=told):
        fs.simulate(task, rounds=1)
    with pytest.raises(InvalidInput, match=r"classes = 'shape \(4, 1\)': must be of shape \(4,\)"):
        accuracy(torch.eye(4), torch.arange(4)[:, None])


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (functional.huber_loss, Y),  # torch says so in the backward pass only: "Found dtype Long but expected Float"
        (functional.binary_cross_entropy_with_logits, Y),
        (functional.binary_cross_entropy_with_logits, Y == 1),
        (functional.binary_cross_entropy_with_logits, np.eye(2, dtype=bool)[Y]),
        (nn.BCEWithLogitsLoss(), np.eye(2, dtype=int)[Y]),
    ],
)
def test_integers_for_a_loss_that_wants_numbers_say_what_to_do(loss: Any, y: np.ndarray) -> None:
    model = lambda: nn.Linear(3, 2) if y.ndim > 1 else nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))  # noqa: E731
    with pytest.raises(
        InvalidInput, match=r'cannot take .*; this loss wants numbers: y\.astype\("float32"\)'
    ) as caught:
        fs.Task.from_arrays(X, y, IDS, model=model, loss=loss)
    assert "\n" not in str(caught.value)
    fs.Task.from_arrays(X, y.astype("float32"), IDS, model=model, loss=loss)


def test_classes_in_a_column_say_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"this loss wants one class per sample: y\[:, 0\]"):
        fs.Task.from_arrays(X, Y[:, None], IDS)


def test_no_advice_where_it_would_not_help() -> None:
    with pytest.raises(InvalidInput, match=r"loss = 'cross_entropy': cannot take .*Target 7 is out of bounds\.$"):
        fs.Task.from_arrays(X, np.full(40, 7), IDS, model=lambda: nn.Linear(3, 2))


def test_a_loss_that_writes_into_its_outputs_is_one() -> None:
    loss = lambda outputs, y: functional.cross_entropy(outputs.mul_(2.0), y)  # noqa: E731
    assert fs.Task.from_arrays(X, Y, IDS, model=lambda: nn.Linear(3, 2), loss=loss).num_classes == 2


def test_counts_and_a_model_of_their_mean_and_variance_are_no_classes() -> None:
    counts = np.arange(40) % 30
    likelihood = lambda out, y: functional.gaussian_nll_loss(out[:, 0], y.float(), out[:, 1].exp())  # noqa: E731
    task = fs.Task.from_arrays(X, counts, IDS, model=lambda: nn.Linear(3, 2), loss=likelihood)
    assert task.num_classes is None
    assert "accuracy" not in fs.simulate(task, rounds=1, progress=False).metrics
    of_classes = lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1)  # noqa: E731
    with pytest.raises(InvalidInput, match="classes must lie in 0 … 1"):  # a loss that cannot take them
        fs.Task.from_arrays(X, np.where(np.arange(40) < 36, Y, 2), IDS, model=lambda: nn.Linear(3, 2), loss=of_classes)
