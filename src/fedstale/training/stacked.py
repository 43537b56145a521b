"""Many copies of one model as one program: stacked parameters (S, …) and inputs (S, B, …) in, S losses out.

`torch.func.vmap` does this for any model, at the price of interpreting every operation anew in every step: about a
millisecond, more than the arithmetic of a small model. A model made of dense layers is therefore written out as
batched matrix products, which is what vmap arrives at, several times faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from ..tasks.task import Loss
from .layout import Layout

Stacked = Callable[[list[Tensor], Tensor], Tensor]

ELEMENTWISE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Identity,
)
"""Layers that treat every number alike, so that a further leading dimension makes no difference to them."""


def stacked_model(module: nn.Module, layout: Layout) -> Stacked:
    """Return the function (parameters, inputs (S, B, …)) -> logits (S, B, classes) of S copies of a model."""
    layers = dense_layers(module)
    if layers is not None:
        return lambda parameters, x: _dense(layers, parameters, x)

    def one(parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        result: Tensor = functional_call(module, dict(zip(layout.names, parameters, strict=True)), (x,))
        return result

    mapped = vmap(one)
    return lambda parameters, x: mapped(tuple(parameters), x)


def stacked_loss(loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function (logits (S, B, classes), y (S, B)) -> S mean losses."""
    if loss is functional.cross_entropy:

        def each(logits: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)

        return each
    mapped: Callable[[Tensor, Tensor], Tensor] = vmap(loss)
    return mapped


def dense_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a model made of dense, elementwise and flattening layers only; None for any other."""
    layers = _leaves(module)
    plain = all(
        type(layer) in (nn.Linear, *ELEMENTWISE)
        or (type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1))
        for layer in layers
    )
    held = [p for layer in layers for p in layer.parameters()]
    own = all(p.requires_grad for p in held) and len({id(p) for p in held}) == len(held)
    return layers if plain and own else None


def _leaves(module: nn.Module) -> list[nn.Module]:
    return [leaf for part in module for leaf in _leaves(part)] if type(module) is nn.Sequential else [module]


def _dense(layers: list[nn.Module], parameters: list[Tensor], x: Tensor) -> Tensor:
    rest = iter(parameters)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weight = next(rest).transpose(1, 2)
            between = x.shape[1:-1]
            x = x.flatten(1, -2) if len(between) > 1 else x
            x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(rest).unsqueeze(1), x, weight)
            x = x.view(len(x), *between, -1) if len(between) > 1 else x
        elif isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        else:
            x = layer(x)
    return x
