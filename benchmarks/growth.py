"""How the server's part of a round grows: with N, with the participants |S|, with d; and sweeps with batch and workers.

    python benchmarks/growth.py [--quick] [--docs DOCS]

The first three curves run the public `Simulation` with FedStale (β = auto) and each kind of memory: rows in RAM, on
disk, in bfloat16, clustered and low-rank. Local training is an array that is handed out, so that what is timed is all
the rest: who comes, p, combine, server step, metrics; on one core. The other two run digits-mlp: runs in one
lock-step batch, and worker processes of a sweep. The points of a curve take turns; medians. Results:
docs/results/benchmarks/growth.csv, docs/images/growth-*.png, docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads wait in loops, which a busy core turns into seconds
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import fedstale as fs
from benchmarks.peers import machine, page
from benchmarks.timing import interleaved
from fedstale import sweeps
from fedstale.federation import Ints
from fedstale.participation import Bernoulli, KnownProbabilities, Participation, UniformSample
from fedstale.simulation import EvaluationMetrics, Settings, Simulation, make_settings
from fedstale.store import Store

MEMORIES = {
    "RAM": "ram",
    "disk": "disk:{folder}",
    "bfloat16": "ram:bfloat16",
    "clustered": "clustered:16",
    "low-rank": "lowrank:8",
}
AXES = {
    "clients": "clients N",
    "participants": "participants |S|",
    "parameters": "parameters d",
    "lockstep": "runs in the batch",
    "workers": "worker processes",
}
TIMES = {"lockstep": "time of a round [ms]", "workers": "time per run and round [ms]"}
"""What the curves of the sweeps show; all others are rounds."""
WARM = 3


@dataclass
class HandedOut:
    """Local training that costs nothing: the same updates in every round."""

    array: NDArray[np.float32]

    @property
    def num_params(self) -> int:
        """D."""
        return int(self.array.shape[1])

    def initial(self) -> NDArray[np.float32]:
        """Zeros."""
        return np.zeros(self.num_params, dtype=np.float32)

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Any = None) -> NDArray[np.float32]:
        """What there is."""
        return self.array[: len(clients)]

    def steps_and_lr(self, clients: Ints, round: int) -> tuple[NDArray[np.float64], float]:
        """One step."""
        return np.ones(len(clients)), 1.0

    def evaluate(self, model: NDArray[Any]) -> EvaluationMetrics:
        """Nothing."""
        return EvaluationMetrics({})


def server(clients: int, participants: int, parameters: int, memory: str) -> Simulation:
    """A federation whose server is what is timed."""
    rng = np.random.default_rng(0)
    return Simulation(
        trainer=HandedOut(rng.standard_normal((participants, parameters), dtype=np.float32)),
        rule=fs.FedStale(beta="auto"),
        participation=Participation(Bernoulli(np.ones(clients)), UniformSample(participants)),
        estimator=KnownProbabilities(min(1.0, participants / clients)),
        federation=fs.Federation(clients, parameters),
        rounds=10**9,
        memory=memory,
        evaluate_every=10**9,
    )


def servers(
    curve: str,
    title: str,
    points: dict[int, tuple[int, int, int]],
    repetitions: int,
    memories: Sequence[str] = tuple(MEMORIES),
) -> list[dict[str, object]]:
    """One curve of server rounds: points of (N, |S|, d), for every kind of memory."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        for name in memories:
            memory = MEMORIES[name]
            made = {
                value: server(*point, memory.format(folder=f"{folder}/{curve}-{value}"))
                for value, point in points.items()
            }
            calls: dict[str, Callable[[], object]] = {str(value): one.step for value, one in made.items()}
            for call in calls.values():
                for _ in range(WARM):
                    call()
            seconds = interleaved(calls, repetitions)
            for value, one in made.items():
                size = float(one.state.nbytes)
                time_of = median(seconds[str(value)])
                rows.append(_row(curve, title, name, value, time_of, size))
                print(
                    f"{curve:<14} {name:<10} {value:>9,} {1e3 * time_of:10.2f} ms {size / 2**20:10.1f} MiB", flush=True
                )
                one.state.close()
    return rows


def touches(count: int = 8, size: int = 4 << 20) -> tuple[float, float]:
    """Seconds of writing memory for the first time and again: what the rows of 100 newcomers of d = 10,000 cost."""
    first: list[float] = []
    again: list[float] = []
    kept: list[NDArray[np.uint8]] = []
    for _ in range(count):
        kept.append(np.empty(size, dtype=np.uint8))
        for seconds in (first, again):
            began = time.perf_counter()
            kept[-1][:] = 1
            seconds.append(time.perf_counter() - began)
    return median(first), median(again)


