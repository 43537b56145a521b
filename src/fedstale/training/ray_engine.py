"""The engine whose clients are trained by Ray actors, on this machine or on many (Algorithm 1, its inner loop).

Each actor has one resident model and holds its share of the clients' data. A round's model goes into the object store
once; workers take clients by the plan of `schedule` and return updates, which the server's pass reads where they lie in
shared memory. An actor that dies is replaced, and what it had not returned is trained again: an update is a function of
(model, seed, round, client), so that it does not matter who computes it, or how often, and a round takes one of each.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from ..checks import InvalidInput, fail, number, positive_int
from ..ray_cluster import connect
from ..tasks.client_data import ClientData, Values, each
from ..tasks.made import MadeData
from ..tasks.mapped import MappedData
from ..tasks.task import Task
from .engine import Engine, TrainingJob
from .layout import Floats
from .ray_worker import ClientSource, Recipe, Trained, Worker
from .schedule import Queues, WorkerSpeeds, homes, pieces, plan
from .setup import TrainingSetup
from .shared_samples import SamplesOnWorker, SharedSamples

log = logging.getLogger(__name__)
_PIECES = 4
"""Pieces of a worker's clients in a round: what is lost with a worker, or taken from a slow one, is one of them."""
_AHEAD = 2
"""Pieces that a worker has been sent: it need not wait for the next one."""
_PATIENCE = 30.0
"""Seconds in which the cluster's processors must become free."""
_MOST_DEATHS = 3
"""Deaths without a result in between that end a run: whatever kills workers will kill the next one, too."""
_EACH = ("starts", "rows", "sizes", "noise", "rates", "shift")
"""Fields of `TrainingJob` that may have one row per client."""
_RESULTS = ("out", "losses", "buffers")


@dataclass
class _Traffic:
    """What the last call of `train` moved, in bytes: arrays, without what Ray wraps them in.

    Parameters
    ----------
    model
        Put into the object store once; every machine fetches it once.
    sent
        To workers, with the pieces: batches, and what is each client's own.
    returned
        By workers: updates.
    pieces
        How many calls of workers were answered.
    """

    model: int = 0
    sent: int = 0
    returned: int = 0
    pieces: int = 0


@dataclass(frozen=True)
class ClusterOptions:
    """Where and how many.

    Parameters
    ----------
    workers
        How many actors; default: one for each processor (or share of a GPU) that the cluster has.
    address
        Of a running cluster, "auto" for one on this machine; None starts one here.
    gpus_per_worker
        GPUs of an actor, which then trains on one; a fraction shares it. (Not tried: there was no machine with GPUs.)
    keep_memory
        Whether actors keep freed memory, see `keep_freed_memory`.
    """

    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float = 0.0
    keep_memory: bool = True


