"""Many copies of any model as one program, by `torch.func`: stacked parameters (S, …) and inputs (S, B, …) in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..tasks.task import Loss
from .layout import FlatLayout

Program = Callable[[list[Tensor], Tensor, Tensor, bool], tuple[Tensor | None, list[Tensor]]]
"""(stacked parameters, x (S, B, …), y (S, B), are losses wanted) -> (S mean losses or None, stacked gradients)."""


def stacked(module: nn.Module, loss: Loss, layout: FlatLayout) -> Program:
    """Return the program that computes the losses of S copies of a model, and their gradients."""

    def single_loss(parameters: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = functional_call(module, dict(zip(layout.names, parameters, strict=True)), (x,))
        return loss(logits.float(), y)

    all_losses = vmap(single_loss)

    def program(weights: list[Tensor], x: Tensor, y: Tensor, losses: bool) -> tuple[Tensor | None, list[Tensor]]:
        with torch.enable_grad():
            # Not detach(): clients' weights are rows of one tensor, whose version counter autograd would look at, and
            # other threads change their rows meanwhile.
            leaves = [w.data.requires_grad_() for w in weights]
            values: Tensor = all_losses(tuple(leaves), x, y)
        # The losses are independent, so the gradient of their sum is the copies' gradients side by side.
        gradients = torch.autograd.grad(values, leaves, torch.ones_like(values), materialize_grads=True)
        return values.detach(), list(gradients)

    return program
