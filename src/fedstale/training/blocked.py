"""The convolutional part of a model in oneDNN's own memory layout: float32 on the CPU.

Between plain tensors every convolution and pooling converts its layout or works in one that suits it less; inside
one opaque block they hand on what they like best, and pooling keeps one byte per output for the gradient instead of
eight. The paper's MNIST CNN trains a fifth faster than channels-last this way. Results agree to rounding; ties in
pooling go to the first value, as elsewhere in torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Forward = Callable[[Tensor], Tensor]


def leaves(module: nn.Module) -> list[nn.Module]:
    """Return the layers of nested `nn.Sequential`s in their order; any other module is one layer."""
    return [leaf for part in module for leaf in leaves(part)] if type(module) is nn.Sequential else [module]


def blocked(module: nn.Module) -> Forward | None:
    """Return the model as a function that runs its leading convolutions in one block; None if it has none."""
    layers = leaves(module)
    count = next((i for i, layer in enumerate(layers) if not _suits(layer)), len(layers))
    head, tail = layers[:count], layers[count:]
    if not any(isinstance(layer, nn.Conv2d) for layer in head):
        return None

    def forward(x: Tensor) -> Tensor:
        x = x.contiguous().to_mkldnn()
        for layer in head:
            # Never in place: pooling keeps its output in this layout.
            x = functional.relu(x) if isinstance(layer, nn.ReLU) else layer(x)
        x = x.to_dense()
        for layer in tail:
            x = layer(x)
        return x

    return forward


def can_run_blocked(module: nn.Module, x: Tensor) -> bool:
    """Whether this build of torch can train the model in blocks, tried on two inputs."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    forward = blocked(module) if available else None
    if forward is None:
        return False
    trainable = [p for p in module.parameters() if p.requires_grad]
    try:
        with torch.random.fork_rng(devices=[]):  # the rest of the model may have dropout
            torch.autograd.grad(forward(x).sum(), trainable, materialize_grads=True)
    except RuntimeError:
        return False
    return True


def _suits(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.MaxPool2d:
        return layer.dilation in (1, (1, 1)) and not layer.return_indices
    return type(layer) is nn.ReLU
