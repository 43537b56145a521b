"""How good a model is on every client's own data (Section 5.1: accuracy over all clients' test splits, by size)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from ..checks import Float
from ..federation import Ints
from ..tasks.task import Loss


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Counts per client, in the order of `clients`; every array has shape (|clients|,).

    Parameters
    ----------
    clients
        Who.
    counts
        Samples n_i.
    correct
        How many of them were classified correctly.
    losses
        The sums of their losses, n_i F_i(w).
    groups
        The participation group of each client.
    """

    clients: Ints
    counts: Ints
    correct: Ints
    losses: Float
    groups: Ints

    @property
    def accuracy(self) -> float:
        """The share of all samples that was classified correctly: clients count by their size. NaN without samples."""
        return float(_ratio(self.correct.sum(), self.counts.sum()))

    @property
    def loss(self) -> float:
        """The mean loss over all samples."""
        return float(_ratio(self.losses.sum(), self.counts.sum()))

    @property
    def client_accuracies(self) -> Float:
        """The accuracy on each client's samples; NaN for a client without any."""
        return _ratio(self.correct, self.counts)

    @property
    def client_losses(self) -> Float:
        """F_i(w) of each client; NaN for a client without samples."""
        return _ratio(self.losses, self.counts)

    def metrics(self) -> dict[str, float]:
        """Return what is recorded of it: accuracy and loss, the accuracy of each group and of the worst clients.

        "accuracy_worst_decile" is the mean over the tenth of the clients (at least one) for whom the model is worst.
        """
        members = {int(group): self.groups == group for group in np.unique(self.groups)}
        groups = {
            f"accuracy_group{group}": float(_ratio(self.correct[who].sum(), self.counts[who].sum()))
            for group, who in members.items()
        }
        each = self.client_accuracies
        tested = np.sort(each[np.isfinite(each)])
        worst = float(tested[: -(-len(tested) // 10)].mean()) if len(tested) else float("nan")
        return {"accuracy": self.accuracy, "test_loss": self.loss, **groups, "accuracy_worst_decile": worst}


def is_cross_entropy(loss: Loss) -> bool:
    """Whether a loss is plain mean cross-entropy, as a function or as a module."""
    if isinstance(loss, nn.CrossEntropyLoss):
        usual = loss.weight is None and loss.label_smoothing == 0.0 and loss.reduction == "mean"
        return usual and loss.ignore_index < 0
    return loss is functional.cross_entropy


def per_client(logits: Tensor, y: Tensor, bounds: Ints, loss: Loss) -> tuple[Ints, Float]:
    """Count correct answers and add up losses of each client.

    Parameters
    ----------
    logits, y
        Of all samples, shapes (n, classes) and (n,).
    bounds
        Client j's samples are rows bounds[j] to bounds[j+1] − 1.
    loss
        The mean loss of a batch.
    """
    clients = len(bounds) - 1
    owner = np.repeat(np.arange(clients), np.diff(bounds))
    right = np.bincount(owner, (logits.argmax(dim=1) == y).cpu().numpy(), clients).astype(np.int64)
    if is_cross_entropy(loss):
        each = functional.cross_entropy(logits, y, reduction="none").double().cpu().numpy()
        return right, np.asarray(np.bincount(owner, each, clients), dtype=np.float64)
    # Any other loss is only known as a mean over a batch; the batch whose mean is F_i is the client.
    sums = [
        float(loss(logits[start:stop], y[start:stop])) * (stop - start) if stop > start else 0.0
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    return right, np.array(sums, dtype=np.float64)


def rows_of(offsets: Ints, clients: Ints) -> tuple[Ints, Ints]:
    """Return the rows of some clients one after the other, and where each client's begin and end among them."""
    counts = offsets[clients + 1] - offsets[clients]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    return np.arange(bounds[-1]) + np.repeat(offsets[clients] - bounds[:-1], counts), bounds


def _ratio(part: ArrayLike, whole: ArrayLike) -> Float:
    """Divide, NaN where there is nothing to divide by."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.greater(whole, 0)))
