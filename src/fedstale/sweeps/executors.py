"""Where batches are done: in this process, in worker processes, on a Ray cluster. The results are the same.

An executor takes batches and yields each with its outcomes as it is done. It never touches the store: results travel
back to the one process that writes, so that workers may be anywhere.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import Any

from ..checks import positive_int
from ..ray_cluster import connect
from .batches import Batch, run_batch
from .outcome import RunOutcome

_Outcomes = Iterator[tuple[Batch, list[RunOutcome]]]
Executor = Callable[[Sequence[Batch]], _Outcomes]


def in_process(batches: Sequence[Batch]) -> _Outcomes:
    """Do one batch after the other, here."""
    for batch in batches:
        yield batch, run_batch(_configs(batch), batch.lockstep)


def processes(workers: int | None = None) -> Executor:
    """Return the executor that uses worker processes.

    Parameters
    ----------
    workers
        How many; default: one per core that this process may use.
    """
    count = _available_cores() if workers is None else positive_int("workers", workers)

    def run(batches: Sequence[Batch]) -> _Outcomes:
        waiting, again = list(batches), set[int]()
        while waiting:
            lost: list[Batch] = []
            others = set(active_children())
            given = os.getpid(), list(warnings.filters)
            pool = ProcessPoolExecutor(min(count, len(waiting)), get_context("spawn"), _as_worker, given)
            try:
                # Few are handed to the pool at a time: fewer are lost when it breaks.
                yield from _pooled(pool, waiting, lost, count + 1)
            except BaseException:  # Ctrl-C: do not wait for batches whose results nobody will take
                for worker in set(active_children()) - others:
                    worker.terminate()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
            # A worker that dies (killed, out of memory) breaks its pool. What was in it is tried once more.
            waiting = [batch for batch in lost if id(batch) not in again]
            for batch in lost:
                if id(batch) in again:
                    yield batch, _all_failed(batch, "the worker process died twice")
            again |= {id(batch) for batch in waiting}

    return run


def _pooled(pool: ProcessPoolExecutor, batches: Sequence[Batch], lost: list[Batch], limit: int) -> _Outcomes:
    open_: dict[Future[list[RunOutcome]], Batch] = {}
    rest = iter(batches)

    def more() -> None:
        for batch in rest:
            try:
                open_[pool.submit(run_batch, _configs(batch), batch.lockstep)] = batch
            except BrokenProcessPool:
                lost.append(batch)
            if len(open_) >= limit:
                return

    more()
    while open_:
        for future in wait(open_, return_when=FIRST_COMPLETED).done:
            batch = open_.pop(future)
            try:
                yield batch, future.result()
            except BrokenProcessPool:
                lost.append(batch)
            except Exception as error:  # what could not even be sent back
                yield batch, _all_failed(batch, f"{type(error).__name__}: {error}")
        more()


def ray(address: str | None = None) -> Executor:
    """Return the executor that uses a Ray cluster (extra `ray`).

    Parameters
    ----------
    address
        Of a running cluster ("auto" finds it on this machine); None starts one here.
    """

    def run(batches: Sequence[Batch]) -> _Outcomes:
        cluster, own = connect(address)
        try:
            remote = cluster.remote(num_cpus=1, max_retries=1)(run_batch)
            limit = 2 * max(1, int(cluster.cluster_resources().get("CPU", 1)))
            yield from _clustered(cluster, remote, batches, limit)
        finally:
            if own:
                cluster.shutdown()

    return run


def _clustered(cluster: Any, remote: Any, batches: Sequence[Batch], limit: int) -> _Outcomes:
    open_: dict[Any, Batch] = {}
    rest = iter(batches)
    for batch in rest:
        open_[remote.remote(_configs(batch), batch.lockstep)] = batch
        if len(open_) >= limit:
            break
    while open_:
        (ready, *_), _ = cluster.wait(list(open_), num_returns=1)
        batch = open_.pop(ready)
        try:
            outcomes = cluster.get(ready)
        except Exception as error:
            outcomes = _all_failed(batch, f"{type(error).__name__}: {error}")
        following = next(rest, None)
        if following is not None:
            open_[remote.remote(_configs(following), following.lockstep)] = following
        yield batch, outcomes


def _available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _configs(batch: Batch) -> list[dict[str, Any]]:
    return [settings.record() for settings in batch.runs]


def _all_failed(batch: Batch, reason: str) -> list[RunOutcome]:
    return [RunOutcome(settings.record(), reason=reason, failed=True) for settings in batch.runs]


def _as_worker(parent: int, filters: list[Any]) -> None:
    """Make a worker end with its parent, however that ends, leave Ctrl-C to it, and warn of what it would warn of."""
    import signal

    warnings.filters[:] = filters  # type: ignore[index]
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
