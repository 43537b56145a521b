"""Local SGD, the clients' part of Algorithm 1: the engines (loop, vectorised), precision, device.

    engine = training.make(task, training.LocalTraining(lr=0.1, steps=5), seed=0)
    model = engine.initial
    updates = engine.updates(model, clients, round=0)    # Δ_i, shape (|S|, d)
    engine.evaluate(model).accuracy

`LocalTraining` and the batches need NumPy only; torch is loaded when an engine is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy
from .local import Batches, LocalTraining, draw

if TYPE_CHECKING:
    from .allocator import keep_freed_memory
    from .engine import Engine
    from .evaluation import Evaluation
    from .fastest import FastestEngine
    from .layout import flatten, unflatten
    from .loop import LoopEngine
    from .registry import make
    from .vmap import VmapEngine

__all__ = [
    "Batches",
    "Engine",
    "Evaluation",
    "FastestEngine",
    "LocalTraining",
    "LoopEngine",
    "VmapEngine",
    "draw",
    "flatten",
    "keep_freed_memory",
    "make",
    "unflatten",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Engine": "engine",
        "Evaluation": "evaluation",
        "FastestEngine": "fastest",
        "LoopEngine": "loop",
        "VmapEngine": "vmap",
        "flatten": "layout",
        "keep_freed_memory": "allocator",
        "make": "registry",
        "unflatten": "layout",
    },
)
