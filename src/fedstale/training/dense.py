"""Many copies of a dense network, each with a batch of its own, as one program: the fast path of `vmap`.

For an nn.Sequential of linear layers and ReLU, Tanh, Sigmoid or Identity under cross-entropy. Gradients are in closed
form: ∂loss/∂logits = (softmax(logits) − onehot(y))/B, then back through batched matrix products. Such a step takes 0.1
to 0.2 ms where `torch.func` needs more than 1 ms to interpret it. Activations are kept features first (S, features, B):
torch's softmax over a short last dimension is ten times slower than over a middle one. Runs in lock-step, whose copies
share their batch, have a faster program: `fedstale.sweeps.perceptron`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..tasks.client_data import single
from ..tasks.scores import Loss, is_cross_entropy
from ..tasks.task import Task
from .blocked import leaves

_aten = torch.ops.aten

BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor], object]] = {
    nn.ReLU: lambda slope, h: _aten.threshold_backward(slope, h, 0, grad_input=slope),
    nn.Tanh: lambda slope, h: _aten.tanh_backward(slope, h, grad_input=slope),
    nn.Sigmoid: lambda slope, h: _aten.sigmoid_backward(slope, h, grad_input=slope),
    nn.Identity: lambda slope, h: slope,
}
"""How a gradient passes an activation, given the activation's output: the slope is changed in place."""


class DenseProgram:
    """S copies of a dense network, each with its own inputs; the parameters of all copies are stacked, (S, …).

    Parameters
    ----------
    layers
        Linear layers and activations, as `dense_layers` returns them.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self._layers = layers

    def __call__(self, weights: list[Tensor], x: Tensor, y: Tensor, losses: bool) -> tuple[Tensor | None, list[Tensor]]:
        """Return the mean losses, shape (S,), if they are wanted, and their gradients.

        Parameters
        ----------
        weights
            Weights (S, out, in) and biases (S, out) of the linear layers in their order.
        x, y
            Inputs (S, B, …) and classes (S, B).
        losses
            Whether they are wanted.
        """
        h = x.flatten(2).transpose(1, 2)
        rest = iter(weights)
        seen: list[tuple[nn.Module, Tensor, Tensor]] = []
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight = next(rest)
                seen.append((layer, weight, h))
                h = torch.bmm(weight, h) if layer.bias is None else torch.baddbmm(next(rest).unsqueeze(2), weight, h)
            else:
                h = layer(h)
                seen.append((layer, h, h))
        target, h = y.unsqueeze(1), h.float()
        means = None
        if losses:
            logarithms = torch.log_softmax(h, dim=1)
            means = -logarithms.gather(1, target).mean(dim=2).squeeze(1)
            slope = logarithms.exp_()
        else:
            slope = torch.softmax(h, dim=1)
        slope.scatter_add_(1, target, slope.new_full((1, 1, 1), -1.0).expand(target.shape)).mul_(1.0 / y.shape[1])
        return means, self._backward(seen, slope)

    @staticmethod
    def _backward(seen: list[tuple[nn.Module, Tensor, Tensor]], slope: Tensor) -> list[Tensor]:
        gradients: list[Tensor] = []
        first = next(i for i, (layer, _, _) in enumerate(seen) if isinstance(layer, nn.Linear))
        for i, (layer, kept, before) in reversed(list(enumerate(seen))):
            if i < first:
                break
            if not isinstance(layer, nn.Linear):
                BACKWARD[type(layer)](slope, kept)
                continue
            if layer.bias is not None:
                gradients.append(slope.sum(dim=2, dtype=torch.float32))
            gradients.append(torch.bmm(slope, before.transpose(1, 2)))
            if i > first:
                slope = torch.bmm(kept.transpose(1, 2), slope)
        return gradients[::-1]


def dense_layers(module: nn.Module, loss: Loss, input_dimensions: int) -> list[nn.Module] | None:
    """Return the layers of a model that `DenseProgram` can do, without its flattening; None for another model or loss.

    Parameters
    ----------
    module, loss
        The model and the loss.
    input_dimensions
        Of a batch: 2 for vectors.
    """
    layers = leaves(module)
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    elif input_dimensions != 2:
        return None
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    parameters = [p for layer in linear for p in layer.parameters()]
    # A frozen or shared parameter is not one of the stacked ones.
    own = all(p.requires_grad for p in parameters) and len({id(p) for p in parameters}) == len(parameters)
    plain = all(type(layer) is nn.Linear or type(layer) in BACKWARD for layer in layers)
    return layers if plain and own and linear and is_cross_entropy(loss) else None


def dense_layers_of(module: nn.Module, task: Task) -> list[nn.Module] | None:
    """Return the layers of a task's model that `DenseProgram` can do; None for another model, loss or data."""
    x = single(task.train.x)
    if task.num_classes is None or x is None or x.dtype != torch.float32:
        return None
    return dense_layers(module, task.loss, x.ndim)
