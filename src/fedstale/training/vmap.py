"""The vectorised engine: a round's clients train as one batched program (Algorithm 1, its inner loops exchanged).

For small models, where a step costs more in calls than in arithmetic. Clients are taken in chunks that fit the
cache; chunks are what threads share out, and they depend on shapes alone, so the number of threads does not change
the bits.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from ..checks import InvalidInput, fail
from .blame import PASSED_ON, blame
from .dense import DenseProgram, dense_layers_of
from .descent import Tensors
from .engine import Engine, TrainingJob, make_descent
from .local import Batches
from .prepare import ResidentModel
from .setup import TrainingSetup
from .stacked import Program, stacked

_CHUNK_BYTES = 16 * 2**20
"""Working set of a chunk: fewer bytes, and calls cost more than arithmetic again; more, and they leave the cache."""


class VmapEngine(Engine):
    """Trains clients together; see the module."""

    name = "vmap"

    def __init__(self, setup: TrainingSetup) -> None:
        super().__init__(setup)
        for name, part in setup.model.named_modules():
            if isinstance(part, _NormBase) and part.track_running_stats:
                where = f"{name or 'model'} ({type(part).__name__})"
                allowed = f"does not support running statistics, which {where} keeps: use engine='loop'"
                raise fail("engine", self.name, allowed)
        if setup.stochastic:
            raise fail(
                "engine",
                self.name,
                "does not support dropout and other random numbers (the clients' streams would mix): use engine='loop'",
            )
        if not setup.training.plain:
            what = "gradient clipping" if setup.training.clip_gradient is not None else "optimisers other than sgd"
            raise fail("engine", self.name, f"does not support {what}: use engine='loop'")
        self._programs: dict[ResidentModel, Program] = {}
        try:
            self.train(setup.initial, Batches(np.zeros((2, 1, 2), dtype=np.int64)), 1.0)
        except InvalidInput as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise fail("engine", self.name, f"this model cannot be vectorised ({reason}): use engine='loop'") from error
        for resident in self._programs:
            if (buffer := resident.changed_buffer(setup.initial_buffers)) is not None:
                allowed = f"does not support a model that changes its buffer {buffer}: use engine='loop'"
                raise fail("engine", self.name, allowed)
        self.losses = None

    def _run(self, job: TrainingJob) -> None:
        count, _, batch = job.rows.shape
        per_sample = self.setup.train.features + 2 * self.setup.activations
        chunk = max(1, _CHUNK_BYTES // (4 * (batch * per_sample + 3 * self.num_params)))
        chunks = [slice(first, min(first + chunk, count)) for first in range(0, count, chunk)]

        def named(resident: ResidentModel, part: slice) -> None:
            try:
                self._chunk(job, resident, part)
            except PASSED_ON:
                raise
            except Exception as error:
                positions = range(part.start, part.stop)
                clients = [self.setup.train.client_of(int(job.rows[i, 0, 0])) for i in positions]
                alone = [partial(self._chunk, job, resident, slice(i, i + 1)) for i in positions]
                raise blame(self.setup.task, "trained", error, zip(clients, alone, strict=True)) from error

        self.setup.workers.each(named, chunks)

    @torch.no_grad()
    def _chunk(self, job: TrainingJob, resident: ResidentModel, part: slice) -> None:
        out = job.out[part]
        starts = job.starts if job.starts.ndim == 1 else job.starts[part]
        # The rows of `out` are the clients' models until they are done.
        out.copy_(starts)
        weights = self.setup.layout.views(out)
        shift = job.shift if job.shift is None or job.shift.ndim == 1 else job.shift[part]
        shift = None if shift is None else shift.expand_as(out)
        rates = job.rates[part]
        rate = float(rates[0]) if (rates == rates[0]).all() else self._by_parameter(rates)
        step = make_descent(self.setup, job, rate, out, shift)
        program = self._program(resident)
        total = None if job.losses is None else job.losses[part]
        rows = job.rows[part].transpose(0, 1).contiguous()
        sizes = None if job.sizes is None else job.sizes[part].T
        for k, batch in enumerate(rows):
            if sizes is None or (sizes[k] == batch.shape[1]).all():
                losses, gradients = self._gradients(program, weights, batch, total is not None)
                step(weights, gradients)
                if total is not None and losses is not None:
                    total += losses
                continue
            for size in np.unique(sizes[k][sizes[k] > 0]).tolist():
                some = torch.from_numpy(np.flatnonzero(sizes[k] == size)).to(out.device)
                own, selected_weights = step.select(some), [w.index_select(0, some) for w in weights]
                few = batch.index_select(0, some)[:, :size]
                losses, gradients = self._gradients(program, selected_weights, few, total is not None)
                own(selected_weights, gradients)
                step.put_back(some, own)
                for w, changed in zip(weights, selected_weights, strict=True):
                    w.index_copy_(0, some, changed)
                if total is not None and losses is not None:
                    total.index_add_(0, some, losses)
        if total is not None:
            total /= len(rows) if sizes is None else torch.from_numpy((sizes > 0).sum(axis=0)).to(out.device)
        torch.sub(starts, out, out=out)

    def _gradients(
        self, program: Program, weights: Tensors, rows: Tensor, losses: bool
    ) -> tuple[Tensor | None, Tensors]:
        samples = self.setup.train
        with self.setup.autocast():
            return program(weights, samples.inputs(rows), samples.targets(rows), losses)

    def _program(self, resident: ResidentModel) -> Program:
        if resident not in self._programs:
            loss = self.setup.task.loss
            layers = dense_layers_of(resident.module, self.setup.task)
            general = stacked(resident.module, loss, self.setup.layout) if layers is None else DenseProgram(layers)
            self._programs[resident] = general
        return self._programs[resident]

    def _by_parameter(self, rates: NDArray[np.float64]) -> Tensors:
        column = torch.from_numpy(rates.astype(np.float32)).to(self.setup.device)
        return [column.view(-1, *[1] * len(shape)) for shape in self.setup.layout.shapes]
