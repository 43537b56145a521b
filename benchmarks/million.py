"""A million clients on one machine, for real: d = 10,000, N = 1,000,000, 1,000 participants a round, 200 rounds.

    python benchmarks/million.py [--kill] [--rounds 200] [--clients 1000000] [--folder FOLDER]

Local training is logistic regression (1,000 features, 10 classes) on ten samples per client that are generated from
(seed, client), so that a million clients need no data set; the clients are of two kinds. The server is the public
`Simulation` with FedStale (β = auto) and its memory in a sparse file, in bfloat16. With --kill the run is killed
(kill -9) in the middle, resumed from its checkpoint, and its final model and memory must have the bits of the run
that was not. Then the time of a round against N: four federations take turns in one process.

The folder (default: a temporary one) needs 4 GB and is emptied at the end. Results: docs/results/benchmarks/million.csv
and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import fedstale as fs
from benchmarks.peers import machine, page
from fedstale.federation import Ints
from fedstale.participation import Bernoulli, KnownProbabilities, Participation, UniformSample
from fedstale.randomness import generator
from fedstale.simulation import Callback, EvaluationMetrics, Record, Simulation
from fedstale.state import State

Floats = NDArray[np.float32]
FEATURES, CLASSES, SAMPLES, STEPS, RATE = 1_000, 10, 10, 5, 0.05
PARTICIPANTS = 1_000
FILE = "million.csv"


@dataclass
class Generated:
    """Logistic regression on data that are a function of (seed, client); see `fedstale.simulation.Trainer`."""

    seed: int = 0
    block: int = 50
    """Clients that are trained at once: their inputs stay in the cache."""
    teachers: Floats = field(init=False)
    test: tuple[Floats, Ints] = field(init=False)

    def __post_init__(self) -> None:
        rng = generator(self.seed, "teachers")
        shared = rng.standard_normal((FEATURES, CLASSES), dtype=np.float32)
        other = rng.standard_normal((2, FEATURES, CLASSES), dtype=np.float32)
        self.teachers = shared + 0.5 * other
        x = rng.standard_normal((4000, FEATURES), dtype=np.float32)
        labels = np.concatenate([(x[k::2] @ self.teachers[k]).argmax(1) for k in (0, 1)])
        self.test = np.concatenate([x[0::2], x[1::2]]), labels.astype(np.int64)

    @property
    def num_params(self) -> int:
        """D."""
        return FEATURES * CLASSES

    def initial(self) -> Floats:
        """Zeros."""
        return np.zeros(self.num_params, dtype=np.float32)

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Any = None) -> Floats:
        """K full-batch steps on every client."""
        out = np.empty((len(clients), FEATURES, CLASSES), dtype=np.float32)
        start = np.asarray(model, dtype=np.float32).reshape(FEATURES, CLASSES)
        for first in range(0, len(clients), self.block):
            some = clients[first : first + self.block]
            x = np.empty((len(some), SAMPLES, FEATURES), dtype=np.float32)
            for own, client in zip(x, some.tolist(), strict=True):
                generator(self.seed, "samples", client).standard_normal(dtype=np.float32, out=own)
            logits = np.matmul(x, self.teachers[some % 2])
            wanted = np.eye(CLASSES, dtype=np.float32)[logits.argmax(2)]
            weights = np.repeat(start[None], len(some), axis=0)
            for _ in range(STEPS):
                scores = np.matmul(x, weights)
                scores -= scores.max(2, keepdims=True)
                np.exp(scores, out=scores)
                scores /= scores.sum(2, keepdims=True)
                scores -= wanted
                weights -= (RATE / SAMPLES) * np.matmul(x.transpose(0, 2, 1), scores)
            out[first : first + self.block] = start - weights
        return out.reshape(len(clients), -1)

    def steps_and_lr(self, clients: Ints, round: int) -> tuple[NDArray[np.float64], float]:
        """K and η_c."""
        return np.full(len(clients), float(STEPS)), RATE

    def evaluate(self, model: NDArray[Any]) -> EvaluationMetrics:
        """Accuracy on samples of both kinds of clients."""
        x, y = self.test
        found = (x @ np.asarray(model, dtype=np.float32).reshape(FEATURES, CLASSES)).argmax(1)
        return EvaluationMetrics({"accuracy": float((found == y).mean())})


def simulation(clients: int, rounds: int, folder: Path, callbacks: list[Callback], resume: bool = False) -> Simulation:
    """Make the federation, or take it up where its checkpoint left it."""
    trainer = Generated()
    who = Participation(Bernoulli(np.ones(clients)), UniformSample(PARTICIPANTS))
    return Simulation(
        trainer=trainer,
        rule=fs.FedStale(beta="auto"),
        participation=who,
        estimator=KnownProbabilities(np.full(clients, min(1.0, PARTICIPANTS / clients))),
        federation=fs.Federation(clients, trainer.num_params),
        rounds=rounds,
        memory=f"disk:{folder / 'memory'}:bfloat16",
        evaluate_every=20,
        resume_from=State.load(folder / "checkpoint") if resume else None,
        callbacks=callbacks,
    )


@dataclass
class Report(Callback):
    """Save every `every` rounds, and say after each round what it cost."""

    folder: Path
    every: int
    rows: list[dict[str, float]] = field(default_factory=list)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Record, save, tell."""
        row = {"round": float(record.round), "seconds": record.metrics["seconds"], **resident()}
        row["accuracy"] = record.metrics.get("accuracy", float("nan"))
        row["checkpoint"] = 0.0
        if (record.round + 1) % self.every == 0:
            began = time.perf_counter()
            simulation.state.save(self.folder / "checkpoint")
            row["checkpoint"] = time.perf_counter() - began
        self.rows.append(row)
        print(json.dumps(row), flush=True)


