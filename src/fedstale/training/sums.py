"""The forward passes of an evaluation: the sums of the loss and of every metric over each client's samples.

Large batches, shared out among the threads. What is known sample by sample is summed as it comes: no output is kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..buffers import Buffers
from ..checks import Float
from ..federation import Ints
from ..tasks.scores import as_float, call
from .evaluation import joined
from .prepare import ResidentModel
from .setup import Samples, TrainingSetup

_EVALUATION_BYTES = 32 * 2**20
"""Activations of one evaluation batch."""


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

    def ready(resident: ResidentModel) -> None:
        torch._foreach_copy_(resident.weights, weights)
        for name, buffer in kept.items():
            resident.buffers[name].copy_(buffer)
        resident.module.eval()

    def part(start: int, stop: int) -> Tensor | slice:
        return everything[start:stop] if first is None else slice(first + start, first + stop)

    if scoring.by_sample:
        each = np.zeros((len(scoring.names), len(rows)))

        def samples(resident: ResidentModel, start: int) -> None:
            with torch.no_grad():
                ready(resident)
                stop = min(start + step, len(rows))
                outputs = as_float(call(resident.forward, data.inputs(part(start, stop))))
                each[:, start:stop] = scoring.of_samples(outputs, data.targets(part(start, stop)), stop - start)
                resident.module.train()

        setup.workers.each(samples, range(0, len(rows), step))
        owner = np.repeat(np.arange(clients), np.diff(bounds))
        return np.stack([np.bincount(owner, values, clients) for values in each])

    sums = np.zeros((len(scoring.names), clients))

    def one(resident: ResidentModel, client: int) -> None:
        start, stop = int(bounds[client]), int(bounds[client + 1])
        if start == stop:
            return
        with torch.no_grad():
            ready(resident)
            pieces = [(low, min(low + step, stop)) for low in range(start, stop, step)]
            outputs = joined([as_float(call(resident.forward, data.inputs(part(*piece)))) for piece in pieces])
            sums[:, client] = scoring.of_client(outputs, data.targets(part(start, stop))) * (stop - start)
            resident.module.train()

    setup.workers.each(one, range(clients))
    return sums
