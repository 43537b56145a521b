"""The engine whose clients are trained by Ray actors, on this machine or on many (Algorithm 1, its inner loop).

Each actor has one resident model and holds its share of the clients' data. A round's model goes into the object store
once; workers take clients by the plan of `schedule` and return updates, which the server's pass reads where they lie in
shared memory. An actor that dies is replaced, and what it had not returned is trained again: an update is a function of
(model, seed, round, client), so that it does not matter who computes it, or how often, and a round takes one of each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
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
"""Deaths of a worker without a result in between that end a run: whatever kills it will kill the next one, too."""
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
        self._made_of = _put(self._ray, setup.task, recipe), _put(self._ray, setup.task, source)
        self._actors: list[Any] = [None] * self._count
        self._starting: dict[Any, int] = {}
        """Workers that have not said yet that they are there: they are given nothing."""
        for worker in range(self._count):
            self._start(worker)
        self._deaths = [0] * self._count
        self.traffic = _Traffic()

    def _start(self, worker: int) -> None:
        remote = self._ray.remote(num_cpus=1, num_gpus=self._options.gpus_per_worker, max_restarts=0)(Worker)
        self._actors[worker] = remote.remote(*self._made_of)
        self._starting[self._actors[worker].ready.remote()] = worker

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
        load = np.zeros(self._count, dtype=np.int64)

        def give(workers: Iterable[int]) -> None:
            starting = set(self._starting.values())
            for worker in workers:
                while worker not in starting and load[worker] < _AHEAD:
                    # Only who has nothing to do takes what is another's.
                    piece = queues.take(worker, self._speeds.values, others=load[worker] == 0)
                    if piece is None:
                        break
                    sent[self._actors[worker].train.remote(*message(piece))] = worker, piece
                    load[worker] += 1

        give(range(self._count))
        while queues or sent:
            for reference in self._answered(sent):
                if reference not in sent and reference not in self._starting:
                    continue  # of a worker whose end was seen a moment ago
                new = reference in self._starting
                worker, piece = (self._starting.pop(reference), []) if new else sent.pop(reference)
                try:
                    answer: Trained = self._ray.get(reference)
                except self._ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from None
                except self._ray.exceptions.RayError as error:  # dead, out of memory, its machine gone, …
                    lost = [other for other, (who, _) in sent.items() if who == worker]
                    for again in [piece, *(sent.pop(other)[1] for other in lost)]:
                        queues.put_back(worker, again)
                    load[worker] = 0
                    self._replace(worker, error)
                    give(range(self._count))  # others may be without work
                    continue
                if not new:
                    load[worker] -= 1
                    self._deaths[worker] = 0
                    self._speeds.observe(worker, float(work[piece].sum()), answer.seconds)
                give([worker])
                if not new:
                    yield piece, answer

    def _answered(self, sent: Iterable[Any]) -> list[Any]:
        """Wait until a worker has answered, and return all that did; say so while there is nobody to work."""
        waited = [*sent, *self._starting]
        while True:
            nobody = len(waited) == len(self._starting)
            first, _ = self._ray.wait(waited, num_returns=1, timeout=_PATIENCE if nobody else None)
            if first:
                break
            log.warning("no worker on Ray has started yet: does the cluster have a free processor for it?")
        also, _ = self._ray.wait(waited, num_returns=len(waited), timeout=0)
        return list(dict.fromkeys([*first, *also]))

    def _replace(self, worker: int, error: Exception) -> None:
        self._deaths[worker] += 1
        times, reason = self._deaths[worker], _reason(error)
        if times > _MOST_DEATHS:
            raise InvalidInput(f"a worker on Ray died {times} times in a row; the last time: {reason}") from error
        log.warning("worker %d on Ray died and is replaced; its clients are trained again (%s)", worker, reason)
        self._ray.kill(self._actors[worker])  # one that cannot be reached is not to come back
        self._start(worker)
        self._speeds.forget(worker)


def _reason(error: Exception) -> str:
    """Say in one line why a worker died; where it could not be made, the reason is in the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{lines[0]} … {lines[-1]}" if "creation task" in lines[0] and len(lines) > 1 else lines[0]


def _workers(ray: Any, options: ClusterOptions) -> int:
    """How many actors there will be; an error where the cluster has no room for them, which would wait for ever."""
    share = options.gpus_per_worker
    room, what = _room(ray.cluster_resources(), share), f"processors and {share:g} GPUs each" if share else "processors"
    count = room if options.workers is None else positive_int("workers", options.workers)
    if not 0 < count <= room:
        blamed = "gpus_per_worker" if share and options.workers is None else "workers"
        raise fail(blamed, share if blamed != "workers" else count, f"the Ray cluster has {what} for {room}")
    until = time.monotonic() + _PATIENCE  # actors of an engine that was let go need a moment to end
    while (free := _room(ray.available_resources(), share)) < count:
        if time.monotonic() > until:
            raise fail("workers", count, f"the Ray cluster has {what} that nobody uses for {free} only")
        time.sleep(0.2)
    return count


def _room(there: Mapping[str, float], share: float) -> int:
    """How many actors fit; one that has a part of a GPU has it of a single one."""
    room, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0) + 1e-6)
    if not share:
        return room
    return min(room, gpus * int(1 / share + 1e-6) if share <= 1 else int(gpus / share))


def _put(ray: Any, task: Task, value: Any) -> Any:
    """Put what workers are made of into the object store."""
    try:
        return ray.put(value)
    except Exception as error:  # whatever a pickler raises
        why = str(error.__cause__ or error).splitlines()[0]
        what = (
            f"its model, loss or data cannot be sent to workers on Ray ({why}): they must not hold locks or open files"
        )
        raise fail("task", task.name, what) from None


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
