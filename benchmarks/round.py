"""How fast a round of local training is, against a plain PyTorch loop and against the machine's matrix products.

    python benchmarks/round.py [--only cnn logistic digits] [--repeats 5] [--json FILE] [--synthetic]

All contestants of a case run in turn, again and again, in one process; medians are compared, so that a machine whose
speed wanders is unfair to nobody. Cases and targets:

cnn       mnist-cnn, 24 clients, K = 5, batch 128: float32 >= 1.4 times the plain loop and >= 55 % of the float32
          matrix-multiply rate; bfloat16 >= 2.2 times the (float32) plain loop
logistic  mnist-logistic, 1,000 clients (60 samples each), 10 a round, 100 rounds, K = 5, batch 10: >= 4 times
digits    digits-mlp, 24 clients, K = 5, batch 32: >= 5 times
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.plain_loop import PlainLoop
from benchmarks.timing import interleaved
from fedstale import tasks, training
from fedstale.randomness import generator
from fedstale.tasks import Task, catalogue

STEPS = 5
Contestants = dict[str, Callable[[], object]]
Line = dict[str, str | float | bool]


def medians(contestants: Contestants, repeats: int) -> dict[str, float]:
    """Return median seconds of every contestant."""
    return {name: statistics.median(seconds) for name, seconds in interleaved(contestants, repeats).items()}


def plain(task: Task, rounds: list[NDArray[np.int64]], lr: float, batch_size: int) -> Callable[[], None]:
    loop = PlainLoop(task, lr=lr, steps=STEPS, batch_size=batch_size)
    weights = [p.detach().clone() for p in loop.model.parameters()]

    def run() -> None:
        for clients in rounds:
            loop.updates(weights, clients.tolist())

    return run


def engine(
    task: Task, rounds: list[NDArray[np.int64]], lr: float, batch_size: int, **options: str
) -> tuple[training.Engine, Callable[[], None]]:
    local = training.LocalTraining(lr=lr, steps=STEPS, batch_size=batch_size)
    training.keep_freed_memory()  # as `simulate` does
    made = training.make(task, local, **options)  # type: ignore[arg-type]
    model = made.initial

    def run() -> None:
        for index, clients in enumerate(rounds):
            made.updates(model, clients, index)

    return made, run


def product(dtype: torch.dtype) -> Callable[[], None]:
    a = torch.randn(1024, 1024).to(dtype)

    def run() -> None:
        for _ in range(10):
            a @ a

    return run


PRODUCT_FLOPS = 10 * 2 * 1024**3


def step_flops(task: Task, batch_size: int) -> float:
    """Floating-point operations of one local step in matrix products and convolutions, counted by torch."""
    model, x, y = task.build(0), task.train.x[:batch_size], task.train.y[:batch_size]
    with FlopCounterMode(display=False) as counter:
        task.loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops())


def cnn(repeats: int, synthetic: bool) -> list[Line]:
    task = load("mnist-cnn", synthetic)
    rounds = [np.arange(24)]
    _, single = engine(task, rounds, 0.01, 128, engine="loop")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that bfloat16 is slow on some processors is what we are here to measure
        _, half = engine(task, rounds, 0.01, 128, engine="loop", precision="bfloat16")
    contestants: Contestants = {
        "plain": plain(task, rounds, 0.01, 128),
        "float32": single,
        "bfloat16": half,
        "product": product(torch.float32),
        "bfloat16 product": product(torch.bfloat16),
    }
    seconds = medians(contestants, repeats)
    rate = step_flops(task, 128) * 24 * STEPS / seconds["float32"]
    peak = PRODUCT_FLOPS / seconds["product"]
    slow = PRODUCT_FLOPS / seconds["bfloat16 product"]
    each = ", ".join(f"{name} {seconds[name]:.2f} s" for name in ("plain", "float32", "bfloat16"))
    print(f"cnn: {each} a round")
    print(f"cnn: {rate / 1e9:.0f} GFLOP/s of {peak / 1e9:.0f} in float32 products; bfloat16 products: {slow / 1e9:.0f}")
    return [
        line("cnn float32 / plain", seconds["plain"] / seconds["float32"], 1.4),
        line("cnn bfloat16 / plain", seconds["plain"] / seconds["bfloat16"], 2.2),
        line("cnn share of the float32 product rate", rate / peak, 0.55),
    ]


def logistic(repeats: int, synthetic: bool) -> list[Line]:
    task = load("mnist-logistic", synthetic, num_clients=1000, share=1.0)
    rounds = [generator(0, "benchmark", t).choice(1000, 10, replace=False) for t in range(100)]
    return small("logistic", task, rounds, 0.03, 10, 4.0, repeats)


def digits(repeats: int, synthetic: bool) -> list[Line]:
    task = tasks.make("digits-mlp", progress=False)
    return small("digits", task, [np.arange(24)] * 20, 0.1, task.batch_size, 5.0, repeats)


def small(
    name: str, task: Task, rounds: list[NDArray[np.int64]], lr: float, batch_size: int, target: float, repeats: int
) -> list[Line]:
    made, run = engine(task, rounds, lr, batch_size, engine="auto")
    seconds = medians({"plain": plain(task, rounds, lr, batch_size), "auto": run}, repeats)
    each = {kind: 1e3 * value / len(rounds) for kind, value in seconds.items()}
    print(f"{name}: plain {each['plain']:.2f} ms, {made.resolved_name} (chosen by auto) {each['auto']:.2f} ms a round")
    return [line(f"{name} auto / plain", seconds["plain"] / seconds["auto"], target)]


def line(what: str, value: float, target: float) -> Line:
    return {"what": what, "value": value, "target": target, "met": value >= target}


def load(name: str, synthetic: bool, **options: float) -> Task:
    """Load a MNIST task, or noise of the same shapes when MNIST cannot be fetched."""
    if not synthetic:
        return tasks.make(name, progress=False, **options)  # type: ignore[arg-type]
    clients = int(options.get("num_clients", 24))
    count = int(60_000 * options.get("share", 0.2)) // clients
    recipe = catalogue.TASKS[name]
    draw = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(count, 1, 28, 28, generator=draw), torch.randint(10, (count,), generator=draw))
        for _ in range(clients)
    ]
    return Task.from_datasets(recipe.model, torch.nn.functional.cross_entropy, pairs, pairs, num_classes=10)


CASES = {"cnn": cnn, "logistic": logistic, "digits": digits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases to run")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns of every contestant")
    parser.add_argument("--json", type=Path, help="write the lines to this file too")
    parser.add_argument("--synthetic", action="store_true", help="noise in MNIST's shapes instead of MNIST")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    lines = [entry for case in arguments.only for entry in CASES[case](arguments.repeats, arguments.synthetic)]
    for entry in lines:
        verdict = "met" if entry["met"] else "NOT met"
        print(f"{entry['what']:40s} {entry['value']:6.2f}   target {entry['target']:5.2f}   {verdict}")
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=2) + "\n")


if __name__ == "__main__":
    main()