def _row(curve: str, title: str, series: str, value: float, seconds: float, size: float) -> dict[str, object]:
    return {"curve": curve, "title": title, "series": series, "value": value, "seconds": seconds, "bytes": size}


def some_runs(count: int, rounds: int) -> list[Settings]:
    """Runs of the heat map that can go in lock-step."""
    betas = [0.0, 0.25, 0.5, 0.75, 1.0, "auto", 0.1, 0.9]
    swaps = [0.0, 0.2, 0.4, 0.6]
    all_of_them = [(beta, swap, seed) for seed in range(8) for swap in swaps for beta in betas]
    return [
        make_settings(beta=beta, swap=swap, seed=seed, p_min=0.1, lr=0.1, rounds=rounds, evaluate_every=rounds)
        for beta, swap, seed in all_of_them[:count]
    ]


def batches(sizes: list[int], rounds: int, repetitions: int) -> list[dict[str, object]]:
    """Seconds a round of one lock-step batch on one core, and of one of its runs, against the number of runs."""
    title = "Runs in a lock-step batch (digits-mlp, p_min = 0.1, one core): seconds a round"
    calls: dict[str, Callable[[], object]] = {}
    for size in sizes:
        configs = [one.record() for one in some_runs(size, rounds)]
        calls[str(size)] = lambda configs=configs: sweeps.run_batch(configs, True)  # type: ignore[misc]
    seconds = interleaved(calls, repetitions)
    rows = []
    for size in sizes:
        whole = median(seconds[str(size)]) / rounds
        rows.append(_row("lockstep", title, "the whole batch", size, whole, 0.0))
        rows.append(_row("lockstep", title, "per run", size, whole / size, 0.0))
        print(f"lockstep {size:>4} runs {1e3 * whole:8.2f} ms a round", flush=True)
    return sorted(rows, key=lambda row: str(row["series"]))


