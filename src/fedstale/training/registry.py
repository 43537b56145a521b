"""Engines by name, for configs and the command line."""

from __future__ import annotations

import logging
import time
import warnings
from typing import TYPE_CHECKING

import torch

from ..checks import InvalidInput, choose, fail, positive_int
from ..tasks.task import Task
from .dense import dense_layers_of
from .engine import Engine
from .fastest import FastestEngine
from .local import LocalTraining
from .loop import LoopEngine
from .setup import TrainingSetup
from .vmap import VmapEngine

if TYPE_CHECKING:
    from .ray_engine import ClusterOptions

log = logging.getLogger(__name__)
_AUTO = "auto"
ENGINES: dict[str, type[Engine]] = {"loop": LoopEngine, "vmap": VmapEngine, "fastest": FastestEngine}
_RAY = "ray"
_LARGEST_DENSE, _LARGEST_OTHER, _MANY = 200_000, 10_000, 8
"""Parameters up to which "auto" lets models train as one program, dense ones and others, and the clients that the
latter need to pay for being interpreted (`benchmarks/engines.py` measures both engines)."""
_PRECISIONS = {"float32": False, "bfloat16": True}


def make(
    task: Task,
    training: LocalTraining,
    *,
    engine: str = "auto",
    precision: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    losses: bool = False,
    cluster: ClusterOptions | None = None,
) -> Engine:
    """Make an engine for a task.

    Steps of larger models are faster on the CPU after `keep_freed_memory()`, which is for the caller to decide.

    Parameters
    ----------
    task
        What is learned.
    training
        Hyper-parameters of local training.
    engine
        "loop" (one client after the other), "vmap" (all clients as one batched program), "auto" (one of these two, by
        the model and the number of clients alone: equal seeds give equal bits), "fastest" (times both on the first
        round) or "ray" (what "auto" takes, in the actors of a Ray cluster).
    precision
        "float32", or "bfloat16": forward and backward passes under autocast, weights and updates in float32. It
        is faster on hardware that multiplies bfloat16; on other processors there is a warning.
    device
        "cpu", "cuda" or "cuda:1", …
    threads
        How many clients (or chunks of them) train side by side on the CPU, each on one core; default: torch's number
        of threads. It does not change results, and torch's own setting is left alone.
    seed
        Of the run: it decides the untrained model and the batches.
    losses
        Whether `Engine.losses` is kept.
    cluster
        For "ray": where the actors are, and how many.
    """
    kind = choose("engine", engine, {_AUTO: None, **ENGINES, _RAY: None})
    bfloat16 = choose("precision", precision, _PRECISIONS)
    where = _device(device)
    positive_int("seed", seed, 0)
    count = torch.get_num_threads() if threads is None else positive_int("threads", threads)
    if bfloat16 and where.type == "cpu" and _product_seconds(torch.bfloat16) > 2 * _product_seconds(torch.float32):
        warnings.warn("bfloat16 is slower than float32 on this processor: use precision='float32'", stacklevel=2)
    setup = TrainingSetup(
        task, training, bfloat16=bfloat16, device=where, threads=count, seed=seed, record_losses=losses
    )
    if engine == _RAY:
        from .ray_engine import ClusterOptions, RayEngine

        return RayEngine(setup, cluster or ClusterOptions(), _preferred(setup).name)
    return _preferred(setup) if kind is None else kind(setup)


def _preferred(setup: TrainingSetup) -> Engine:
    """What "auto" takes: vmap for small models of several clients, the loop for everything else.

    Small dense networks are one batched matrix product with its gradient in closed form. Other models go through
    `torch.func`, whose interpretation and grouped convolutions pay for tiny models of many clients only.
    """
    params, clients = setup.layout.num_params, setup.task.num_clients
    if dense_layers_of(setup.model, setup.task) is not None:
        vectorised = params <= _LARGEST_DENSE and clients > 1
    else:
        vectorised = params <= _LARGEST_OTHER and clients >= _MANY
    if vectorised:
        try:
            return VmapEngine(setup)
        except InvalidInput as reason:  # a model that only the loop can train
            log.info("engine: loop (%s)", reason)
    return LoopEngine(setup)


def _product_seconds(dtype: torch.dtype) -> float:
    """Time a matrix product: no list of instruction sets is complete, and emulated bfloat16 is several times slower."""
    a = torch.ones(512, 512, dtype=dtype)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return min(times)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise fail("device", name, 'must be "cpu", "cuda" or "cuda:N"') from None
    if device.type not in ("cpu", "cuda"):
        raise fail("device", name, 'must be "cpu", "cuda" or "cuda:N"')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise fail("device", name, f"torch finds {torch.cuda.device_count()} CUDA devices")
    return device
