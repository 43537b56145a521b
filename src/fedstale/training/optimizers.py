"""The clients' optimiser: any of torch's by name, made anew for every client and round, as clients keep no state.

Plain SGD, with momentum and weight decay, is `Descent`, which every engine and the lock-step sweeps know. Any other
optimiser gets the gradient of the local objective (the loss, and what a method adds to it) and takes the step itself.
Gradient clipping shortens the gradient of the loss, before anything is added to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import choose, fail
from .layout import trainable
from .local import SGD, LocalTraining

_Make = Callable[[Sequence[nn.Parameter], float], torch.optim.Optimizer]
_UNSUITED = {"LBFGS": "evaluates the loss several times a step", "SparseAdam": "needs sparse gradients"}


def _optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return torch's optimisers by lower-case name."""
    found = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    return {name.lower(): kind for name, kind in found.items()}


def make_optimizer(training: LocalTraining, module: nn.Module) -> _Make | None:
    """Return what makes a client's optimiser of (parameters, rate); None for plain SGD, see `Descent`."""
    options = dict(training.optimizer_options or {})
    if callable(training.optimizer):
        made = training.optimizer
        copies = [nn.Parameter(p.detach().clone()) for p in trainable(module)]
        try:
            found = made(copies, training.lr, **options)
        except Exception as error:  # whatever a function of the user's raises
            shown = f" with the options {options}" if options else ""
            reason = " ".join(str(error).split()) or type(error).__name__
            raise fail("optimizer", _name(made), f"cannot be made{shown}: {reason}") from error
        if not callable(getattr(found, "step", None)):
            raise fail("optimizer", _name(made), f"must return an optimiser of torch, not {type(found).__name__}")
        return lambda parameters, rate: made(list(parameters), rate, **options)
    name = training.optimizer.lower()
    if name == SGD and not options:
        return None
    kind = choose("optimizer", name, _optimizers())
    if kind.__name__ in _UNSUITED:
        raise fail("optimizer", training.optimizer, f"{_UNSUITED[kind.__name__]}: use another one")
    known = inspect.signature(kind).parameters
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    for option, value in options.items():
        if option in ("params", "lr") or option not in known:
            usable = ", ".join(name for name in known if name not in ("self", "params", "lr"))
            raise fail(f"optimizer_options: {option}", value, f"{kind.__name__} has {usable}")
    if name == SGD and training.momentum:
        options.setdefault("momentum", training.momentum)

    def make(parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        return kind(list(parameters), lr=rate, **options)  # type: ignore[call-arg]

    try:
        make([nn.Parameter(torch.zeros(1))], 1.0)
    except (TypeError, ValueError, RuntimeError) as error:
        raise fail("optimizer_options", options, f"{kind.__name__}: {' '.join(str(error).split())}") from None
    return make


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def clipped(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Shorten gradients to an ℓ2 norm of at most `limit`, all of them together; they are only read."""
    norms = torch._foreach_norm(list(gradients))
    factor = torch.clamp(limit / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6), max=1.0)
    return list(torch._foreach_mul(list(gradients), factor))


class OptimizerStep:
    """One step of a torch optimiser for one client, with what a method adds to the gradient.

    Parameters
    ----------
    optimizer
        Made for the resident model's parameters.
    prox
        μ: μ w is added to the gradient.
    shift
        Added to the gradient, one tensor per parameter; None for 0.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], prox: float, shift: Any
    ) -> None:
        self._optimizer, self._parameters, self._prox, self._shift = optimizer, parameters, prox, shift

    def __call__(self, weights: list[Tensor], gradients: Sequence[Tensor]) -> None:
        """Change the parameters, whose memory `weights` are."""
        total = list(gradients)
        if self._prox:
            total = torch._foreach_add(total, weights, alpha=self._prox)  # type: ignore[assignment]
        if self._shift is not None:
            total = torch._foreach_add(total, self._shift)  # type: ignore[assignment]
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
