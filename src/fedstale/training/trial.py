"""What a model does when it is trained and evaluated, seen on two samples before anything depends on it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from ..tasks.client_data import Values, tensors
from ..tasks.scores import as_float, call
from ..tasks.task import Task
from .layout import trainable


@dataclass(frozen=True)
class _Trial:
    """What was seen.

    Parameters
    ----------
    works
        Whether nothing failed. Two samples may be too few for a model that works, so that this refuses nothing.
    draws
        Whether the model or the loss draws from torch's global stream of random numbers, in training or in evaluation.
    """

    works: bool
    draws: bool


def tried(module: nn.Module, task: Task, x: Values, y: Values) -> _Trial:
    """Train and evaluate a copy of a model on a few samples; torch's stream of random numbers is left alone.

    Parameters
    ----------
    module
        The model, in the form that is to be tried.
    task
        Whose loss and metrics there are.
    x, y
        The samples, with the strides that batches have: a model that calls `view` depends on them.
    """
    own = copy.deepcopy(module)
    devices = [t.device for t in tensors(x).values() if t.device.type == "cuda"][:1]
    works = True
    with torch.random.fork_rng(devices=devices):
        before = torch.random.get_rng_state()
        after = None
        try:
            loss = task.loss(as_float(call(own.train(), x)), y)
            torch.autograd.grad(loss, trainable(own), materialize_grads=True)
            with torch.no_grad():
                outputs = as_float(call(own.eval(), x))
                after = torch.random.get_rng_state()  # metrics may draw what they like
                for metric in task.metrics.values():
                    metric(outputs, y)
        except Exception:  # whatever a model, a loss or a metric of the user's raises
            works = False
        after = torch.random.get_rng_state() if after is None else after
    return _Trial(works, not torch.equal(before, after))
