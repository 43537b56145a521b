"""The loop engine: one client after the other on each thread's resident model (Algorithm 1 as it is written).

For models with real work in a step, such as convolutional ones. Same seed, same bits, whatever the number of threads.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from .engine import Engine, TrainingJob, make_descent
from .prepare import ResidentModel


class LoopEngine(Engine):
    """Trains clients one by one; see the module."""

    name = "loop"

    def _run(self, job: TrainingJob) -> None:
        devices = [self.setup.device] if self.setup.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices) if job.noise is not None else nullcontext():
            self.setup.workers.each(lambda resident, i: self._client(job, resident, i), range(len(job.out)))

    def _client(self, job: TrainingJob, resident: ResidentModel, i: int) -> None:
        setup = self.setup
        if job.noise is not None:
            torch.manual_seed(int(job.noise[i]))
        start = job.starts if job.starts.ndim == 1 else job.starts[i]
        shift = job.shift if job.shift is None or job.shift.ndim == 1 else job.shift[i]
        begin = setup.layout.views(start)
        weights, parameters = resident.weights, resident.parameters
        torch._foreach_copy_(weights, begin)
        step = make_descent(setup, job, float(job.rates[i]), start, shift)
        samples, task_loss, autocast = setup.train, setup.task.loss, setup.autocast
        sizes = None if job.sizes is None else job.sizes[i]
        taken = 0
        for k, batch in enumerate(job.rows[i]):
            if sizes is not None:
                if not sizes[k]:
                    break
                batch = batch[: int(sizes[k])]
            with autocast():
                logits = resident.forward(samples.inputs(batch))
            loss = task_loss(logits.float(), samples.y.index_select(0, batch))
            step(weights, torch.autograd.grad(loss, parameters, materialize_grads=True))
            taken += 1
            if job.losses is not None:
                job.losses[i] += loss.detach()
        if job.losses is not None:
            job.losses[i] /= taken
        for out, before, after in zip(setup.layout.views(job.out[i]), begin, weights, strict=True):
            torch.sub(before, after, out=out)
