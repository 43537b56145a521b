"""What every engine is built on: the task's samples on the device, the model, the threads, the precision."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..checks import fail
from ..federation import Ints
from ..tasks.client_data import ClientData, Values, each, single, tensors
from ..tasks.made import MadeData
from ..tasks.mapped import MappedData
from ..tasks.scores import call, first_rows, try_out
from ..tasks.task import Task
from .blocked import can_run_blocked
from .evaluation import Scoring
from .layout import FlatLayout, flatten, places_of_buffers, put_back, read_buffers
from .local import LocalTraining, smallest_batches
from .optimizers import make_optimizer
from .prepare import ResidentModel, convolutional, prepare, stochastic
from .trial import tried

_R = TypeVar("_R")
_Item = TypeVar("_Item")


class Samples:
    """One split of a task as the engines read it: one row per sample, so that a batch is one `index_select`.

    Parameters
    ----------
    split
        The clients' samples.
    channels_last
        Whether inputs (n, C, H, W) are kept as rows of (H, W, C), as convolutions like them on every device. This
        copies the inputs, unless C = 1; those in mapped files stay as they are, and each batch is rearranged.
    device
        Where they are kept.
    clients
        Whose they are; default: everybody's.

    Attributes
    ----------
    features
        Numbers in one input.
    count
        The number of samples.
    """

    def __init__(
        self, split: ClientData, channels_last: bool, device: torch.device, clients: Ints | None = None
    ) -> None:
        self._clients = clients
        self._rearranged = channels_last and not isinstance(split, MappedData)
        moved = each(split.x, lambda x: x.movedim(1, -1)) if self._rearranged else split.x
        self.channels_last = channels_last
        self._shapes = {name: x.shape[1:] for name, x in tensors(moved).items()}
        # A tensor in a mapped file stays there: rows that are contiguous already are not copied.
        self._x = each(moved, lambda x: x.reshape(len(x), -1).to(device))
        self._y = each(split.y, lambda y: y.to(device))
        self.features = sum(x.shape[1] for x in tensors(self._x).values())
        self.count = split.num_samples
        self.offsets: NDArray[np.int64] = split.offsets

    def client_of(self, row: int) -> int:
        """Return whose sample it is."""
        position = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return position if self._clients is None else int(self._clients[position])

    def inputs(self, rows: Tensor | slice) -> Values:
        """Return the inputs of some samples as the task has them: rows of shape (…) give inputs of shape (…, *own)."""
        if isinstance(self._x, dict):
            return {name: _select(x, rows, self._shapes[name]) for name, x in self._x.items()}
        x = _select(self._x, rows, self._shapes[""])
        if self.channels_last and not self._rearranged:
            x = x.movedim(-3, -1).contiguous()
        return x.movedim(-1, -3) if self.channels_last else x

    def targets(self, rows: Tensor | slice) -> Values:
        """Return the targets of some samples."""
        if isinstance(self._y, dict):
            return {name: _select(y, rows, y.shape[1:]) for name, y in self._y.items()}
        return _select(self._y, rows, self._y.shape[1:])


class _MadeSamples(Samples):
    """A split whose samples are made when they are asked for; see `Samples`."""

    def __init__(self, split: MadeData, channels_last: bool, device: torch.device) -> None:
        x, y = (each(values, lambda t: t[:1]) for values in (split.x, split.y))
        super().__init__(ClientData(x, y, np.array([0, 1])), channels_last, device)
        self._split, self._device = split, device
        self.count, self.offsets = split.num_samples, split.offsets

    def _made(self, rows: Tensor | slice) -> tuple[Samples, Tensor | slice]:
        """Return these samples alone, and their places among them."""
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.flatten().cpu().numpy()
        made = ClientData(*self._split.rows(wanted), np.array([0, len(wanted)]))
        places = slice(0, len(wanted)) if isinstance(rows, slice) else torch.arange(len(wanted)).view(rows.shape)
        return Samples(made, self.channels_last, self._device), places

    def inputs(self, rows: Tensor | slice) -> Values:
        """Make the inputs of some samples."""
        samples, places = self._made(rows)
        return samples.inputs(places)

    def targets(self, rows: Tensor | slice) -> Values:
        """Make the targets of some samples."""
        samples, places = self._made(rows)
        return samples.targets(places)


def _samples_of(split: ClientData, channels_last: bool, device: torch.device) -> Samples:
    """Return a split as the engines read it."""
    if isinstance(split, MadeData):
        return _MadeSamples(split, channels_last, device)
    return Samples(split, channels_last, device)


def _select(tensor: Tensor, rows: Tensor | slice, shape: torch.Size) -> Tensor:
    if isinstance(rows, slice):
        return tensor[rows].view(-1, *shape)
    return tensor.index_select(0, rows.flatten()).view(*rows.shape, *shape)


class TrainingSetup:
    """A task made ready for training on one device.

    Parameters
    ----------
    task
        What is learned.
    training
        Hyper-parameters of local training.
    bfloat16
        Whether forward and backward passes run under bfloat16 autocast. Weights, updates and steps stay float32.
    device
        Where.
    threads
        How many clients train side by side.
    seed
        Of the run.
    record_losses
        Whether engines keep the clients' training losses.
    """

    def __init__(
        self,
        task: Task,
        training: LocalTraining,
        *,
        bfloat16: bool,
        device: torch.device,
        threads: int,
        seed: int,
        record_losses: bool,
    ) -> None:
        self.task, self.training, self.seed = task, training, seed
        self.num_clients = task.num_clients
        self.bfloat16, self.device, self.record_losses = bfloat16, device, record_losses
        built = task.build(seed)
        self.layout = FlatLayout.of(built)
        self.initial, self.initial_buffers = flatten(built), read_buffers(built)
        buffers = places_of_buffers(built)

        def outputs(count: int) -> Any:
            return try_out(built, task.loss, first_rows(task.train.x, count), first_rows(task.train.y, count))

        self.scoring = Scoring(task, outputs)
        _check_single_samples(built, task, training)
        self.optimizer = make_optimizer(training, built)
        x = single(task.train.x)
        convolutions = x is not None and x.ndim == 4 and x.is_floating_point() and convolutional(built)
        plain = device.type == "cpu" and not bfloat16
        in_blocks = convolutions and plain and x is not None and can_run_blocked(built, x[:2])
        put_back(buffers)
        rows = min(2, task.train.num_samples)
        few = ClientData(first_rows(task.train.x), first_rows(task.train.y), np.array([0, rows]))
        trial = tried(built, task, few.x, few.y)
        channels_last = convolutions and not in_blocks
        self.model = prepare(built, channels_last=channels_last, device=device)
        if channels_last and trial.works:
            # A model that calls `view` on what a convolution puts out needs the memory format of plain torch.
            batch = Samples(few, True, device)
            both = batch.inputs(slice(0, rows)), batch.targets(slice(0, rows))
            channels_last = tried(self.model, task, *both).works
            if not channels_last:
                self.model = prepare(built, channels_last=False, device=device)
        self.stochastic = stochastic(built) or trial.draws
        self.train = _samples_of(task.train, channels_last, device)
        self.test = _samples_of(task.test, channels_last, device)
        # Random numbers come from torch's global stream: clients that take turns draw the same ones every time.
        alone = self.stochastic or device.type != "cpu"
        self.workers = Workers(1 if alone else threads, lambda: ResidentModel(self.model, in_blocks))

    def own_stream(self) -> AbstractContextManager[None]:
        """Return a context after which torch's random numbers go on as if there had been none."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes."""
        if not self.bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @cached_property
    def activations(self) -> int:
        """How many numbers the model's layers put out for one sample."""
        total = 0

        def count(_: nn.Module, __: object, output: object) -> None:
            nonlocal total
            parts = (
                output if isinstance(output, (tuple, list)) else [output]
            )  # a recurrent layer also returns its state
            total += sum(part.numel() for part in parts if isinstance(part, Tensor))

        leaves = [part for part in self.model.modules() if not list(part.children())]
        hooks = [part.register_forward_hook(count) for part in leaves]
        try:
            self.model.eval()  # running statistics stay as they are
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                call(self.model, self.train.inputs(slice(0, 2)))
        finally:
            self.model.train()
            for hook in hooks:
                hook.remove()
        return max(1, -(-total // min(2, self.train.count)))


def _check_single_samples(model: nn.Module, task: Task, training: LocalTraining) -> None:
    """Refuse batches of one sample for a model that normalises over the batch: torch would, once it trains."""
    alone = smallest_batches(training, task.train.sizes) == 1
    if not alone.any() or not any(isinstance(part, _BatchNorm) for part in model.modules()):
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            call(copy.deepcopy(model).train(), first_rows(task.train.x, 1))
        except ValueError:  # an image has many values of each channel, and a variance
            client = int(np.argmax(alone))
            allowed = (
                f"client {client} has {task.train.sizes[client]} samples, and a batch with a single one, of which "
                "BatchNorm has no variance: choose another batch size"
            )
            raise fail("batch_size", training.batch_size, allowed) from None


class Workers(Generic[_R]):
    """Threads that train clients side by side, each with one resident model and one core of its own.

    One core per client beats all cores on one client: nothing waits for the other core after every layer (measured on
    the paper's MNIST CNN), and because no operation is ever split, the bits do not depend on the number of threads.
    torch's own number of threads, which the calling program may rely on, stays what it was. They start when first used.

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
            if not hasattr(self._own, "resident"):
                self._own.resident = self._resident()
            resident: _R = self._own.resident
            while (i := next(numbers)) < len(items):
                work(resident, items[i])

        futures = [pool.submit(consume) for _ in range(min(self.threads, len(items)))]
        for future in futures:
            future.result()

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
