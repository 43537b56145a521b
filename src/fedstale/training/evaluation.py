"""How good a model is on every client's own data (Section 5.1: accuracy over all clients' test splits, by size)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..checks import Float
from ..federation import Ints
from ..tasks.task import Loss
from .dense import is_cross_entropy


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
        return _ratio(self.correct, self.counts)

    @property
    def loss(self) -> float:
        """The mean loss over all samples."""
        return _ratio(self.losses, self.counts)

    @property
    def client_accuracies(self) -> Float:
        """The accuracy on each client's samples; NaN for a client without any."""
        return _ratios(self.correct, self.counts)

    @property
    def client_losses(self) -> Float:
        """F_i(w) of each client; NaN for a client without samples."""
        return _ratios(self.losses, self.counts)

    def group_accuracies(self) -> dict[int, float]:
        """Return the accuracy over the samples of each participation group."""
        return {
            int(group): _ratio(self.correct[self.groups == group], self.counts[self.groups == group])
            for group in np.unique(self.groups)
        }


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
    right = (logits.argmax(dim=1) == y).cpu().numpy()
    if is_cross_entropy(loss):
        each = functional.cross_entropy(logits, y, reduction="none").double().cpu().numpy()
        return _sums(right, bounds).astype(np.int64), _sums(each, bounds)
    # Any other loss is only known as a mean over a batch; the batch whose mean is F_i is the client.
    sums = [
        float(loss(logits[start:stop], y[start:stop])) * (stop - start) if stop > start else 0.0
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    return _sums(right, bounds).astype(np.int64), np.array(sums, dtype=np.float64)


def rows_of(offsets: Ints, clients: Ints) -> tuple[Ints, Ints]:
    """Return the rows of some clients one after the other, and where each client's begin and end among them."""
    counts = offsets[clients + 1] - offsets[clients]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    return np.arange(bounds[-1]) + np.repeat(offsets[clients] - bounds[:-1], counts), bounds


def _sums(values: NDArray[np.generic], bounds: Ints) -> Float:
    running = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return np.asarray(running[bounds[1:]] - running[bounds[:-1]], dtype=np.float64)


def _ratio(part: NDArray[np.generic], whole: Ints) -> float:
    total = int(whole.sum())
    return float(np.sum(part)) / total if total else float("nan")


def _ratios(part: NDArray[np.generic], whole: Ints) -> Float:
    result = np.full(len(whole), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
