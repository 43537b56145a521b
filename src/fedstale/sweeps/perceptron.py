"""Local SGD (Algorithm 1, inner loop) of many runs' perceptrons at once, gradients written out.

Runs that share seed and participants share their batches, too: a client's inputs X, shape (B, inputs), are the same in
all of them, only models, rates and (with swapped labels) classes differ. The first layer of R runs is therefore *one*
matrix product, (R·hidden × inputs) · (inputs × B), and so is its gradient; further layers are batched products. Samples
are the last dimension throughout, which is the order in which no product needs a transposed copy. The arithmetic is
that of `training.VmapEngine` to rounding, at a fraction of its cost. (That engine's `training.dense.DenseProgram` is
for copies whose inputs differ, and returns gradients, which a rule or momentum may change before a step is made.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..training.dense import BACKWARD, dense_layers

Tensors = list[Tensor]


@dataclass(frozen=True, eq=False)
class _Buffers:
    """Room for the outputs of all layers, the slopes of the loss in them, their sums over samples, and −1s."""

    outputs: Tensors
    slopes: Tensors
    sums: Tensors
    minus: Tensor


@dataclass(frozen=True)
class SharedBatchPerceptron:
    """A perceptron whose copies train on one and the same batch: Flatten, then dense layers with ReLU in between.

    Parameters
    ----------
    sizes
        Widths from the inputs to the logits; two of them are multinomial logistic regression.
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module) -> SharedBatchPerceptron | None:
        """Read a model of inputs of any shape, trained by cross-entropy; None for one that is no such perceptron."""
        layers = dense_layers(module, functional.cross_entropy, input_dimensions=4)
        if layers is None or len(layers) % 2 == 0 or any(type(layer) is not nn.ReLU for layer in layers[1::2]):
            return None
        linear = [layer for layer in layers[::2] if isinstance(layer, nn.Linear) and layer.bias is not None]
        if len(linear) != len(layers[::2]):
            return None
        return cls((linear[0].in_features, *(layer.out_features for layer in linear)))

    @property
    def num_params(self) -> int:
        """Number of parameters d."""
        return sum((inputs + 1) * outputs for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False))

    def empty(self, runs: int) -> Tensors:
        """Make room for R models: weight (R, out, in) and bias (R, out, 1) of every layer, in the vector's order."""
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return [torch.empty(shape) for i, o in pairs for shape in ((runs, o, i), (runs, o, 1))]

    def unpack(self, flat: Tensor, out: Tensors) -> None:
        """Copy R model vectors, shape (R, d), into the layers."""
        for part, piece in zip(out, self._pieces(flat), strict=True):
            part.view(len(flat), -1).copy_(piece)

    def differences(self, flat: Tensor, layers: Tensors, out: Tensor) -> None:
        """Write Δ = w_t − w_i: `flat`, shape (R, d), minus the layers."""
        for part, start, piece in zip(layers, self._pieces(flat), self._pieces(out), strict=True):
            torch.sub(start, part.view(len(flat), -1), out=piece)

    def _pieces(self, flat: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return torch.split_with_sizes(flat, [size for i, o in pairs for size in (i * o, o)], dim=1)

    def buffers(self, runs: int, batch: int) -> _Buffers:
        """Make room for what a step computes: allocating it anew in every step costs as much as the arithmetic."""
        widths = self.sizes[1:]
        outputs = [torch.empty(runs, wide, batch) for wide in widths]
        slopes = [torch.empty(runs, wide, batch) for wide in widths]
        sums = [torch.empty(runs, wide, 1) for wide in widths]
        return _Buffers(outputs, slopes, sums, torch.full((runs, 1, batch), -1.0))

    def forward(self, layers: Tensors, x: Tensor, out: Tensors) -> Tensor:
        """Compute every layer's output, shape (R, width, B), for inputs x of shape (B, inputs); return the logits."""
        weight = layers[0]
        torch.addmm(layers[1].view(-1, 1), weight.view(-1, weight.shape[2]), x.T, out=out[0].view(-1, len(x)))
        for k in range(1, len(out)):
            torch.baddbmm(layers[2 * k + 1], layers[2 * k], out[k - 1].relu_(), out=out[k])
        return out[-1]

    def step(self, layers: Tensors, x: Tensor, y: Tensor, rates: Tensor, shrink: Tensor | None, use: _Buffers) -> None:
        """Take one step of SGD, in place.

        Parameters
        ----------
        layers
            The R local models.
        x
            The batch, shape (B, inputs), the same for all runs.
        y
            Its classes in each run, shape (R, 1, B).
        rates
            η_c/B of each run, shape (R, 1, 1): the whole gradient is linear in the last layer's, so that it is scaled
            there, where it is smallest.
        shrink
            1 − η_c · weight decay, shape (R, 1, 1); None for no decay.
        use
            Room, from `buffers`.
        """
        outputs, slopes = use.outputs, use.slopes
        torch.softmax(self.forward(layers, x, outputs), 1, out=slopes[-1])
        slopes[-1].scatter_add_(1, y, use.minus).mul_(rates)
        for k in range(len(slopes) - 1, -1, -1):
            weight, bias, slope = layers[2 * k], layers[2 * k + 1], slopes[k]
            if k:  # the gradient of the layer below needs the weights as they were
                torch.bmm(weight.transpose(1, 2), slope, out=slopes[k - 1])
            if shrink is not None:
                weight.mul_(shrink)
                bias.mul_(shrink)
            bias.sub_(torch.sum(slope, 2, keepdim=True, out=use.sums[k]))
            if k:
                weight.baddbmm_(slope, outputs[k - 1].transpose(1, 2), alpha=-1)
                BACKWARD[nn.ReLU](slopes[k - 1], outputs[k - 1])
            else:
                weight.view(-1, weight.shape[2]).addmm_(slope.view(-1, len(x)), x, alpha=-1)
