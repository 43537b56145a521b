"""What is minimised and what is measured: losses and metrics of (outputs, targets).

A *loss* returns the mean over the batch. A *metric* returns one number per sample (of whatever shape: what follows the
first dimension is averaged), or one number for all of them. Both are functions of what the model puts out and of the
targets, so that anything written for torch can be used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..checks import InvalidInput, fail
from .client_data import Values, each, tensors

Loss = Callable[[Any, Any], Tensor]
"""Of (outputs, targets): the mean over the batch."""
Metric = Callable[[Any, Any], Tensor]
"""Of (outputs, targets): one value per sample, or one for all."""
_LEFT_OUT = -100
"""What torch's cross-entropy takes for a place that has no class."""
_TAKEN = frozenset(
    (
        *("loss", "objective", "objective_covered", "coverage", "test_loss", "train_loss", "excess_loss", "round"),
        *("beta", "theta", "update_norm", "update_noise", "update_bias", "combine_seconds", "p_error", "memory_error"),
        *("participants", "staleness_mean", "staleness_max", "age_mean", "age_max", "information_age"),
        *("server_bytes", "bytes_up", "bytes_down", "seconds", "virtual_seconds", "wasted_seconds", "late", "lost"),
        *("left_out", "clipped", "capped", "rounds_lost", "active_clients", "anchors", "robust_changed"),
    )
)
"""What runs record, and "loss", by which an evaluation knows the task's loss: a metric of that name replaces it."""
_TAKEN_BEGINNINGS = ("accuracy_", "test_loss_", "excess_loss_", "swap_")
"""Of the names of groups of clients and of shares of swapped labels."""


def check_metrics(metrics: Mapping[str, Metric]) -> None:
    """Refuse metrics that are no functions by name, and names that are taken."""
    if not isinstance(metrics, Mapping):
        raise fail("metrics", type(metrics).__name__, 'must be functions by name, such as {"mae": mean_absolute_error}')
    for metric, function in metrics.items():
        if not isinstance(metric, str) or not metric.isidentifier():
            raise fail("metrics", metric, "must be a name of letters and digits")
        if metric in _TAKEN or metric.startswith(_TAKEN_BEGINNINGS):
            raise fail("metrics", metric, "is the name of something that runs record: choose another one")
        if not callable(function):
            raise fail(f"metrics[{metric!r}]", function, "must be a function of (outputs, targets)")


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Whether the largest of the last dimension is the class: scores (n, …, C), classes (n, …).

    Where there are places of class −100, the share of all others, as `sequence_cross_entropy` leaves them out.
    """
    if y.shape != outputs.shape[:-1]:
        raise _other_shape("classes", outputs.shape[:-1], y)
    right = (outputs.argmax(dim=-1) == y).float()
    counted = y != _LEFT_OUT
    return right if bool(counted.all()) else right[counted].mean()


def sequence_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over all places of sequences: scores (n, T, C), classes (n, T); not those of class −100."""
    return functional.cross_entropy(outputs.flatten(0, -2), y.flatten())


def mean_absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    """|output − y| of each sample."""
    if y.shape != outputs.shape:
        raise _other_shape("targets", outputs.shape, y)
    return (outputs - y).abs()


def _other_shape(what: str, wanted: torch.Size, y: Tensor) -> InvalidInput:
    """Build the error for what torch would spread over all samples: outputs (n, 1) less targets (n,) are (n, n)."""
    return fail(what, f"shape {tuple(y.shape)}", f"must be of shape {tuple(wanted)}, as the outputs say")


def call(model: Callable[..., Any], x: Values) -> Any:
    """Call a model with its inputs: several have names, and are keywords."""
    return model(**x) if isinstance(x, dict) else model(x)


