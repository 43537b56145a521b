"""The models: their sizes as stated, their shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedstale.tasks import models


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (models.logistic(784), (1, 28, 28), 7_850),
        (models.mlp(784), (1, 28, 28), 784 * 32 + 32 + 32 * 10 + 10),
        (models.mlp(64), (1, 8, 8), 2_410),
        (models.digits_cnn(), (1, 8, 8), 1_898),
        (models.mnist_cnn(), (1, 28, 28), 421_642),
        (models.cifar_cnn(), (3, 32, 32), 3_353_034),
    ],
)
def test_parameters_and_shapes(model: nn.Module, shape: tuple[int, ...], parameters: int) -> None:
    assert count(model) == parameters
    assert model(torch.zeros(3, *shape)).shape == (3, 10)
    assert not list(model.buffers())
