"""Which engine is faster for which model, and what `engine="auto"` takes: it must not time anything in a run.

    python benchmarks/engines.py [--quick] [--out FOLDER]

Dense models of 64 and 784 inputs, a small CNN and a model that is neither, for 1 to 24 participants of 24 clients; both
engines in turn, again and again, in one process, with K = 5 steps. Shown is seconds of the loop over seconds of vmap
(above 1: vmap is faster), and by how much the engine that "auto" takes is slower than the faster one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import machine
from benchmarks.timing import interleaved
from fedstale import training
from fedstale.tasks import Task, models
from fedstale.tasks.task import ClientData

CLIENTS = 24
SAMPLES = 128


class Residual(nn.Module):
    """Neither sequential nor dense."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):  # type: ignore[no-untyped-def]  # noqa: D102
        h = x.flatten(1)
        return self.outer(self.norm(h + functional.gelu(self.inner(h))))


MODELS: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "logistic 64": (8, lambda: models.logistic(64)),
    "mlp 64-32-10": (8, lambda: models.mlp(64)),
    "mlp 64-512-10": (8, lambda: models.mlp(64, 512)),
    "logistic 784": (28, lambda: models.logistic(784)),
    "mlp 784-32-10": (28, lambda: models.mlp(784)),
    "mlp 784-128-10": (28, lambda: models.mlp(784, 128)),
    "mlp 784-512-10": (28, lambda: models.mlp(784, 512)),
    "mlp 784-2048-10": (28, lambda: models.mlp(784, 2048)),
    "cnn 8×8": (8, models.digits_cnn),
    "cnn 28×28": (28, models.mnist_cnn),
    "residual 64": (8, Residual),
}


def task(side: int, model: Callable[[], nn.Module]) -> Task:
    """Random images: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    count = CLIENTS * SAMPLES
    x = torch.from_numpy(rng.normal(size=(count, 1, side, side)).astype(np.float32))
    data = ClientData(x, torch.from_numpy(rng.integers(10, size=count)), np.arange(CLIENTS + 1) * SAMPLES)
    return Task("random", data, data, model, functional.cross_entropy, 10, np.zeros(CLIENTS, dtype=np.int64))


def measure(name: str, batch: int, participants: int, repeats: int) -> dict[str, object]:
    """One row: both engines, and what "auto" takes."""
    made = task(*MODELS[name])
    local = training.LocalTraining(lr=0.01, steps=5, batch_size=batch)
    clients = np.arange(participants)
    training.keep_freed_memory()  # as `simulate` does
    engines = {kind: training.make(made, local, engine=kind) for kind in ("loop", "vmap")}

    def call(engine: training.Engine) -> Callable[[], object]:
        return lambda: engine.updates(engine.initial, clients, 0)

    calls = {kind: call(engine) for kind, engine in engines.items()}
    seconds = {kind: median(found) for kind, found in interleaved(calls, repeats).items()}
    taken = str(training.make(made, local, engine="auto").resolved_name)
    return {
        "model": name,
        "parameters": engines["loop"].num_params,
        "batch": batch,
        "participants": participants,
        "loop ms": 1e3 * seconds["loop"],
        "vmap ms": 1e3 * seconds["vmap"],
        "loop over vmap": seconds["loop"] / seconds["vmap"],
        "auto takes": taken,
        "auto over best": seconds[taken] / min(seconds.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, one batch size")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs/results/benchmarks")
    arguments = parser.parse_args()
    rows = []
    for name in MODELS:
        for batch in (32,) if arguments.quick else (32, 128):
            for participants in (1, 4, 24):
                rows.append(measure(name, batch, participants, 3 if arguments.quick else 9))
                print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()))
    machine.write(arguments.out / "engines.csv", rows)
    command = "python benchmarks/engines.py" + (" --quick" if arguments.quick else "")
    machine.write_about(arguments.out / "engines-about.csv", command)


if __name__ == "__main__":
    main()
