"""The loop engine: one client after the other on each thread's resident model (Algorithm 1 as it is written).

For models with real work in a step, such as convolutional ones. Same seed, same bits, whatever the number of threads.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from ..tasks.scores import as_float, call
from .blame import PASSED_ON, blame
from .descent import Descent
from .engine import Engine, TrainingJob, make_descent
from .optimizers import OptimizerStep, clipped
from .prepare import ResidentModel


class LoopEngine(Engine):
    """Trains clients one by one; see the module."""

    name = "loop"

    def _run(self, job: TrainingJob) -> None:
        def named(resident: ResidentModel, i: int) -> None:
            try:
                self._client(job, resident, i)
            except PASSED_ON:
                raise
            except Exception as error:
                client = self.setup.train.client_of(int(job.rows[i, 0, 0]))
                raise blame(self.setup.task, "trained", error, [(client, None)]) from error

        with self.setup.own_stream() if job.noise is not None else nullcontext():
            self.setup.workers.each(named, range(len(job.out)))

    def _client(self, job: TrainingJob, resident: ResidentModel, i: int) -> None:
        setup = self.setup
        if job.noise is not None:
            torch.manual_seed(int(job.noise[i]))
        start = job.starts if job.starts.ndim == 1 else job.starts[i]
        shift = job.shift if job.shift is None or job.shift.ndim == 1 else job.shift[i]
        begin = setup.layout.views(start)
        weights, parameters = resident.weights, resident.parameters
        torch._foreach_copy_(weights, begin)
        if resident.has_buffers:
            resident.put_buffers({name: buffer[i] for name, buffer in job.buffers.items()})
        step, limit = self._step(job, resident, i, start, shift)
        samples, task_loss, autocast = setup.train, setup.task.loss, setup.autocast
        sizes = None if job.sizes is None else job.sizes[i]
        taken = 0
        for k, batch in enumerate(job.rows[i]):
            if sizes is not None:
                if not sizes[k]:
                    break
                batch = batch[: int(sizes[k])]
            with autocast():
                outputs = call(resident.forward, samples.inputs(batch))
            loss = task_loss(as_float(outputs), samples.targets(batch))
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
            step(weights, gradients if limit is None else clipped(gradients, limit))
            taken += 1
            if job.losses is not None:
                job.losses[i] += loss.detach()
        if job.losses is not None:
            job.losses[i] /= taken
        for out, before, after in zip(setup.layout.views(job.out[i]), begin, weights, strict=True):
            torch.sub(before, after, out=out)
        for name, buffer in resident.buffers() if resident.has_buffers else ():
            job.buffers[name][i] = buffer

    def _step(
        self, job: TrainingJob, resident: ResidentModel, i: int, start: Tensor, shift: Tensor | None
    ) -> tuple[Descent | OptimizerStep, float | None]:
        """Return what takes a client's steps, and the length to which gradients are clipped first."""
        setup, rate = self.setup, float(job.rates[i])
        limit = None if job.gradient else setup.training.clip_gradient
        if job.gradient or setup.optimizer is None:
            return make_descent(setup, job, rate, start, shift), limit
        optimizer = setup.optimizer(resident.parameters, rate)
        added = None if shift is None else setup.layout.views(shift)
        return OptimizerStep(optimizer, resident.parameters, job.prox, added), limit
