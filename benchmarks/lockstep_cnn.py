"""Would runs of a convolutional model gain from lock-step? Four ways to take R runs' steps, and a roofline.

    python benchmarks/lockstep_cnn.py [--repetitions 5] [--runs 4 8] [--batches 32 128] [--docs DOCS]

The paper's MNIST CNN, one thread, the same batch for R models, local SGD of K steps. Ways, in turns in one process: the
loop engine (one model after the other); grouped convolutions; im2col and batched matrix products, channels last, the
first layer as one product for all runs; `torch.func` over runs (the vmap engine). Each is checked against the loop's
models. The roofline asks how fast a step could be at all: its floating-point operations at the fastest rate that any
library reaches here on this thread, and the bytes that it has to move at the speed of a copy. Results:
docs/results/benchmarks/lockstep-cnn.csv, lockstep-cnn-roofline.csv (`--again` computes the latter from the former).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import machine
from benchmarks.peers.environments import ROOT
from benchmarks.timing import interleaved
from fedstale import training
from fedstale.tasks import Task, models
from fedstale.tasks.task import ClientData
from fedstale.training.local import Batches

STEPS, RATE, BAR = 2, 0.05, 1.5
COPY = "copy, GB/s read and written"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Step = Callable[[list[Tensor], Tensor, Tensor], Tensor]
"""(the R models' parameters, x (B, 1, 28, 28), y (B,)) -> the sum of the R losses."""


def operations(batch: int) -> float:
    """Floating-point operations of one step: forward, weights' and inputs' gradients; the first layer has no latter."""
    first, second = 28 * 28 * 32 * 9, 14 * 14 * 64 * 32 * 9
    dense = 64 * 7 * 7 * 128 + 128 * 10
    return 2.0 * batch * (2 * first + 3 * second + 3 * dense)


def traffic(batch: int, itemsize: int) -> float:
    """Bytes that a step moves at least: both convolutions' outputs, written and read, and their gradients likewise."""
    return 4.0 * batch * (32 * 28 * 28 + 64 * 14 * 14) * itemsize


def grouped(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Runs as groups of channels."""
    w1, b1, w2, b2, *dense = weights
    runs, batch = len(w1), len(x)
    h = x.expand(batch, runs, 28, 28).contiguous(memory_format=torch.channels_last)
    for w, b in ((w1, b1), (w2, b2)):
        h = functional.conv2d(h, w.flatten(0, 1), b.flatten(), padding=1, groups=runs)
        h = functional.relu(functional.max_pool2d(h, 2))
    return _dense(h.reshape(batch, runs, 3136).transpose(0, 1), dense, y)


class _Columns(torch.autograd.Function):
    """3×3 patches of images (n, H, W, C), channels last: (n·H·W, 9·C). Its gradient adds them up again."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.shape = x.shape
        n, height, width, channels = x.shape
        padded = functional.pad(x, (0, 0, 1, 1, 1, 1))
        out = x.new_empty(n, height, width, 9, channels)
        for k in range(9):
            out[:, :, :, k] = padded[:, k // 3 : k // 3 + height, k % 3 : k % 3 + width]
        return out.view(n * height * width, 9 * channels)

    @staticmethod
    def backward(context: Any, slope: Tensor) -> Tensor:
        n, height, width, channels = context.shape
        slope = slope.view(n, height, width, 9, channels)
        padded = slope.new_zeros(n, height + 2, width + 2, channels)
        for k in range(9):
            padded[:, k // 3 : k // 3 + height, k % 3 : k % 3 + width] += slope[:, :, :, k]
        return padded[:, 1:-1, 1:-1]


def columns(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Patches and matrix products: one for all runs in the first layer, whose input they share, then a batch of R."""
    w1, b1, w2, b2, *dense = weights
    runs, batch = len(w1), len(x)
    patches: Tensor = _Columns.apply(x.movedim(1, -1))  # type: ignore[no-untyped-call]
    h = torch.addmm(b1.flatten(), patches, w1.permute(3, 4, 2, 0, 1).reshape(9, -1))
    h = h.view(batch, 28, 28, runs, 32).permute(3, 0, 1, 2, 4).reshape(runs * batch, 28, 28, 32)
    h = _pooled(h)
    patches = _Columns.apply(h).view(runs, batch * 196, 288)  # type: ignore[no-untyped-call]
    h = torch.baddbmm(b2.unsqueeze(1), patches, w2.permute(0, 3, 4, 2, 1).reshape(runs, 288, 64))
    h = _pooled(h.view(runs * batch, 14, 14, 64))
    return _dense(h.movedim(-1, 1).reshape(runs, batch, 3136), dense, y)


def _pooled(h: Tensor) -> Tensor:
    return functional.relu(functional.max_pool2d(h.movedim(-1, 1), 2)).movedim(1, -1)


def _dense(h: Tensor, weights: list[Tensor], y: Tensor) -> Tensor:
    w1, b1, w2, b2 = weights
    h = functional.relu(torch.baddbmm(b1.unsqueeze(1), h, w1.transpose(1, 2)))
    logits = torch.baddbmm(b2.unsqueeze(1), h, w2.transpose(1, 2)).float()
    return sum(functional.cross_entropy(own, y) for own in logits)  # type: ignore[return-value]


def descend(step: Step, starts: Tensor, engine: training.Engine, x: Tensor, y: Tensor, low: bool) -> Tensor:
    """K steps of SGD from R models, shape (R, d); the models after them."""
    flat = starts.clone()
    weights = [view.requires_grad_() for view in engine.setup.layout.views(flat)]
    for inputs, classes in zip(x, y, strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            loss = step(weights, inputs, classes)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                w -= RATE * g
    return flat


def compared(runs: int, batch: int, dtype: str, repetitions: int) -> list[dict[str, object]]:
    """Time the four ways; a row each."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(STEPS * batch, 1, 28, 28)).astype(np.float32))
    y = torch.from_numpy(rng.integers(10, size=STEPS * batch))
    data = ClientData(x, y, np.array([0, len(x)]))
    task = Task("random", data, data, models.mnist_cnn, functional.cross_entropy, 10, np.zeros(1, dtype=np.int64))
    local = training.LocalTraining(lr=RATE, steps=STEPS, batch_size=batch)
    engines = {kind: training.make(task, local, engine=kind, threads=1, precision=dtype) for kind in ("loop", "vmap")}
    loop = engines["loop"]
    starts = loop.initial + 0.01 * rng.normal(size=(runs, loop.num_params)).astype(np.float32)
    rows = Batches(np.broadcast_to(np.arange(len(x)).reshape(1, STEPS, batch), (runs, STEPS, batch)))
    models_, low = torch.from_numpy(starts), dtype == "bfloat16"
    parts = x.view(STEPS, batch, 1, 28, 28), y.view(STEPS, batch)
    calls: dict[str, Callable[[], Any]] = {
        "loop engine": lambda: starts - loop.train(starts, rows, RATE),
        "grouped convolutions": lambda: descend(grouped, models_, loop, *parts, low),
        "im2col, batched products": lambda: descend(columns, models_, loop, *parts, low),
        "torch.func over runs": lambda: starts - engines["vmap"].train(starts, rows, RATE),
    }
    expected = np.array(calls["loop engine"]())
    moved = np.linalg.norm(expected - starts)
    apart = {name: float(np.linalg.norm(np.asarray(call()) - expected) / moved) for name, call in calls.items()}
    seconds = {name: median(found) for name, found in interleaved(calls, repetitions).items()}
    rows_: list[dict[str, object]] = []
    for name, value in seconds.items():
        each = value / (runs * STEPS)
        row = {"precision": dtype, "batch": batch, "runs": runs, "way": name, "ms per run and step": 1e3 * each}
        row |= {"over the loop engine": seconds["loop engine"] / value, "GFLOP/s": operations(batch) / each / 1e9}
        rows_.append(row | {"distance from the loop's steps": apart[name]})
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows_[-1].values()), flush=True)
    return rows_


def rate_of(call: Callable[[], object], amount: float) -> float:
    """`amount` per second, the best of many calls."""
    call()
    best = float("inf")
    until = time.perf_counter() + 1.0
    while time.perf_counter() < until:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return amount / best


def constants() -> dict[str, float]:
    """The fastest rates on one thread: GFLOP/s of products in either precision, GB/s of a copy."""
    found = {}
    for name, dtype in DTYPES.items():
        a = torch.ones(1024, 1024, dtype=dtype)
        found[f"matrix product, {name}"] = rate_of(lambda a=a: a @ a, 2 * 1024**3 / 1e9)  # type: ignore[misc]
    image, kernel = torch.ones(16, 256, 32, 32).to_mkldnn(), torch.nn.Conv2d(256, 256, 3, padding=1)
    with torch.no_grad():
        flop = 2.0 * 16 * 32 * 32 * 256 * 256 * 9
        found["large convolution, float32"] = rate_of(lambda: kernel(image), flop / 1e9)
    x = torch.ones(64 << 20)
    y = torch.empty_like(x)
    found[COPY] = rate_of(lambda: y.copy_(x), 2 * x.nbytes / 1e9)
    return found


def roofline(rows: list[dict[str, object]], measured: dict[str, float]) -> list[dict[str, object]]:
    """What the loop engine reaches, what the bar would need, and the most that any library reaches here."""
    lines: list[dict[str, object]] = []
    for dtype in DTYPES:
        peak = max(value for name, value in measured.items() if name.endswith(dtype))
        for row in rows:
            if row["precision"] != dtype or row["way"] != "loop engine":
                continue
            batch, now = int(str(row["batch"])), float(str(row["ms per run and step"]))
            compute = operations(batch) / peak / 1e6
            move = traffic(batch, DTYPES[dtype].itemsize) / measured[COPY] / 1e6
            ceiling = now / (compute + move)
            lines.append(
                {"precision": dtype, "batch": batch, "runs": row["runs"], "loop engine, ms": now}
                | {"fastest rate seen, GFLOP/s": peak, "operations at that rate, ms": compute}
                | {"bytes at the speed of a copy, ms": move, "most that can be gained": ceiling}
                | {"bar can be had": "yes" if ceiling >= BAR else "no"}
            )
    return lines


def write_roofline(results: Path, rows: list[dict[str, Any]], measured: dict[str, float]) -> None:
    """Write and print it."""
    lines = roofline(rows, measured)
    for line in lines:
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()))
    machine.write(results / "lockstep-cnn-roofline.csv", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runs", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--again", action="store_true", help="compute the roofline from the last measurement")
    arguments = parser.parse_args()
    results = arguments.docs / "results" / "benchmarks"
    if arguments.again:
        facts = machine.read_about(results / "lockstep-cnn-about.csv")
        known = {name: float(facts[name]) for name in facts if name == COPY or name.endswith(tuple(DTYPES))}
        write_roofline(results, [dict(row) for row in machine.read(results / "lockstep-cnn.csv")], known)
        return
    torch.set_num_threads(1)
    training.keep_freed_memory()
    measured = constants()
    print("  ".join(f"{name} {value:.4g}" for name, value in measured.items()), flush=True)
    rows = []
    for dtype in DTYPES:
        for batch in arguments.batches:
            for runs in arguments.runs:
                rows += compared(runs, batch, dtype, arguments.repetitions)
    machine.write(results / "lockstep-cnn.csv", rows)
    write_roofline(results, rows, measured)
    facts = {name: f"{value:.1f}" for name, value in measured.items()}
    machine.write_about(results / "lockstep-cnn-about.csv", "python benchmarks/lockstep_cnn.py", **facts)


if __name__ == "__main__":
    main()
