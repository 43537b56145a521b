"""One step of local SGD, on lists of tensors: the same lines for one client (loop) and for many at once (vmap).

Everything that a method adds to the local gradient is affine in w, so one step needs two numbers and one vector:
gradient + decay · w + shift, with decay = weight decay + μ and shift = linear term − μ w_t. FedProx is μ > 0,
SCAFFOLD the linear term c − c_i, FedDyn both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = list[Tensor]


@dataclass(frozen=True)
class Descent:
    """w ← w − rate · v, v ← momentum · v + gradient + decay · w + shift.

    Parameters
    ----------
    rate
        η_c, or for stacked clients one tensor per parameter, broadcastable to it, when their rates differ.
    decay, momentum
        As above.
    shift
        As above, one tensor per parameter; None for 0.
    velocity
        v, one tensor per parameter, zero at the start of a round. None when it need not be kept: then momentum is 0
        and rate one number.
    """

    rate: float | Tensors
    decay: float = 0.0
    momentum: float = 0.0
    shift: Tensors | None = None
    velocity: Tensors | None = None

    def __call__(self, weights: Tensors, gradients: Sequence[Tensor]) -> None:
        """Change the weights in place. Gradients are only read: autograd may hand out one tensor twice."""
        gradients = list(gradients)
        if self.velocity is None:
            rate = self.rate
            if not isinstance(rate, float):
                raise TypeError("rates that differ between clients need a velocity")
            if self.decay:
                torch._foreach_mul_(weights, 1.0 - rate * self.decay)
            torch._foreach_add_(weights, gradients, alpha=-rate)
            if self.shift is not None:
                torch._foreach_add_(weights, self.shift, alpha=-rate)
            return
        velocity = self.velocity
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients)
        if self.decay:
            torch._foreach_add_(velocity, weights, alpha=self.decay)
        if self.shift is not None:
            torch._foreach_add_(velocity, self.shift)
        if isinstance(self.rate, float):
            torch._foreach_add_(weights, velocity, alpha=-self.rate)
        else:
            torch._foreach_addcmul_(weights, velocity, self.rate, value=-1.0)

    def select(self, clients: Tensor) -> Descent:
        """Return the descent of some of the stacked clients; `put_back` returns what it keeps."""

        def pick(stack: Tensors | None) -> Tensors | None:
            return None if stack is None else [t.index_select(0, clients) for t in stack]

        rate = self.rate if isinstance(self.rate, float) else [t.index_select(0, clients) for t in self.rate]
        return Descent(rate, self.decay, self.momentum, pick(self.shift), pick(self.velocity))

    def put_back(self, clients: Tensor, selected: Descent) -> None:
        """Take over the velocity of the clients that `select` picked."""
        for own, theirs in zip(self.velocity or [], selected.velocity or [], strict=True):
            own.index_copy_(0, clients, theirs)
