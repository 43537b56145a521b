"""The engine that times both others on the first round and takes the faster one.

The trial's results are thrown away: from the first update on, the bits are those of the engine that was chosen. As
the choice depends on the machine and the moment, equal seeds need not give equal bits: `engine="auto"`, which asks the
model alone, does. A resumed run goes on with the engine that was chosen.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch

from ..checks import InvalidInput
from .engine import Engine, TrainingJob
from .loop import LoopEngine
from .setup import TrainingSetup
from .vmap import VmapEngine

_TRIAL_SECONDS = 0.25
"""How long one pass of the loop in the trial may take; rounds that are longer are timed on fewer steps and clients."""
_REPEATS = 3
_HOPELESS = 4.0
"""An engine that is this many times slower on its first pass is not timed again."""

log = logging.getLogger(__name__)


class FastestEngine(Engine):
    """Chooses between loop and vmap; see the module.

    Attributes
    ----------
    timings
        Seconds per client and local step that were measured, by engine.
    """

    name = "fastest"

    def __init__(self, setup: TrainingSetup) -> None:
        super().__init__(setup)
        self.timings: dict[str, float] = {}
        self._engine: Engine | None = None

    @property
    def resolved_name(self) -> str | None:
        """The engine that was chosen; None before the first round with participants."""
        return None if self._engine is None else self._engine.name

    def _run(self, job: TrainingJob) -> None:
        if self._engine is None:
            self._engine = self._choose(job)
        self._engine._run(job)

    def _choose(self, job: TrainingJob) -> Engine:
        loop = LoopEngine(self.setup)
        try:
            vmap = VmapEngine(self.setup)
        except InvalidInput as reason:
            log.info("engine: loop (%s)", reason)
            return loop
        job = self._shortened(loop, job)
        steps = job.rows.shape[0] * job.rows.shape[1]
        _seconds(loop, job)
        first = _seconds(loop, job)
        times = {loop: [first], vmap: [_seconds(vmap, job)]}
        # Caches and threads are warm only after the first pass, so that one decides nothing unless it is hopeless.
        if times[vmap][0] < _HOPELESS * first:
            times[vmap].clear()
            for _ in range(_REPEATS):
                for engine, measured in times.items():
                    measured.append(_seconds(engine, job))
        self.timings = {engine.name: min(measured) / steps for engine, measured in times.items()}
        best = min(times, key=lambda engine: min(times[engine]))
        timings = ", ".join(f"{name} {1e6 * seconds:.0f} µs" for name, seconds in self.timings.items())
        log.info("engine: %s (per client and step: %s)", best.name, timings)
        return best

    def _shortened(self, loop: Engine, job: TrainingJob) -> TrainingJob:
        """Cut the round down to what the loop does in about _TRIAL_SECONDS; first steps, then clients are left out."""
        shortest = _part(job, 1, 1)
        _seconds(loop, shortest)
        affordable = max(1, int(_TRIAL_SECONDS * self.setup.workers.threads / _seconds(loop, shortest)))
        clients, steps, _ = job.rows.shape
        clients = min(clients, max(2, affordable))
        return _part(job, clients, min(steps, max(1, affordable // clients)))


def _part(job: TrainingJob, clients: int, steps: int) -> TrainingJob:
    """Return the round with its first clients and steps only, and a place of its own for the results."""

    def first(value: torch.Tensor) -> torch.Tensor:
        return value if value.ndim == 1 else value[:clients]

    return replace(
        job,
        starts=first(job.starts),
        rows=job.rows[:clients, :steps],
        sizes=None if job.sizes is None else job.sizes[:clients, :steps],
        noise=None if job.noise is None else job.noise[:clients],
        rates=job.rates[:clients],
        shift=None if job.shift is None else first(job.shift),
        out=torch.empty_like(job.out[:clients]),
        buffers={name: buffer[:clients].clone() for name, buffer in job.buffers.items()},
        losses=None,
    )


def _seconds(engine: Engine, job: TrainingJob) -> float:
    began = time.perf_counter()
    engine._run(job)
    return time.perf_counter() - began
