"""Threads that train clients side by side, each with one resident model and one core of its own.

One core per client beats all cores on one client: nothing waits for the other core after every layer (measured on
the paper's MNIST CNN), and because no operation is ever split, the bits do not depend on how many threads there are.
torch's own number of threads, which the calling program may rely on, stays what it was.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

_R = TypeVar("_R")
_Item = TypeVar("_Item")


class Workers(Generic[_R]):
    """A pool of threads, started when first used.

    Parameters
    ----------
    threads
        How many.
    resident
        Makes what each thread keeps for itself.
    """

    def __init__(self, threads: int, resident: Callable[[], _R]) -> None:
        self.threads = threads
        self._resident = resident
        self._own = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def each(self, work: Callable[[_R, _Item], None], items: Sequence[_Item]) -> None:
        """Call work(resident, item) for every item; idle threads take the next one. The first error is raised."""
        pool = self._started()
        numbers = itertools.count()  # next() on it is atomic

        def consume() -> None:
            resident = self._mine()
            while (i := next(numbers)) < len(items):
                work(resident, items[i])

        futures = [pool.submit(consume) for _ in range(min(self.threads, len(items)))]
        for future in futures:
            future.result()

    def _mine(self) -> _R:
        if not hasattr(self._own, "resident"):
            self._own.resident = self._resident()
        own: _R = self._own.resident
        return own

    def _started(self) -> ThreadPoolExecutor:
        # A forked child inherits the object but not its threads.
        if self._pool is None or self._process != os.getpid():
            before = torch.get_num_threads()
            pool = ThreadPoolExecutor(self.threads, "fedstale", initializer=_one_core)
            everyone = threading.Barrier(self.threads + 1)
            for _ in range(self.threads):
                pool.submit(everyone.wait)
            everyone.wait()
            # Threads of the program that start later would inherit what was set last.
            torch.set_num_threads(before)
            self._pool, self._process = pool, os.getpid()
        return self._pool


def _one_core() -> None:
    torch.set_num_threads(1)
    # A thread adopts the number when it first asks for it, and keeps it whatever other threads set afterwards.
    torch.get_num_threads()
