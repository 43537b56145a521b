"""Many copies of any model as one program, by `torch.func`: stacked parameters (S, …) and inputs (S, B, …) in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..tasks.client_data import Values
from ..tasks.scores import Loss, as_float
from .layout import FlatLayout

Program = Callable[[list[Tensor], Any, Any, bool], tuple[Tensor | None, list[Tensor]]]
"""(stacked parameters, x (S, B, …), y (S, B, …), are losses wanted) -> (S mean losses or None, stacked gradients)."""


def stacked(module: nn.Module, loss: Loss, layout: FlatLayout) -> Program:
    """Return the program that computes the losses of S copies of a model, and their gradients."""

    def single_loss(parameters: tuple[Tensor, ...], x: Values, y: Values) -> Tensor:
        named = dict(zip(layout.names, parameters, strict=True))
        outputs = functional_call(module, named, (), x) if isinstance(x, dict) else functional_call(module, named, (x,))
        return loss(as_float(outputs), y)

    all_losses = vmap(single_loss)

    def program(weights: list[Tensor], x: Values, y: Values, losses: bool) -> tuple[Tensor | None, list[Tensor]]:
        with torch.enable_grad():
            # Not detach(): clients' weights are rows of one tensor, whose version counter autograd would look at, and
            # other threads change their rows meanwhile.
            leaves = [w.data.requires_grad_() for w in weights]
            values: Tensor = all_losses(tuple(leaves), x, y)
        # The losses are independent, so the gradient of their sum is the copies' gradients side by side.
        gradients = torch.autograd.grad(values, leaves, torch.ones_like(values), materialize_grads=True)
        return values.detach(), list(gradients)

    return program
