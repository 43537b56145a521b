"""Many copies of a model as one program: what other threads do to other rows does not disturb it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedstale.tasks.models import digits_cnn
from fedstale.training.layout import FlatLayout
from fedstale.training.stacked import stacked


def test_other_rows_may_change_between_forward_and_backward() -> None:
    module = digits_cnn()
    layout = FlatLayout.of(module)
    rows = 0.1 * torch.randn(3, layout.num_params)
    x, y = torch.randn(1, 4, 1, 8, 8), torch.randint(10, (1, 4))

    def disturbing(logits: Tensor, target: Tensor) -> Tensor:
        rows[2].add_(1.0)  # as another thread does that trains its own clients
        return functional.cross_entropy(logits, target)

    weights = [w.clone() for w in layout.views(rows[:1])]
    _, wanted = stacked(module, functional.cross_entropy, layout)(weights, x, y, False)
    with torch.no_grad():
        _, found = stacked(module, disturbing, layout)(layout.views(rows[:1]), x, y, False)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