def resident() -> dict[str, float]:
    """Bytes of this process in memory: its own, and pages of mapped files, which the system may drop at any time."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: float(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return {"own_bytes": found["RssAnon"], "file_bytes": found["RssFile"]}


def digest(state: State) -> str:
    """A hash of the model, of who has a row, and of the running sum of all rows."""
    memory, model = state.memory, state.model
    assert model is not None
    parts = (np.asarray(model), memory.slots >= 0, memory.masses, memory.total, state.last_seen)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def run_here(arguments: argparse.Namespace) -> None:
    """The part of a child process: run or resume, and print the hash."""
    began = time.perf_counter()
    report = Report(arguments.folder, arguments.checkpoint_every)
    made = simulation(arguments.clients, arguments.rounds, arguments.folder, [report], arguments.resume)
    print(json.dumps({"loaded": time.perf_counter() - began, "from": made.state.round}), flush=True)
    made.run()
    file = arguments.folder / "memory" / "stale.rows"
    size = {"disk_bytes": float(file.stat().st_blocks * 512), "seen": float(len(made.state.memory.seen))}
    print(json.dumps({"hash": digest(made.state), **size, "length": float(file.stat().st_size)}), flush=True)
    made.state.close()


def child(arguments: argparse.Namespace, folder: Path, resume: bool, kill_after: int | None) -> list[dict[str, Any]]:
    """Run in a process of its own; kill -9 it after a round, when asked."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "--folder", str(folder)]
    command += ["--rounds", str(arguments.rounds), "--clients", str(arguments.clients)]
    command += ["--checkpoint-every", str(arguments.checkpoint_every)] + ["--resume"] * resume
    told: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            told.append(json.loads(text))
            if kill_after is not None and told[-1].get("round") == kill_after:
                os.kill(process.pid, signal.SIGKILL)
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the run ended with code {process.returncode}")
    return told


def flat(sizes: list[int], repetitions: int, folder: Path) -> dict[int, list[float]]:
    """Seconds of a round for several N with the same number of participants; the federations take turns."""
    made = {n: simulation(n, 10**6, folder / str(n), []) for n in sizes}
    seconds: dict[int, list[float]] = {n: [] for n in sizes}
    for one in made.values():
        for _ in range(2):  # first touches
            one.step()
    for _ in range(repetitions):
        for n, one in made.items():
            began = time.perf_counter()
            one.step()
            seconds[n].append(time.perf_counter() - began)
    for one in made.values():
        one.state.close()
    return seconds


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """The run, the run that is killed and resumed, and the curve; rows for the CSV."""
    began = time.perf_counter()
    whole = child(arguments, folder / "whole", False, None)
    wall = time.perf_counter() - began
    rounds = [row for row in whole if "round" in row]
    end = whole[-1]
    shutil.rmtree(folder / "whole")
    facts: dict[str, float] = {
        "clients": arguments.clients,
        "parameters": FEATURES * CLASSES,
        "participants": PARTICIPANTS,
        "rounds": len(rounds),
        "seconds a round": median(row["seconds"] for row in rounds),
        "seconds a round, last tenth": median(row["seconds"] for row in rounds[-max(1, len(rounds) // 10) :]),
        "seconds of a checkpoint": median([row["checkpoint"] for row in rounds if row["checkpoint"]] or [0.0]),
        "wall seconds": wall,
        "own bytes at most": max(row["own_bytes"] for row in rounds),
        "mapped bytes at most": max(row["file_bytes"] for row in rounds),
        "bytes on disk": end["disk_bytes"],
        "clients seen": end["seen"],
        "accuracy": [row["accuracy"] for row in rounds if row["accuracy"] == row["accuracy"]][-1],
    }
    if arguments.kill:
        middle = arguments.rounds * 11 // 20 + 1
        child(arguments, folder / "killed", False, middle)
        resumed = child(arguments, folder / "killed", True, None)
        shutil.rmtree(folder / "killed")
        facts["killed after round"] = middle + 1
        facts["resumed from round"] = resumed[0]["from"]
        facts["seconds to load"] = resumed[0]["loaded"]
        facts["same bits after kill -9 and resume"] = float(resumed[-1]["hash"] == end["hash"])
    rows: list[dict[str, object]] = [{"what": key, "value": float(value)} for key, value in facts.items()]
    sizes = sorted({max(2 * PARTICIPANTS, arguments.clients // 10**k) for k in range(3)} | {2 * PARTICIPANTS})
    for n, seconds in flat(sizes, arguments.repetitions, folder / "flat").items():
        rows.append({"what": f"N = {n}", "value": median(seconds)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=25)
    parser.add_argument("--repetitions", type=int, default=15, help="rounds of each N in the curve")
    parser.add_argument("--kill", action="store_true", help="kill -9 a second run in the middle, and resume it")
    parser.add_argument("--folder", type=Path, help="where the memory lies; default: a temporary folder")
    parser.add_argument("--docs", type=Path, default=Path(__file__).resolve().parents[1] / "docs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_here(arguments)
        return 0
    with tempfile.TemporaryDirectory(prefix="million-", dir=arguments.folder) as folder:
        rows = measure(arguments, Path(folder))
    for row in rows:
        print(f"{row['what']!s:40s} {row['value']:.6g}")
    results = arguments.docs / "results" / "benchmarks"
    machine.write(results / FILE, rows)
    machine.write_about(results / "million-about.csv", "python benchmarks/million.py" + " --kill" * arguments.kill)
    page.render(arguments.docs)
    values = {str(row["what"]): float(str(row["value"])) for row in rows}
    return int(values.get("same bits after kill -9 and resume", 1.0) != 1.0)


if __name__ == "__main__":
    sys.exit(main())
