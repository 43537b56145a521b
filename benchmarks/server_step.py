"""One `combine` of FedStale (β = auto) and of the default rule: compiled loops beside NumPy and a memcpy.

    python benchmarks/server_step.py [--repetitions 15] [--no-avx2] [--out FOLDER]

|S| = 12 of the same 24 clients take part in turn, d = 421,642 (float32, the paper's MNIST model), rows in float32,
bfloat16 and float16, and on disk; N = 24 and N = 100,000; first touch of memory beside the steady state. All take
turns. Then all of it again in a process in which NumPy, OpenBLAS and numba are told to use AVX2 at most, as on a
processor that has nothing newer (its caches and its memory cannot be imitated). Bars: with compiled loops at most 1.5
times a memcpy of 3·|S|·d·4 bytes (2.5 with rows of two bytes), first touch at most twice the steady state, N = 100,000
at most 1.1 times N = 24. Needs the extra `fast`; OMP_NUM_THREADS=1 gives compiled loops one thread. Results:
server-step.csv in docs/results/benchmarks, and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from types import ModuleType

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import fedstale as fs
from benchmarks.peers import large, machine, page
from benchmarks.peers.environments import ROOT
from benchmarks.timing import interleaved, line
from fedstale.memory import kernel
from fedstale.memory.compiled import processors
from fedstale.spreadsheet import write_table
from fedstale.training import keep_freed_memory

D, SEEN, TAKE = 421_642, 24, 12
TOUCHES = 4
"""Rounds after which every row and every spare row was touched once."""
SERVERS = 3
"""Servers whose first rounds are timed."""
COPY, MEAN = "memcpy of 3·|S|·d·4 bytes", "plain weighted mean, no memory"
FRESH = "a memset of as much memory, never touched before"
MEMORIES = {
    "float32": "ram",
    "bfloat16": "ram:bfloat16",
    "float16": "ram:float16",
    "float32 on disk": "disk:{folder}/{rule}-{loops}-{clients}",
}
RULES: dict[str, fs.Rule] = {"fedstale": fs.FedStale(beta="auto"), "tempered": fs.TemperedFedStale()}
AVX2 = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "haswell",
}
"""The environment in which libraries use no instructions beyond AVX2."""
IMITATED = "AVX2, imitated"
LOOPS: dict[str, Callable[[], ModuleType | None]] = {"numba": kernel._compiled, "NumPy": lambda: None}
UPDATES = np.random.default_rng(0).standard_normal((2, TAKE, D), dtype=np.float32)


class Server:
    """A server that is handed the updates of two halves of 24 clients in turn."""

    def __init__(self, rule: str, num_clients: int, memory: str, loops: str) -> None:
        self.rule, self.loops = RULES[rule], loops
        self.state = self.rule.init(fs.Federation(num_clients, D, probabilities=0.5), memory=memory)
        spread = np.linspace(0, num_clients - 1, SEEN).astype(np.int64)
        self.halves = [spread[::2], spread[1::2]]
        self.round = 0

    def __call__(self) -> None:
        """One round."""
        kernel._compiled = LOOPS[self.loops]  # type: ignore[assignment]
        turn = self.round % 2
        self.rule.combine(self.state, fs.Round(self.round, self.halves[turn], UPDATES[turn]))
        self.round += 1


class FreshMemory:
    """Fills as much memory that was never touched as a new server's first rounds take each: what the system asks.

    It is the rows of everybody and as many spare ones as take part, in float32, and two vectors in float64.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.kept: list[object] = []

    def __call__(self) -> None:
        """A share of the memory of one server."""
        if len(self.kept) == SERVERS:
            return
        start = time.perf_counter()
        self.kept.append(np.full(((SEEN + TAKE) * D * 4 + 2 * D * 8) // TOUCHES, 1, dtype=np.uint8))
        self.seconds.append(time.perf_counter() - start)


class FirstTouches:
    """Makes a new server every time, a few times, and notes the seconds of its first rounds alone.

    Servers are kept: malloc would give the memory of one to the next, which would not be touched for the first time.
    """

    def __init__(self, rule: str, memory: str, loops: str) -> None:
        self.rule, self.memory, self.loops = rule, memory, loops
        self.seconds: list[float] = []
        self.kept: list[Server] = []

    def __call__(self) -> None:
        """The first rounds of a server."""
        if len(self.kept) == SERVERS:
            return
        server = Server(self.rule, SEEN, self.memory, self.loops)
        start = time.perf_counter()
        for _ in range(TOUCHES):
            server()
        self.seconds.append((time.perf_counter() - start) / TOUCHES)
        self.kept.append(server)


def measure(repetitions: int, folder: str) -> list[dict[str, object]]:
    """Time all contenders in turns; one row each."""
    keep_freed_memory()  # as `simulate` does
    source = np.ones(3 * TAKE * D, dtype=np.float32)
    target = np.zeros_like(source)
    weights = np.full(TAKE, 1 / TAKE, dtype=np.float32)
    points = [
        (rule, memory, loops, n) for rule in RULES for memory in MEMORIES for loops in LOOPS for n in (SEEN, 100_000)
    ]
    servers, touches = {}, {}
    for rule, memory, loops, n in points:
        name = f"{rule}, {memory}, {loops}, N = {n:,}"
        where = MEMORIES[memory].format(folder=folder, rule=rule, loops=loops, clients=n)
        servers[name] = Server(rule, n, where, loops)
        for _ in range(TOUCHES):
            servers[name]()
        if n == SEEN and memory != "float32 on disk":
            touches[name] = FirstTouches(rule, MEMORIES[memory], loops)
    candidates: dict[str, Callable[[], object]] = {
        COPY: lambda: np.copyto(target, source),
        MEAN: lambda: np.einsum("i,ij->j", weights, UPDATES[0]),
        **servers,
        **{f"first {name}": touch for name, touch in touches.items()},
        FRESH: (fresh := FreshMemory()),
    }
    seconds = interleaved(candidates, repetitions)
    unit = median(seconds[COPY])
    rows: list[dict[str, object]] = []
    others = [("", COPY, "", 0), ("", MEAN, "", 0)]
    for name, (rule, memory, loops, n) in zip([COPY, MEAN, *servers], [*others, *points], strict=True):
        print(line(name, seconds[name], unit))
        low, middle, high = (1e3 * value for value in quantiles(seconds[name], n=4))
        row: dict[str, object] = {"rule": rule, "memory": memory, "loops": loops, "clients": n}
        row |= {"ms": middle, "low ms": low, "high ms": high, "over memcpy": median(seconds[name]) / unit}
        rows.append(row | {"first touch ms": 1e3 * median(touches[name].seconds) if name in touches else ""})
    asked = 1e3 * median(fresh.seconds)
    print(f"{FRESH}: {asked:.2f} ms")
    none = dict.fromkeys(("ms", "low ms", "high ms", "over memcpy"), "")
    return [*rows, {"rule": "", "memory": FRESH, "loops": "", "clients": 0, **none, "first touch ms": asked}]


def imitated(repetitions: int) -> list[dict[str, object]]:
    """Measure in a process without instructions beyond AVX2."""
    command = [sys.executable, __file__, "--repetitions", str(repetitions), "--child"]
    done = subprocess.run(command, env=os.environ | AVX2, check=True, stdout=subprocess.PIPE, text=True)
    *told, rows = done.stdout.splitlines()
    print("\n".join(["", IMITATED, *told]))
    found: list[dict[str, object]] = json.loads(rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--no-avx2", action="store_true", help="leave the second half out")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/benchmarks")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(arguments.repetitions, folder)
    if arguments.child:
        print(json.dumps(measured))
        return
    halves = {large.THIS: measured}
    if not arguments.no_avx2:
        halves[IMITATED] = imitated(arguments.repetitions)
    rows = [{"processor": processor, **row} for processor, half in halves.items() for row in half]
    for what, seen, bar, verdict in large.verdicts(large.pass_bars(rows)):
        print(f"{verdict.strip('*')}: {what}: {seen} (bar {bar})")
    cells = [[f"{value:.6g}" if isinstance(value, float) else value for value in row.values()] for row in rows]
    write_table(arguments.out / "server-step.csv", rows[0], cells)
    threads = {"threads": str(processors())}
    machine.write_about(arguments.out / "server-step-about.csv", "python benchmarks/server_step.py", **threads)
    if arguments.out.resolve() == ROOT / "docs/results/benchmarks":
        page.render(ROOT / "docs")


if __name__ == "__main__":
    main()