def workers(counts: list[int], runs: int, rounds: int, repetitions: int) -> list[dict[str, object]]:
    """Seconds of a sweep per run and round against worker processes, in lock-step and one run at a time."""
    title = "Worker processes of a sweep (digits-mlp): seconds per run and round, start of the processes included"
    chosen = {
        "lock-step": some_runs(runs, rounds),
        # A run that records its training loss cannot be part of a batch.
        "one by one": [one.replace(train_loss=True) for one in some_runs(max(1, runs // 16), rounds)],
    }
    rows = []
    for name, own in chosen.items():
        took: dict[int, list[float]] = {count: [] for count in counts}
        for _ in range(repetitions):
            for count in counts:
                with tempfile.TemporaryDirectory(prefix="growth-") as folder, Store.open(Path(folder)) as store:
                    began = time.perf_counter()
                    sweeps.sweep(own, store, name="growth", executor=sweeps.processes(count))
                    took[count].append(time.perf_counter() - began)
        for count in counts:
            each = median(took[count]) / len(own) / rounds
            rows.append(_row("workers", title, name, count, each, 0.0))
            print(f"workers  {name} {count}: {1e6 * each:8.1f} µs per run and round", flush=True)
    return rows


def draw(rows: list[dict[str, object]], images: Path) -> None:
    """One picture a curve: log-log, every line with its name beside it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    from fedstale.analysis import COLOURS as palette
    from fedstale.figures import pyplot

    plt = pyplot()
    for curve in dict.fromkeys(str(row["curve"]) for row in rows):
        own = [row for row in rows if row["curve"] == curve]
        panels = ["seconds"] + ["bytes"] * any(float(str(row["bytes"])) for row in own)
        figure, axes = plt.subplots(
            1, len(panels), figsize=(4.9 * len(panels), 3.4), layout="constrained", squeeze=False
        )
        for axis, what in zip(axes[0], panels, strict=True):
            ends = []
            for place, series in enumerate(dict.fromkeys(str(row["series"]) for row in own)):
                line = [(float(str(r["value"])), float(str(r[what]))) for r in own if r["series"] == series]
                x, y = zip(*sorted(line), strict=True)
                scale = 2.0**20 if what == "bytes" else 1e-3
                y = tuple(value / scale for value in y)
                axis.plot(x, y, marker="o", markersize=3, linewidth=1.5, color=palette[place % len(palette)])
                ends.append((y[-1], x[-1], series, palette[place % len(palette)]))
            axis.set(xscale="log", yscale="log", xlabel=AXES[curve])
            axis.set_ylabel("memory of the rule [MiB]" if what == "bytes" else TIMES.get(curve, "time of a round [ms]"))
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
            axis.yaxis.set_minor_locator(NullLocator())
            if curve in TIMES:  # a few small counts: every one of them is a tick
                axis.set_xticks(sorted({float(str(row["value"])) for row in own}))
                axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
                axis.xaxis.set_minor_locator(NullLocator())
            _roomy(axis)
            _name(axis, ends)
        images.mkdir(parents=True, exist_ok=True)
        figure.savefig(images / f"growth-{curve}.png", bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)


def _roomy(axis: Any) -> None:
    """Let the time or memory axis span a decade at least, so that it has numbers to read and noise looks small."""
    low, high = axis.get_ylim()
    if high < 10 * low:
        middle = (low * high) ** 0.5
        axis.set_ylim(middle / 10**0.5, middle * 10**0.5)


def _name(axis: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Write each line's name at its end, far enough from the others'."""
    low, high = (np.log10(limit) for limit in axis.get_ylim())
    gap, last = (high - low) * 0.06, -np.inf
    for y, x, series, colour in sorted(ends):
        place = max(np.log10(y), last + gap)
        last = place
        axis.annotate(
            series,
            (x, 10**place),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=8,
            annotation_clip=False,
        )


def measure(quick: bool, curves: Sequence[str], memories: Sequence[str]) -> list[dict[str, object]]:
    """Some curves; those of the server for some kinds of memory."""
    turns, few = (3, 10) if quick else (9, 100)
    exponents = (2, 3) if quick else (2, 3, 4, 5, 6)
    counts = (10, 30) if quick else (10, 30, 100, 300, 1000)
    lengths = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    of_servers = {
        "clients": (
            f"Clients N ({few} participants a round, d = 10,000)",
            {10**k: (10**k, few, 10_000) for k in exponents},
        ),
        "participants": (
            "Participants a round |S| (N = 10,000, d = 10,000)",
            {count: (10_000, count, 10_000) for count in counts},
        ),
        "parameters": (
            "Parameters d (N = 1,000, 20 participants a round)",
            {length: (1_000, 20, length) for length in lengths},
        ),
    }
    rows: list[dict[str, object]] = []
    for curve, (title, points) in of_servers.items():
        if curve in curves:
            rows += servers(curve, title, points, turns, memories)
    if "lockstep" in curves:
        rows += batches([1, 2] if quick else [1, 2, 4, 8, 16, 32], 5 if quick else 50, 1 if quick else 5)
    if "workers" in curves:
        rows += workers([1, 2], 32 if quick else 256, 5 if quick else 200, 1 if quick else 2)
    return rows


def merged(before: list[dict[str, str]], rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """New rows in place of those of the same curves and series; the others stay."""
    new = {(str(row["curve"]), str(row["series"]), float(str(row["value"]))): row for row in rows}
    kept: list[dict[str, object]] = []
    for row in before:
        place = (row["curve"], row["series"], float(row["value"]))
        kept.append(new.pop(place, dict(row)))
    return [*kept, *new.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, for trials")
    parser.add_argument("--docs", type=Path, default=Path(__file__).resolve().parents[1] / "docs")
    parser.add_argument("--only", nargs="+", choices=AXES, default=list(AXES), help="measure these curves again")
    parser.add_argument("--memory", nargs="+", choices=MEMORIES, default=list(MEMORIES), help="for these memories")
    arguments = parser.parse_args()
    results = arguments.docs / "results" / "benchmarks"
    rows = measure(arguments.quick, arguments.only, arguments.memory)
    if len(arguments.only) < len(AXES) or len(arguments.memory) < len(MEMORIES):
        rows = merged(machine.read(results / "growth.csv"), rows)
    machine.write(results / "growth.csv", rows)
    first, again = touches()
    facts = {"first touch of 4 MB": f"{first:.3g}", "second touch of 4 MB": f"{again:.3g}"}
    machine.write_about(results / "growth-about.csv", "python benchmarks/growth.py", **facts)
    draw(rows, arguments.docs / "images")
    page.render(arguments.docs)


if __name__ == "__main__":
    main()
