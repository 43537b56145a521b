"""A model made ready for training: the same function of the same parameters, in a form that runs faster.

Convolutions get their weights channels-last, where they do not run in blocks. And max-pooling moves in front of a
ReLU that precedes it in an `nn.Sequential`: max(relu(x)) = relu(max(x)), the gradients are equal too, bit for bit,
even where values tie (a tie that counts is positive, and positive values tie on both sides of a ReLU alike), and for
2×2 windows the ReLU has a quarter of the work.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..buffers import Buffers
from ..checks import fail
from .blocked import Forward, blocked
from .layout import as_array, buffers_of, places_of_buffers, put_back, trainable


def convolutional(module: nn.Module) -> bool:
    """Whether the model has two-dimensional convolutions."""
    return any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in module.modules())


def stochastic(module: nn.Module) -> bool:
    """Whether the model draws random numbers while it trains (dropout and its kin)."""
    return any(
        (isinstance(part, _DropoutNd) and part.p > 0)
        or isinstance(part, nn.RReLU)
        or (isinstance(rate := getattr(part, "dropout", None), float) and rate > 0)
        for part in module.modules()
    )


def prepare(module: nn.Module, *, channels_last: bool, device: torch.device) -> nn.Module:
    """Return a rewritten copy on the device, in training mode."""
    ready = copy.deepcopy(module).to(device)
    _pool_first(ready)
    if channels_last:
        ready.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs forget it
    return ready.train()


class ResidentModel:
    """A thread's own model, into which the parameters of one client after the other are written.

    Parameters
    ----------
    module
        The model to copy.
    in_blocks
        Whether its convolutions run in oneDNN's layout, see `blocked`.

    Attributes
    ----------
    forward
        The model as a function.
    parameters
        The leaves that gradients are taken of.
    weights
        The same memory, outside of autograd: what a step changes.
    """

    def __init__(self, module: nn.Module, in_blocks: bool = False) -> None:
        self.module = copy.deepcopy(module)
        self.forward: Forward = (blocked(self.module) if in_blocks else None) or self.module
        self.parameters = trainable(self.module)
        self.weights = [p.detach() for p in self.parameters]
        self._kept = places_of_buffers(self.module)
        places = {id(first): (part, key) for part, key, first in reversed(self._kept)}
        self.has_buffers = bool(self._kept)
        self._saved = {name: (*places[id(first)], first) for name, first in buffers_of(self.module).items()}

    def put_buffers(self, values: Mapping[str, Tensor]) -> None:
        """Write what the module keeps beside its parameters, by name; nothing stays of what was assigned before."""
        put_back(self._kept)
        for name, (_, _, buffer) in self._saved.items():
            buffer.copy_(values[name])

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Return what the module keeps now, by name."""
        for name, (part, key, first) in self._saved.items():
            value = getattr(part, key)
            if value is not first and (not isinstance(value, Tensor) or value.shape != first.shape):
                shown = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
                raise fail("model", f"buffer {name}", f"became {shown}: it must keep the shape {tuple(first.shape)}")
            yield name, value.detach()

    def changed_buffer(self, values: Buffers) -> str | None:
        """Return the name of a buffer that was assigned, or does not have the given values any more."""
        for name, (part, key, first) in self._saved.items():
            if getattr(part, key) is not first or not np.array_equal(as_array(first), values[name]):
                return name
        return None


def _pool_first(module: nn.Module) -> None:
    for part in module.modules():
        if type(part) is not nn.Sequential:
            continue
        for i in range(len(part) - 1):
            relu, pool = part[i], part[i + 1]
            if (
                type(relu) is nn.ReLU
                and type(pool) is nn.MaxPool2d
                and not (pool.return_indices or _hooked(relu, pool))
            ):
                part[i], part[i + 1] = pool, nn.ReLU()


def _hooked(*parts: nn.Module) -> bool:
    return any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
