from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstale.checks import InvalidInput
from fedstale.training import LocalTraining, make

from .problems import MODELS, task


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("clients", [None, [3, 0], [1, 2]])
def test_evaluation_is_what_a_plain_computation_gives(
    model: str, split: Any, clients: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstale.training.evaluation._EVALUATION_BYTES", 3000)  # several batches
    engine = make(task(MODELS[model], sizes=(40, 23, 31, 2)), LocalTraining(lr=0.1), engine="loop")
    result = engine.evaluate(engine.initial, clients=clients, split=split)
    ids = list(range(4)) if clients is None else clients
    module, data = engine.module(engine.initial), getattr(engine.setup.task, split)
    assert result.clients.tolist() == ids
    correct = total = 0
    sums = []
    for j, client in enumerate(ids):
        x, y = data.client(client)
        logits = module(x) if len(x) else torch.empty(0, 4)
        right = int((logits.argmax(1) == y).sum())
        loss = functional.cross_entropy(logits, y, reduction="sum").item() if len(x) else 0.0
        assert (result.counts[j], result.correct[j]) == (len(y), right)
        assert np.isclose(result.losses[j], loss, rtol=1e-5)
        if len(y):
            assert np.isclose(result.client_accuracies[j], right / len(y))
            assert np.isclose(result.client_losses[j], loss / len(y), rtol=1e-5)
        else:
            assert np.isnan(result.client_accuracies[j])
        correct, total = correct + right, total + len(y)
        sums.append(loss)
    assert np.isclose(result.accuracy, correct / total)
    assert np.isclose(result.loss, sum(sums) / total, rtol=1e-5)


def test_groups_are_weighted_by_size() -> None:
    engine = make(task(), LocalTraining(lr=0.1), engine="vmap")
    result = engine.evaluate(engine.initial)
    groups = {name: value for name, value in result.metrics().items() if "group" in name}
    assert set(groups) == {"accuracy_group0", "accuracy_group1"}
    assert np.isclose(groups["accuracy_group1"], result.correct[2:].sum() / result.counts[2:].sum())


def test_a_loss_of_ones_own_is_summed_per_client() -> None:
    def own(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.multi_margin_loss(logits, y)

    engine = make(task(loss=own), LocalTraining(lr=0.1), engine="loop")
    result = engine.evaluate(engine.initial)
    x, y = engine.setup.task.test.client(1)
    expected = functional.multi_margin_loss(engine.module(engine.initial)(x), y, reduction="sum").item()
    assert np.isclose(result.losses[1], expected, rtol=1e-5)


def test_one_number_per_class_is_not_one_per_sample() -> None:
    """Where there are two classes: the metric is tried on two samples, and on three."""

    def by_class(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        right = (logits.argmax(1) == y).float()
        return torch.stack([right[y == k].sum() / max(1, int((y == k).sum())) for k in (0, 1)])

    both = replace(task(), metrics={"by_class": by_class})
    engine = make(both, LocalTraining(lr=0.1), engine="loop")
    module, test = engine.module(engine.initial), both.test
    values = [float(by_class(module(x), y).mean()) for x, y in (test.client(i) for i in range(4))]
    expected = np.average(values, weights=test.sizes)
    assert engine.evaluate(engine.initial).metrics()["by_class"] == pytest.approx(expected)


class Scores(NamedTuple):
    logits: torch.Tensor
    inputs: list[torch.Tensor]


def test_named_tuples_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.training.evaluation._EVALUATION_BYTES", 64)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(36, 4)

        def forward(self, x: torch.Tensor) -> Scores:
            return Scores(self.layer(x.flatten(1)), [x])

    def loss(scores: Scores, y: torch.Tensor) -> torch.Tensor:
        assert len(scores.inputs[0]) == len(y)
        return functional.cross_entropy(scores.logits, y)

    problem = replace(task(), model=Named, loss=loss, num_classes=None, metrics={})
    engine = make(problem, LocalTraining(lr=0.1), engine="loop")
    module, test = engine.module(engine.initial), problem.test
    expected = [float(loss(module(x), y)) for x, y in (test.client(i) for i in range(4))]
    np.testing.assert_allclose(engine.evaluate(engine.initial).client_losses, expected, rtol=1e-5)


def test_evaluation_leaves_training_alone() -> None:
    model = lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4))  # noqa: E731
    engine = make(task(model), LocalTraining(lr=0.1, batch_size=8), engine="loop")
    before = engine.updates(engine.initial, [0, 1], 0).copy()
    first, second = (engine.evaluate(engine.initial).losses for _ in range(2))
    assert np.array_equal(first, second)  # no dropout in evaluation
    assert np.array_equal(engine.updates(engine.initial, [0, 1], 0), before)  # and dropout in training again


def test_nobody_and_unknown_splits() -> None:
    engine = make(task(), LocalTraining(lr=0.1), engine="loop")
    nobody = engine.evaluate(engine.initial, clients=np.empty(0, dtype=np.int64))
    assert np.isnan(nobody.accuracy)
    with pytest.raises(InvalidInput, match="did you mean test"):
        engine.evaluate(engine.initial, split="tets")  # type: ignore[arg-type]
