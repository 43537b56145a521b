"""A module's parameters as one flat vector and back: w ∈ R^d of the paper.

The order is that of `named_parameters()`, each parameter in row-major order, whatever memory format it is kept in.
Parameters that do not require a gradient are constants of the model and no part of the vector; what a module keeps
beside its parameters (`buffers_of`), such as running means, is averaged over the clients and no part of it either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..buffers import Buffers
from ..checks import fail

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FlatLayout:
    """Where each parameter lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module) -> FlatLayout:
        """Read the layout of a module."""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if is_lazy(tensor):
                allowed = "has no shape before a first batch: give the layer its input size instead of a lazy one"
                raise fail("model", name, allowed)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise fail("model", type(module).__name__, "has no trainable parameters")
        for name, p in named:
            if p.dtype != torch.float32:
                raise fail("model", f"{name} of {p.dtype}", "parameters must be float32 (see precision)")
        return cls(
            tuple(name for name, _ in named),
            tuple(p.shape for _, p in named),
            tuple(p.numel() for _, p in named),
        )

    @cached_property
    def num_params(self) -> int:
        """The length d of the vector."""
        return sum(self.sizes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return one view per parameter of a vector (d,) or of stacked vectors (|S|, d)."""
        lead = flat.shape[:-1]
        parts = torch.split_with_sizes(flat, self.sizes, dim=-1)
        return [part.view(lead + shape) for part, shape in zip(parts, self.shapes, strict=True)]


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that make up the flat vector, in its order."""
    return [p for p in module.parameters() if p.requires_grad]


def flatten(module: nn.Module) -> Floats:
    """Return the module's parameters as one new vector of shape (d,)."""
    return np.concatenate([p.detach().cpu().contiguous().numpy().ravel() for p in trainable(module)])


def unflatten(module: nn.Module, vector: ArrayLike) -> None:
    """Write a vector of shape (d,) into the module's parameters."""
    layout = FlatLayout.of(module)
    flat = torch.from_numpy(np.array(vector, dtype=np.float32))
    if flat.shape != (layout.num_params,):
        raise fail("vector", f"array of shape {tuple(flat.shape)}", f"must have shape ({layout.num_params},)")
    with torch.no_grad():
        for p, view in zip(trainable(module), layout.views(flat), strict=True):
            p.copy_(view)


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are part of a module's `state_dict`, by name: the tensors themselves."""
    saved = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name in saved}


def places_of_buffers(module: nn.Module) -> list[tuple[nn.Module, str, Tensor | None]]:
    """Return whose each buffer is, its name there, and the tensor: a forward pass may assign another one."""
    return [(part, key, tensor) for part in module.modules() for key, tensor in part._buffers.items()]


def put_back(places: list[tuple[nn.Module, str, Tensor | None]]) -> None:
    """Undo the assignments of buffers since `places_of_buffers`; what was changed in place stays changed."""
    for part, key, tensor in places:
        if getattr(part, key) is not tensor:
            setattr(part, key, tensor)


def read_buffers(module: nn.Module) -> Buffers:
    """Return copies of a module's buffers."""
    return {name: as_array(buffer).copy() for name, buffer in buffers_of(module).items()}


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's values; bfloat16, which NumPy does not have, as float32."""
    tensor = tensor.detach().cpu()
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def write_buffers(module: nn.Module, buffers: Buffers) -> None:
    """Write arrays into a module's buffers."""
    own = buffers_of(module)
    with torch.no_grad():
        for name, array in buffers.items():
            own[name].copy_(torch.from_numpy(np.array(array)))
