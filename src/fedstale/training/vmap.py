"""The vectorised engine: a round's clients train as one batched program (Algorithm 1, its inner loops exchanged).

For small models, where a step costs more in calls than in arithmetic. Clients are taken in chunks that fit the
cache; chunks are what threads share out, and they depend on shapes alone, so the number of threads does not change
the bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..checks import fail
from .batches import Batches
from .descent import Tensors
from .engine import Engine, Job, descent
from .prepare import Resident
from .setting import Setting
from .stacked import Stacked, stacked_loss, stacked_model

_CHUNK_BYTES = 4 * 2**20
"""Working set of a chunk: about a core's cache. Larger chunks gain nothing and take memory."""


class VmapEngine(Engine):
    """Trains clients together; see the module."""

    name = "vmap"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.stochastic:
            raise fail("engine", self.name, "draws no dropout (the clients' streams would mix): use engine='loop'")
        self._activations = setting.activations()
        self._loss = stacked_loss(setting.task.loss)
        self._models: dict[Resident, Stacked] = {}
        try:
            self.train(setting.initial, Batches(np.zeros((2, 1, 2), dtype=np.int64)), 1.0)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise fail("engine", self.name, f"this model cannot be vectorised ({reason}): use engine='loop'") from error

    def _run(self, job: Job) -> None:
        count, _, batch = job.rows.shape
        per_sample = self.setting.train.features + 2 * self._activations
        chunk = max(1, _CHUNK_BYTES // (4 * (batch * per_sample + 3 * self.num_params)))
        chunks = [slice(first, min(first + chunk, count)) for first in range(0, count, chunk)]
        self.setting.workers.each(lambda resident, part: self._chunk(job, resident, part), chunks)

    def _chunk(self, job: Job, resident: Resident, part: slice) -> None:
        layout, out = self.setting.layout, job.out[part]
        starts = job.starts if job.starts.ndim == 1 else job.starts[part]
        # The rows of `out` are the clients' models until they are done.
        out.copy_(starts)
        shift = job.shift if job.shift is None or job.shift.ndim == 1 else job.shift[part]
        step = descent(
            self.setting, job, self._rate(job.rates[part]), out, None if shift is None else shift.expand_as(out)
        )
        weights = layout.views(out)
        leaves = [w.detach().requires_grad_() for w in weights]
        model = self._models.get(resident)
        if model is None:
            model = self._models[resident] = stacked_model(resident.module, layout)
        total = torch.zeros(len(out), device=out.device)
        rows = job.rows[part].transpose(0, 1).contiguous()
        sizes = None if job.sizes is None else job.sizes[part].T
        for k, batch in enumerate(rows):
            if sizes is None or (sizes[k] == batch.shape[1]).all():
                losses, gradients = self._gradients(model, leaves, batch)
                step(weights, gradients)
                total += losses
                continue
            for size in np.unique(sizes[k][sizes[k] > 0]).tolist():
                some = torch.from_numpy(np.flatnonzero(sizes[k] == size)).to(out.device)
                chosen = [w.index_select(0, some) for w in weights]
                own = step.select(some)
                parts = [w.detach().requires_grad_() for w in chosen]
                losses, gradients = self._gradients(model, parts, batch.index_select(0, some)[:, :size])
                own(chosen, gradients)
                step.put_back(some, own)
                total.index_add_(0, some, losses)
                for w, changed in zip(weights, chosen, strict=True):
                    w.index_copy_(0, some, changed)
        if job.losses is not None:
            steps = len(rows) if sizes is None else torch.from_numpy((sizes > 0).sum(axis=0)).to(out.device)
            job.losses[part] = total / steps
        torch.sub(starts, out, out=out)

    def _gradients(self, model: Stacked, leaves: Tensors, rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the clients' losses on their batches `rows`, shape (S, B), and the gradients."""
        samples, flat = self.setting.train, rows.flatten()
        with self.setting.autocast():
            logits = model(leaves, torch.unflatten(samples.inputs(flat), 0, rows.shape))
        losses = self._loss(logits.float(), samples.y.index_select(0, flat).view(rows.shape))
        # The losses are independent, so the gradient of their sum is the clients' gradients side by side.
        ones = torch.ones_like(losses)
        return losses.detach(), torch.autograd.grad(losses, leaves, ones, materialize_grads=True)

    def _rate(self, rates: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | Tensors:
        if (rates == rates[0]).all():
            return float(rates[0])
        column = torch.from_numpy(rates.astype(np.float32)).to(self.setting.device)
        return [column.view(-1, *[1] * len(shape)) for shape in self.setting.layout.shapes]