class RayEngine(Engine):
    """Trains clients in Ray actors; see the module.

    Parameters
    ----------
    setup
        The task made ready; evaluation happens here.
    options
        Where the actors are, and how many.
    inner
        The name of the engine of each actor.
    """

    name = "ray"

    def __init__(self, setup: TrainingSetup, options: ClusterOptions, inner: str) -> None:
        super().__init__(setup)
        number("gpus_per_worker", options.gpus_per_worker, 0.0)
        self._ray, _ = connect(options.address)
        self._options = options
        self._count = _workers(self._ray, options)
        self._pieces = _PIECES if inner == "loop" else 1
        self._homes = homes(setup.task.train.sizes, self._count)
        self._speeds = WorkerSpeeds(self._count)
        recipe = Recipe(
            _without_data(setup.task),
            setup.training,
            inner,
            "bfloat16" if setup.bfloat16 else "float32",
            "cuda" if options.gpus_per_worker else "cpu",
            setup.seed,
            setup.record_losses,
            options.keep_memory,
        )
        source = _source(setup.task.train, self._ray, self._count)
        self._made_of = self._ray.put(recipe), self._ray.put(source)
        self._actors = [self._new_actor() for _ in range(self._count)]
        self._deaths = 0
        self.traffic = _Traffic()

    def _new_actor(self) -> Any:
        remote = self._ray.remote(num_cpus=1, num_gpus=self._options.gpus_per_worker, max_restarts=0)(Worker)
        return remote.remote(*self._made_of)

    def _run(self, job: TrainingJob) -> list[Floats]:
        rows, offsets = job.rows.cpu().numpy(), self.setup.train.offsets
        clients = np.searchsorted(offsets, rows[:, 0, 0], side="right") - 1
        # Places that a smaller batch leaves empty name row 0 of all.
        relative = np.maximum(rows - offsets[clients][:, None, None], 0)
        size = np.full(len(rows), rows[0].size) if job.sizes is None else job.sizes.sum(axis=1)
        work = size.astype(np.float64)
        values = {field.name: _array(getattr(job, field.name)) for field in fields(job)} | {"rows": relative}
        by_client = [name for name in _EACH if np.ndim(values[name]) > 1 or name in ("noise", "rates")]
        own = {name: values[name] for name in by_client if values[name] is not None}
        shared = {name: value for name, value in values.items() if name not in own and name not in _RESULTS}
        buffers = {name: buffer.cpu().numpy() for name, buffer in job.buffers.items()}
        shares = plan(work, self._homes[clients], self._speeds.values)
        queues = Queues([pieces(share, work, self._pieces) for share in shares], work)
        found: list[Floats | None] = [None] * len(rows)
        model = self._ray.put(shared)

        def message(piece: list[int]) -> tuple[Any, ...]:
            return model, clients[piece], {**_rows(own, piece), "buffers": _rows(buffers, piece)}

        self.traffic = _Traffic(_bytes(shared))
        for piece, trained in self._collect(queues, work, message):
            self.traffic.sent += sum(value[piece].nbytes for value in own.values())
            self.traffic.returned += trained.updates.nbytes
            self.traffic.pieces += 1
            for k, position in enumerate(piece):
                found[position] = trained.updates[k]
                if job.losses is not None and trained.losses is not None:
                    job.losses[position] = float(trained.losses[k])
                for name, buffer in trained.buffers.items():
                    job.buffers[name][position] = from_numpy(np.array(buffer[k]))
        return [update for update in found if update is not None]

    def _collect(self, queues: Queues, work: NDArray[np.float64], message: Any) -> Any:
        """Yield every piece with what came back, whoever did it."""
        sent: dict[Any, tuple[int, list[int]]] = {}
        while queues or sent:
            for worker, actor in enumerate(self._actors):
                while sum(who == worker for who, _ in sent.values()) < _AHEAD:
                    piece = queues.take(worker, self._speeds.values)
                    if piece is None:
                        break
                    sent[actor.train.remote(*message(piece))] = worker, piece
            (ready, *_), _ = self._ray.wait(list(sent), num_returns=1)
            worker, piece = sent.pop(ready)
            try:
                trained: Trained = self._ray.get(ready)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
                queues.put_back(worker, piece)
                for reference in [reference for reference, (who, _) in sent.items() if who == worker]:
                    queues.put_back(worker, sent.pop(reference)[1])
                self._replace(worker, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            self._deaths = 0
            self._speeds.observe(worker, float(work[piece].sum()), trained.seconds)
            yield piece, trained

    def _replace(self, worker: int, error: Exception) -> None:
        self._deaths += 1
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if self._deaths > _MOST_DEATHS:
            raise InvalidInput(f"workers on Ray died {self._deaths} times in a row; the last one: {reason}") from error
        log.warning("worker %d on Ray died and is replaced; its clients are trained again (%s)", worker, reason)
        self._ray.kill(self._actors[worker])  # one that cannot be reached is not to come back
        self._actors[worker] = self._new_actor()
        self._speeds.forget(worker)


def _workers(ray: Any, options: ClusterOptions) -> int:
    """How many actors there will be; an error where the cluster has no room for them, which would wait for ever."""
    there = ray.cluster_resources()
    room, what = int(there.get("CPU", 0)), "processors"
    if options.gpus_per_worker:
        by_gpu = int(there.get("GPU", 0) / options.gpus_per_worker)
        room, what = min(room, by_gpu), f"processors and {options.gpus_per_worker:g} GPUs each"
    count = room if options.workers is None else positive_int("workers", options.workers)
    if not 0 < count <= room:
        raise fail("workers", count, f"the Ray cluster has {what} for {room}")
    until = time.monotonic() + _PATIENCE  # actors of an engine that was let go need a moment to end
    while (free := int(ray.available_resources().get("CPU", 0))) < count:
        if time.monotonic() > until:
            raise fail("workers", count, f"the Ray cluster has only {free} processors that nobody uses")
        time.sleep(0.2)
    return count


def _source(split: ClientData, ray: Any, workers: int) -> ClientSource:
    """Return what workers find the samples by: files or a function where there are such, else the object store."""
    there = isinstance(split, (MappedData, MadeData))
    return SamplesOnWorker(split) if there else SharedSamples(split, ray, workers)


def _without_data(task: Task) -> Task:
    """Return the task with its first samples only."""
    split = task.train
    few = min(2, split.num_samples)

    def first(values: Values) -> Values:
        return each(values, lambda tensor: tensor[:few].clone())

    samples = ClientData(first(split.x), first(split.y), np.array([0, few]))
    return replace(task, train=samples, test=samples, groups=np.zeros(1, dtype=np.int64), options={}, client_names=())


def _bytes(values: dict[str, Any]) -> int:
    return sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))


def _array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def _rows(values: dict[str, NDArray[Any]], positions: list[int]) -> dict[str, NDArray[Any]]:
    return {name: value[positions] for name, value in values.items()}
