"""One `combine` of FedStale on the paper's MNIST model: time against N, memory kind, a plain mean and memcpy.

    python benchmarks/server_step.py [--repetitions 15]

|S| = 12 of the same 24 clients take part in turn, d = 421,642 (float32). Bars: N = 100,000 costs at most 1.3×
N = 24, in RAM and on disk; in RAM at most 3× the time of moving the 3·|S|·d·4 bytes once at the memcpy rate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import fedstale as fs
from benchmarks.timing import interleaved, line

D, SEEN, TAKE = 421_642, 24, 12


class Server:
    """A FedStale server that is handed the updates of two halves of 24 clients in turn."""

    def __init__(self, num_clients: int, memory: str, beta: float | str) -> None:
        self.rule = fs.FedStale(beta=beta)
        self.state = self.rule.init(fs.Federation(num_clients, D, probabilities=0.5), memory=memory)
        spread = np.linspace(0, num_clients - 1, SEEN).astype(np.int64)
        self.halves = [spread[::2], spread[1::2]]
        rng = np.random.default_rng(0)
        self.updates = rng.standard_normal((2, TAKE, D), dtype=np.float32)
        self.round = 0
        start = time.perf_counter()
        for _ in range(4):  # every row and every spare row is touched once
            self()
        self.first_touch = (time.perf_counter() - start) / 4

    def __call__(self) -> None:
        """One round."""
        turn = self.round % 2
        self.rule.combine(self.state, fs.Round(self.round, self.halves[turn], self.updates[turn]))
        self.round += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repetitions", type=int, default=15)
    repetitions = parser.parse_args().repetitions
    source = np.ones(3 * TAKE * D, dtype=np.float32)
    target = np.zeros_like(source)
    updates = np.random.default_rng(1).standard_normal((TAKE, D), dtype=np.float32)
    weights = np.full(TAKE, 1 / TAKE, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        kinds = (
            ("ram", "ram", 0.5),
            ("ram", "ram", "auto"),
            ("ram bfloat16", "ram:bfloat16", 0.5),
            ("disk", "disk:{folder}/{n}", 0.5),
        )
        servers = {
            f"{kind}, beta={beta}, N={n:,}": Server(n, memory.format(folder=folder, n=n), beta)
            for kind, memory, beta in kinds
            for n in (24, 1_000, 100_000)
        }
        candidates: dict[str, Callable[[], object]] = {
            "memcpy of 3·|S|·d·4 bytes": lambda: np.copyto(target, source),
            "plain weighted mean (no memory)": lambda: np.einsum("i,ij->j", weights, updates),
            **servers,
        }
        seconds = interleaved(candidates, repetitions)
        unit = median(seconds["memcpy of 3·|S|·d·4 bytes"])
        print(f"one combine, |S| = {TAKE}, d = {D:,}, {SEEN} clients ever seen; ratios to the memcpy")
        for name, times in seconds.items():
            print(line(name, times, unit))
        print("first touch of rows (mean of the first 4 rounds):")
        for name in ("ram, beta=0.5, N=24", "disk, beta=0.5, N=24", "disk, beta=0.5, N=100,000"):
            print(f"  {name:<42} {servers[name].first_touch * 1e3:9.2f} ms")

        def ratio(kind: str) -> float:
            return median(seconds[f"{kind}, N=100,000"]) / median(seconds[f"{kind}, N=24"])

        bars = {
            "ram: N=100,000 against N=24 (bar 1.3)": (ratio("ram, beta=0.5"), 1.3),
            "disk: N=100,000 against N=24 (bar 1.3)": (ratio("disk, beta=0.5"), 1.3),
            "ram, beta=0.5 against memcpy (bar 3)": (median(seconds["ram, beta=0.5, N=24"]) / unit, 3.0),
            "ram, beta=auto against memcpy (bar 3)": (median(seconds["ram, beta=auto, N=24"]) / unit, 3.0),
        }
        for name, (value, bar) in bars.items():
            print(f"{'held' if value <= bar else 'MISSED'}: {name}: {value:.2f}")
    return 0 if all(value <= bar for value, bar in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
