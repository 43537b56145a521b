"""How good a model is on every client's own data (Section 5.1: accuracy over all clients' test splits, by size).

The forward passes are large batches, shared out among the threads. What is known sample by sample is summed as it
comes: no output is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..buffers import Buffers
from ..checks import Float, fail
from ..federation import Ints
from ..randomness import generator
from ..tasks.client_data import Values, single, tensors
from ..tasks.made import MadeData
from ..tasks.scores import Metric, as_float, call, first_rows, of_each_sample
from ..tasks.task import Task
from .blame import PASSED_ON, blame

if TYPE_CHECKING:
    from .prepare import ResidentModel
    from .setup import Samples, TrainingSetup

_LOSS = "loss"
_ACCURACY = "accuracy"
_TRIED = 2
"""Samples that metrics are tried on."""
_EVALUATION_BYTES = 32 * 2**20
"""Activations of one evaluation batch."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Sums per client, in the order of `clients`; every array has shape (|clients|,).

    Parameters
    ----------
    clients
        Who.
    counts
        Samples n_i.
    losses
        The sums of their losses, n_i F_i(w).
    groups
        The participation group of each client.
    scores
        The sums of the task's metrics, n_i times a client's value, by name; "accuracy": how many are right.
    """

    clients: Ints
    counts: Ints
    losses: Float
    groups: Ints
    scores: dict[str, Float] = field(default_factory=dict)

    @property
    def correct(self) -> Ints:
        """How many samples were classified correctly; none where the task has no accuracy."""
        return np.rint(self.scores.get(_ACCURACY, np.zeros(len(self.clients)))).astype(np.int64)

    @property
    def accuracy(self) -> float:
        """The share of all samples that was classified correctly: clients count by their size. NaN without samples."""
        return float(_ratio(self.scores[_ACCURACY].sum(), self.counts.sum())) if _ACCURACY in self.scores else np.nan

    @property
    def loss(self) -> float:
        """The mean loss over all samples."""
        return float(_ratio(self.losses.sum(), self.counts.sum()))

    @property
    def client_accuracies(self) -> Float:
        """The accuracy on each client's samples; NaN for a client without any."""
        return _ratio(self.scores.get(_ACCURACY, np.zeros(len(self.clients))), self.counts)

    @property
    def client_losses(self) -> Float:
        """F_i(w) of each client; NaN for a client without samples."""
        return _ratio(self.losses, self.counts)

    def metrics(self, quantiles: Ints | None = None) -> dict[str, float]:
        """Return what is recorded of it: the loss, the task's metrics, and how the groups and the worst clients fare.

        "accuracy_worst_decile" is the mean over the tenth of the clients (at least one) for whom the model is worst.
        Where a task has no accuracy, groups and the worst clients are told by the loss.

        Parameters
        ----------
        quantiles
            Further groups, of each client one, in the order of `clients`: "accuracy_quantile1", …
        """
        all_sums = {**self.scores, "test_loss": self.losses}
        rest = {name: float(_ratio(sums.sum(), self.counts.sum())) for name, sums in all_sums.items()}
        if _ACCURACY in self.scores:
            whole = {_ACCURACY: rest.pop(_ACCURACY), "test_loss": rest.pop("test_loss")}
            name, sums, each = _ACCURACY, self.scores[_ACCURACY], self.client_accuracies
        else:
            whole = {"test_loss": rest.pop("test_loss")}
            name, sums, each = "test_loss", self.losses, -self.client_losses
        groups = {}
        for word, own in (("group", self.groups), ("quantile", quantiles)):
            for group in () if own is None else np.unique(own):
                who = own == group
                groups[f"{name}_{word}{group}"] = float(_ratio(sums[who].sum(), self.counts[who].sum()))
        tested = np.sort(each[np.isfinite(each)])
        worst = abs(float(tested[: -(-len(tested) // 10)].mean())) if len(tested) else float("nan")
        return {**whole, **groups, f"{name}_worst_decile": worst, **rest}


class Scoring:
    """The loss and the metrics of a task, ready to be summed over clients.

    Parameters
    ----------
    task
        Whose.
    outputs
        Returns what the model puts out for so many of the first training samples: metrics are tried on it.

    Attributes
    ----------
    by_sample
        Whether all of them are known sample by sample; otherwise they are evaluated client by client, as only their
        means are known.
    names
        The loss, then the metrics.
    """

    def __init__(self, task: Task, outputs: Callable[[int], Any]) -> None:
        y = single(task.train.y)
        # Cross-entropy leaves places of class −100 out of its mean; whether there are some is seen where all are there.
        splits = task.train, task.test
        here = all(not isinstance(split, MadeData) and _not_negative(split.y) for split in splits)
        classes = y is not None and not y.is_floating_point() and here
        loss = of_each_sample(task.loss, classes=classes)
        self.by_sample = loss is not None
        self._scores: dict[str, Metric] = {_LOSS: loss or task.loss, **task.metrics}
        self.names = tuple(self._scores)
        few = outputs(_TRIED)
        for name, metric in task.metrics.items():
            try:
                value = torch.as_tensor(metric(few, first_rows(task.train.y, _TRIED)))
                float(value.double().mean())
            except Exception as error:  # whatever a metric of the user's raises
                reason = " ".join(str(error).split()) or type(error).__name__
                raise fail("metrics", name, f"cannot be computed: {reason}") from error
            self.by_sample = self.by_sample and _is_per_sample(value, task, _TRIED)
        more = _TRIED + 1
        if self.by_sample and task.metrics and task.train.num_samples >= more:
            # One number per class looks like one per sample where there are as many classes as samples.
            try:
                few, targets = outputs(more), first_rows(task.train.y, more)
                again = [metric(few, targets) for metric in task.metrics.values()]
                self.by_sample = all(_is_per_sample(torch.as_tensor(value), task, more) for value in again)
            except Exception:  # a model that takes pairs, say: what two samples said is believed
                return

    def of_samples(self, outputs: Any, y: Values, count: int) -> Float:
        """Return the values of each sample, shape (scores, count)."""
        values = [
            torch.as_tensor(score(outputs, y)).double().reshape(count, -1).mean(1) for score in self._scores.values()
        ]
        return np.asarray(torch.stack(values).cpu().numpy())

    def of_client(self, outputs: Any, y: Values) -> Float:
        """Return the values of a client, shape (scores,)."""
        return np.array([float(torch.as_tensor(score(outputs, y)).double().mean()) for score in self._scores.values()])


def _is_per_sample(value: Tensor, task: Task, count: int) -> bool:
    return value.ndim > 0 and len(value) == min(count, task.train.num_samples)


def _not_negative(values: Values) -> bool:
    return all(not t.numel() or t.dtype == torch.bool or int(t.min()) >= 0 for t in tensors(values).values())


def client_sums(
    setup: TrainingSetup, weights: list[Tensor], buffers: Buffers, data: Samples, rows: Ints, bounds: Ints
) -> Float:
    """Return the sums over each client's samples, shape (scores, clients).

    Parameters
    ----------
    setup
        The task, ready.
    weights, buffers
        Of the model, one view per parameter.
    data
        The split.
    rows, bounds
        The samples: those of client j are rows[bounds[j]:bounds[j+1]].
    """
    kept = {name: torch.from_numpy(np.array(buffer)) for name, buffer in buffers.items()}
    everything = torch.from_numpy(rows).to(setup.device)
    # Rows in one piece: slices of them are views, rows that are picked would be copies.
    first = int(rows[0]) if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all() else None
    step = max(1, _EVALUATION_BYTES // (4 * setup.activations))
    scoring, clients = setup.scoring, len(bounds) - 1

    def evaluate(work: Callable[[ResidentModel, int], None], items: Sequence[int]) -> None:
        if not setup.stochastic:
            setup.workers.each(work, items)
            return
        with setup.own_stream():  # some models draw random numbers even here
            torch.manual_seed(int(generator(setup.seed, "evaluation").integers(2**63 - 1)))
            setup.workers.each(work, items)

    def ready(resident: ResidentModel) -> None:
        torch._foreach_copy_(resident.weights, weights)
        if resident.has_buffers:
            resident.put_buffers(kept)
        resident.module.eval()

    def part(start: int, stop: int) -> Tensor | slice:
        return everything[start:stop] if first is None else slice(first + start, first + stop)

    def values(resident: ResidentModel, start: int, stop: int) -> Float:
        with torch.no_grad():
            ready(resident)
            try:
                pieces = [(low, min(low + step, stop)) for low in range(start, stop, step)]
                outs = [as_float(call(resident.forward, data.inputs(part(*piece)))) for piece in pieces]
                outputs = outs[0] if len(outs) == 1 else joined(outs)
                y = data.targets(part(start, stop))
                if scoring.by_sample:
                    return scoring.of_samples(outputs, y, stop - start)
                return scoring.of_client(outputs, y)
            finally:
                resident.module.train()

    def named(resident: ResidentModel, start: int, stop: int) -> Float:
        try:
            return values(resident, start, stop)
        except PASSED_ON:
            raise
        except Exception as error:
            inner = bounds[(bounds > start) & (bounds < stop)]
            alone = [
                (data.client_of(int(rows[low])), partial(values, resident, int(low), int(high)))
                for low, high in pairwise(np.unique([start, *inner, stop]))
            ]
            raise blame(setup.task, "evaluated", error, alone) from error

    if scoring.by_sample:
        each = np.zeros((len(scoring.names), len(rows)))

        def samples(resident: ResidentModel, start: int) -> None:
            stop = min(start + step, len(rows))
            each[:, start:stop] = named(resident, start, stop)

        evaluate(samples, range(0, len(rows), step))
        owner = np.repeat(np.arange(clients), np.diff(bounds))
        return np.stack([np.bincount(owner, own, clients) for own in each])

    sums = np.zeros((len(scoring.names), clients))

    def evaluate_client(resident: ResidentModel, client: int) -> None:
        start, stop = int(bounds[client]), int(bounds[client + 1])
        if start < stop:
            sums[:, client] = named(resident, start, stop) * (stop - start)

    evaluate(evaluate_client, range(clients))
    return sums


def joined(outputs: list[Any]) -> Any:
    """Put the outputs of several pieces of a client together, in whatever they are packed."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(outputs)
    if isinstance(first, dict):
        return type(first)(**{name: joined([part[name] for part in outputs]) for name in first})
    if isinstance(first, (tuple, list)):
        fields = [joined(list(parts)) for parts in zip(*outputs, strict=True)]
        return type(first)(*fields) if hasattr(first, "_fields") else type(first)(fields)  # the first is a named tuple
    raise fail("model", type(first).__name__, "must put out tensors, or dicts or tuples of them")


def rows_of(offsets: Ints, clients: Ints) -> tuple[Ints, Ints]:
    """Return the rows of some clients one after the other, and where each client's begin and end among them."""
    counts = offsets[clients + 1] - offsets[clients]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    return np.arange(bounds[-1]) + np.repeat(offsets[clients] - bounds[:-1], counts), bounds


def _ratio(part: ArrayLike, whole: ArrayLike) -> Float:
    """Divide, NaN where there is nothing to divide by."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.greater(whole, 0)))