def as_float(outputs: Any) -> Any:
    """Return outputs of lower precision as float32, in whatever they are packed."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.is_floating_point() else outputs
    if type(outputs) is dict:
        return {name: as_float(value) for name, value in outputs.items()}
    if type(outputs) in (tuple, list):
        return type(outputs)(as_float(value) for value in outputs)
    return outputs


def is_cross_entropy(loss: Loss) -> bool:
    """Whether a loss is plain mean cross-entropy, as a function or as a module."""
    if isinstance(loss, nn.CrossEntropyLoss):
        usual = loss.weight is None and loss.label_smoothing == 0.0 and loss.reduction == "mean"
        return usual and loss.ignore_index < 0
    return loss is functional.cross_entropy


_BY_SAMPLE: tuple[Callable[..., Tensor], ...] = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy_with_logits,
)
"""Losses whose mean is the mean over the samples, whatever the targets are."""
_AS_FUNCTION = {nn.MSELoss: functional.mse_loss, nn.L1Loss: functional.l1_loss}


def of_each_sample(loss: Loss, *, classes: bool) -> Metric | None:
    """Return a loss as one value per sample, where that is known; None for a loss of which only the mean is.

    `classes` says that the targets are classes, none of them the −100 that cross-entropy leaves out.
    """
    if classes and is_cross_entropy(loss):
        return lambda outputs, y: functional.cross_entropy(outputs, y, reduction="none")
    if classes and loss is sequence_cross_entropy:
        return lambda outputs, y: functional.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    kind = _AS_FUNCTION.get(type(loss))  # type: ignore[arg-type]
    plain = kind if kind is not None and getattr(loss, "reduction", "") == "mean" else loss
    found = next((known for known in _BY_SAMPLE if known is plain), None)
    return None if found is None else lambda outputs, y: found(outputs, y, reduction="none")


def try_out(module: nn.Module, loss: Loss, x: Values, y: Values, whose: str = "") -> Any:
    """Run the model and the loss on a few samples and return the outputs; what cannot work is said in one line.

    Parameters
    ----------
    module, loss
        What is tried.
    x, y
        The samples.
    whose
        What to say of these.
    """
    was = module.training
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                outputs = call(module, x)
            except Exception as error:  # whatever a model of the user's raises
                small = any(t.dtype in (torch.uint8, torch.int8, torch.int16) for t in tensors(x).values())
                hint = '; an embedding takes int32 and int64: x.astype("int64")' if small else ""
                allowed = f"cannot take the inputs {_shown(x)}{whose}: {_line(error)}{hint}"
                raise fail("model", type(module).__name__, allowed) from error
            try:
                value = _value(loss, outputs, y)
            except Exception as error:
                what = _shown(outputs) if isinstance(outputs, Tensor) else type(outputs).__name__
                allowed = f"cannot take the outputs {what} and targets {_shown(y)}{whose}: {_line(error)}"
                allowed += _hint(loss, outputs, y)
                raise fail("loss", getattr(loss, "__name__", type(loss).__name__), allowed) from error
    finally:
        module.train(was)
    if not isinstance(value, Tensor) or value.ndim:
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise fail("loss", f"a value of shape {shown}", "must be the mean over the batch, a single number")
    return outputs


def _value(loss: Loss, outputs: Any, y: Values) -> Tensor:
    """Compute the loss, and its gradient by the outputs: of some dtypes torch says only then that it has none."""
    with warnings.catch_warnings(), torch.enable_grad():
        # torch would subtract every target from every output, and only warn.
        warnings.filterwarnings("error", message="Using a target size")
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
            return loss(outputs, y)
        leaf = outputs.detach().requires_grad_()
        value = loss(leaf.clone(), y)  # a loss may write into its outputs
        if isinstance(value, Tensor) and value.requires_grad and not value.ndim:
            torch.autograd.grad(value, leaf, allow_unused=True)
        return value


def are_classes(loss: Loss, scores: Tensor, targets: list[Tensor]) -> bool:
    """Whether integers are classes that the scores are of: not where some are none of these, and the loss takes them.

    So it is with counts, and a model that puts out a mean and a variance.
    """
    if _of_classes(loss):
        return True
    ends = [int(end) for y in targets if len(y) for end in (y.min(), y.max())]
    beyond = next((end for end in ends if not 0 <= end < scores.shape[1]), None)
    if beyond is None:
        return True
    try:
        _value(loss, scores, torch.full((len(scores),), beyond))
    except Exception:  # whatever a loss of the user's raises
        return True
    return False


def _hint(loss: Loss, outputs: Any, y: Values) -> str:
    """Say what a loss wants in place of integers, or of yes and no, where that is known."""
    if all(t.is_floating_point() for t in tensors(y).values()):
        return ""
    if _of_classes(loss):
        column = isinstance(y, Tensor) and y.shape[1:] == (1,)
        return "; this loss wants one class per sample: y[:, 0]" if column else ""
    try:
        _value(loss, outputs, each(y, Tensor.float))
    except Exception:  # whatever a loss of the user's raises
        return ""
    return '; this loss wants numbers: y.astype("float32")'


def _of_classes(loss: Loss) -> bool:
    return isinstance(loss, nn.CrossEntropyLoss) or loss is functional.cross_entropy


def _shown(values: Any) -> str:
    if isinstance(values, dict):
        return ", ".join(f"{name} {_shown(t)}" for name, t in values.items())
    return f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}" if isinstance(values, Tensor) else "?"


def _line(error: Exception) -> str:
    if isinstance(error, InvalidInput):
        return str(error)
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def first_rows(values: Values, count: int = 2) -> Values:
    """Return the first rows of some values."""
    return each(values, lambda t: t[:count])
