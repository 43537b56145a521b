"""One run on many workers: what actors cost against the loop engine, what goes over the wire, and what would limit.

    python benchmarks/scale.py [--repetitions 5] [--most-clients 10000000] [--docs DOCS]

Rounds of the paper's MNIST CNN (24 clients of 500 images, all in every round, K = 5, batch 128, FedStale with β = auto)
in turns: the loop engine with one and two threads, Ray with one and two actors, on the same machine in one process.
Then the constants that limits are computed from: the driver's seconds for a piece of work that is next to nothing, and
for a client's update that came back (the server's pass). Then the time of a round against N up to 10⁷, as in
benchmarks/million.py. Needs the extra `ray`; where the network is not to be asked, run it in a network namespace with
loopback only. Results: docs/results/benchmarks/scale*.csv and docs/scale.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import million, scale_page
from benchmarks.peers import machine
from benchmarks.peers.environments import ROOT
from benchmarks.timing import interleaved
from fedstale.simulation import build, make_settings

WAYS: dict[str, dict[str, Any]] = {
    "loop engine, 1 thread": {"engine": "loop", "threads": 1},
    "loop engine, 2 threads": {"engine": "loop", "threads": 2},
    "Ray, 1 actor": {"engine": "ray", "workers": 1},
    "Ray, 2 actors": {"engine": "ray", "workers": 2},
}
PAPER = {"task": "mnist-cnn", "rule": "fedstale", "beta": "auto", "p_min": 1.0, "rounds": 10**6, "lr": 0.05}
SMALL = {**PAPER, "task": "digits-mlp", "local_steps": 1, "batch_size": 1, "num_clients": 96}


def simulations(settings: dict[str, Any], ways: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One federation for each way."""
    usual = {"evaluate_every": 10**6, "objective": False}
    return {name: build(make_settings(**settings, **usual, **way), progress=False) for name, way in ways.items()}


def start_ray(actors: int) -> None:
    """Start Ray with room for so many actors at once, more than there are cores: they take turns."""
    import ray

    ray.init(num_cpus=actors, include_dashboard=False, log_to_driver=False, logging_level="error")


def efficiency(repetitions: int) -> list[dict[str, object]]:
    """Seconds of a round each way, and what it moves."""
    start_ray(3)
    made = simulations(PAPER, WAYS)
    calls: dict[str, Callable[[], object]] = {name: one.step for name, one in made.items()}
    seconds = interleaved(calls, repetitions)
    loop = {count: median(seconds[f"loop engine, {count} thread{'s' * (count > 1)}"]) for count in (1, 2)}
    ray = {count: median(seconds[f"Ray, {count} actor{'s' * (count > 1)}"]) for count in (1, 2)}
    rows: list[dict[str, object]] = []
    for name, found in seconds.items():
        count = 2 if "2" in name else 1
        low, _, high = quantiles(found, n=4)
        row = {"way": name, "seconds": median(found), "lower quartile": low, "upper quartile": high}
        row |= {"against the loop engine": loop[count] / median(found)}
        mine = ray if name.startswith("Ray") else loop
        row |= {"of twice the speed of one": mine[1] / median(found) / count}
        traffic = getattr(made[name].trainer.engine, "traffic", None)
        for part in ("model", "sent", "returned", "pieces"):
            row[part] = "" if traffic is None else getattr(traffic, part)
        rows.append(row)
    models = [np.asarray(one.model) for one in made.values()]
    same = all(np.array_equal(models[0], other) for other in models[1:])
    print("models of all four are equal to the bit:", same)
    return [{**row, "equal bits": str(same)} for row in rows]


def constants(repetitions: int) -> dict[str, float]:
    """The driver's seconds: of a piece, of an update that came back."""
    found = {}
    ways = {"one": {"engine": "ray", "workers": 1}}
    (tiny,) = simulations(SMALL, ways).values()
    pieces = []
    for clients in (1, 96):
        everybody = np.arange(clients)
        engine = tiny.trainer.engine
        engine._pieces = clients  # one client each
        engine.updates(tiny.model, everybody, 0)
        times = []
        for t in range(4 * repetitions):
            began = time.perf_counter()
            engine.updates(tiny.model, everybody, t)
            times.append(time.perf_counter() - began)
        pieces.append(median(times))
    found["seconds of an empty round"] = pieces[0]
    found["seconds of a further piece"] = (pieces[1] - pieces[0]) / 95
    (large,) = simulations(PAPER, {"loop": {"engine": "loop"}}).values()
    updates = np.random.default_rng(0).normal(size=(24, large.trainer.num_params)).astype(np.float32)
    large.trainer = _Given(large.trainer, updates)
    times = []
    for _ in range(4 * repetitions):
        began = time.perf_counter()
        large.step()
        times.append(time.perf_counter() - began)
    found["seconds of the server for an update of 421,642 parameters"] = median(times[2:]) / 24
    return found


class _Given:
    """A trainer whose updates are there already: what is left of a round is the server's part."""

    def __init__(self, trainer: Any, updates: Any) -> None:
        self._trainer, self._updates = trainer, updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def updates(self, *_: Any, **__: Any) -> Any:
        """The same for everybody, in every round."""
        return self._updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--most-clients", type=int, default=10_000_000)
    parser.add_argument("--only", choices=("efficiency", "constants", "clients", "page"), help="one part of it")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    results = arguments.docs / "results" / "benchmarks"
    command = "python benchmarks/scale.py"
    if arguments.only in (None, "efficiency"):
        rows = efficiency(arguments.repetitions)
        _show(rows)
        machine.write(results / "scale-actors.csv", rows)
        machine.write_about(results / "scale-actors-about.csv", command)
    if arguments.only in (None, "constants"):
        facts: list[dict[str, object]] = [
            {"what": name, "value": value} for name, value in constants(arguments.repetitions).items()
        ]
        _show(facts)
        machine.write(results / "scale-constants.csv", facts)
        machine.write_about(results / "scale-constants-about.csv", command)
    if arguments.only in (None, "clients"):
        sizes = [2 * million.PARTICIPANTS]
        while sizes[-1] * 10 <= arguments.most_clients:
            sizes.append(10 ** len(str(sizes[-1])))
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            seconds = million.flat(sizes, arguments.repetitions, Path(folder))
        counted: list[dict[str, object]] = [{"clients": n, "seconds": median(found)} for n, found in seconds.items()]
        for row in counted:
            row["own bytes"] = million.resident()["own_bytes"]
        _show(counted)
        machine.write(results / "scale-clients.csv", counted)
        machine.write_about(results / "scale-clients-about.csv", command)
    scale_page.render(arguments.docs)


def _show(rows: list[dict[str, object]]) -> None:
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
