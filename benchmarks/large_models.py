"""Large models on Flower: a round of our strategy beside Flower's FedAvg, in time, memory and bytes on disk.

    python benchmarks/large_models.py [--before SRC] [--out docs/results/benchmarks]
    python benchmarks/large_models.py --params 250000000 --clients 2 --only "FedStale, rows on disk, checkpoint"

25 million parameters, 10 clients that all answer in every round, in an in-process grid. Every contender is a process of
its own, so that its peak of memory is its own, and they take turns, round by round. The clients' work is not counted.
With --before the same is measured with another source tree of fedstale, in the same turns. Needs 10 GB of memory and of
disk. Bars: processor time at most 2 times FedAvg's, at most 3.5 GB (10 GB for 250 million parameters and 2 clients), at
most N + |S| + 2 rows on disk. With --out: large-models.csv there, rows of other sizes stay; and the page.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # what tells of results is imported where it is used: contenders have none of it
BASE, OURS, SAVED, DISK = "Flower's FedAvg", "FedStale", "FedStale, checkpoint", "FedStale, rows on disk, checkpoint"
DEFAULT = "TemperedFedStale"
BEFORE = " (before)"
ARRAYS = 25


class Watch(threading.Thread):
    """The most memory that this process had: all of it, and what is its own (not pages of files)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own = 0.0
        self.start()

    def run(self) -> None:
        """Look fifty times a second."""
        while True:
            self.own = max(self.own, _status("RssAnon"))
            time.sleep(0.02)


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def child(arguments: argparse.Namespace) -> None:
    """The part of one contender: a round for every line on the standard input."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity
    from tests.flower.grid import MemoryGrid, Node

    from fedstale import flower
    from fedstale.state import State

    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    watch, length = Watch(), arguments.params // ARRAYS
    saving = {"wall": 0.0, "cpu": 0.0}
    save = State.save

    def timed_save(state: State, folder: str | Path) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        save(state, folder)
        saving["wall"], saving["cpu"] = time.perf_counter() - wall, time.process_time() - cpu

    State.save = timed_save  # type: ignore[method-assign,assignment]

    def node(client: int) -> Node:
        def reply(message: Message) -> Message:
            arrays = {}
            sent: Any = message.content["arrays"]  # `array_records` makes a cycle that keeps the model for a while
            for name, array in sent.items():
                header = array.data[: len(array.data) - 4 * length]
                old = np.frombuffer(array.data, np.float32, offset=len(header))
                new: Any = old * np.float32(0.99) + np.float32(0.001 * client)
                data = b"".join((header, memoryview(new).cast("B")))
                arrays[name] = Array("float32", array.shape, "numpy.ndarray", data)
            metrics = MetricRecord({"num-examples": 10 + client, "client-id": client, "loss": 1.0})
            return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

        return reply

    class Grid(MemoryGrid):
        """Waits for its turn before a round, and tells what the last one cost the server."""

        since: tuple[float, float] | None = None

        def tell(self) -> None:
            if self.since is not None:
                wall, cpu = time.perf_counter() - self.since[0], time.process_time() - self.since[1]
                told = {"wall": wall - saving["wall"], "cpu": cpu - saving["cpu"]}
                told |= {"save wall": saving["wall"], "save cpu": saving["cpu"], "own": watch.own}
                print(json.dumps({**told, "peak": _status("VmHWM")}), flush=True)

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            messages = list(messages)
            if not messages:  # nobody is asked to evaluate
                return []
            self.tell()
            sys.stdin.readline()
            replies = super().send_and_receive(messages, timeout=timeout)
            self.sent.clear()
            self.since = time.perf_counter(), time.process_time()
            return replies

    grid = Grid({1000 + client: node(client) for client in range(arguments.clients)})
    options: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": arguments.clients}
    folder = Path(arguments.folder)
    if arguments.child != BASE:
        options |= {"memory": f"disk:{folder / 'rows'}" if arguments.child == DISK else "ram"}
        options |= {"checkpoint": folder / "checkpoint", "resume": "auto"} if "checkpoint" in arguments.child else {}
    kind: Any = {BASE: FedAvg, DEFAULT: flower.TemperedFedStale}.get(arguments.child, flower.FedStale)
    strategy = kind(**options)
    start = np.zeros(length, dtype=np.float32)
    first = ArrayRecord({f"layer{i}": Array(start) for i in range(ARRAYS)})
    if arguments.resume:
        wall, cpu = time.perf_counter(), time.process_time()
        strategy.prepare(first)
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)
    strategy.start(grid, first, num_rounds=arguments.rounds)
    grid.tell()


class Contender:
    """A process that does a round when told to."""

    def __init__(self, name: str, source: Path, arguments: argparse.Namespace, folder: Path, **more: Any) -> None:
        self.name, self.folder = name, folder
        settings = {"params": arguments.params, "clients": arguments.clients, "rounds": arguments.rounds} | more
        command = [sys.executable, str(Path(__file__).resolve()), "--child", name.removesuffix(BEFORE)]
        command += ["--folder", str(folder)] + [
            text for key, value in settings.items() for text in (f"--{key}", str(value))
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.rounds: list[dict[str, float]] = []

    def line(self) -> dict[str, float]:
        """Wait for what it tells next."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self.name} ended with code {self.process.wait()}")
        found: dict[str, float] = json.loads(text)
        return found

    def round(self) -> None:
        """One round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.rounds.append(self.line())

    def summary(self) -> dict[str, object]:
        """Medians of the rounds but the first two, which touch memory for the first time."""
        later = self.rounds[2:] or self.rounds
        facts: dict[str, object] = {"contender": self.name}
        facts |= {key: median(one[key] for one in later) for key in ("cpu", "wall", "save wall", "save cpu")}
        facts |= {"first cpu": self.rounds[0]["cpu"], "peak": later[-1]["peak"], "own": later[-1]["own"]}
        return facts | disk(self.folder)


def disk(folder: Path) -> dict[str, object]:
    """Bytes of a contender's files, as long as they say and as they take, and of the rows among them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    rows = [path.stat() for path in files if path.suffix == ".rows"]
    whole = float(sum(path.stat().st_blocks * 512 for path in files))
    return {
        "disk": whole,
        "row bytes": float(sum(s.st_size for s in rows)),
        "rows taken": float(sum(s.st_blocks * 512 for s in rows)),
    }


@contextmanager
def ended(contenders: list[Contender]) -> Iterator[None]:
    """End what was started."""
    try:
        yield
    finally:
        for one in contenders:
            one.process.kill()
            one.process.wait()


def take_turns(contenders: list[Contender], rounds: int) -> None:
    """Every contender once per round."""
    for _ in range(rounds):
        for one in contenders:
            one.round()


def measure(arguments: argparse.Namespace, names: list[str], folder: Path) -> list[dict[str, object]]:
    """Run the contenders in turns, then resume those that have a checkpoint, one after the other."""
    sources = {"": ROOT / "src"} | ({BEFORE: arguments.before} if arguments.before else {})
    pairs = [(name + mark, source) for name in names for mark, source in sources.items() if name != BASE or not mark]
    contenders = []
    for name, source in pairs:
        (place := folder / name.replace(" ", "-")).mkdir(parents=True)
        contenders.append(Contender(name, source, arguments, place))
    with ended(contenders):
        take_turns(contenders, arguments.rounds)
    found = [one.summary() for one in contenders]
    for row, one, (name, source) in zip(found, contenders, pairs, strict=True):
        row |= {
            "params": arguments.params,
            "clients": arguments.clients,
            "rounds": arguments.rounds,
            "resume wall": 0.0,
            "resume cpu": 0.0,
            "resume peak": 0.0,
        }
        if not (one.folder / "checkpoint").exists():
            continue
        again = Contender(name, source, arguments, one.folder, rounds=arguments.rounds + 1, resume=1)
        with ended([again]):
            loaded = again.line()
            again.round()
        row |= {"resume wall": loaded["wall"], "resume cpu": loaded["cpu"], "resume peak": again.rounds[0]["peak"]}
    return found


def keep(folder: Path, rows: list[dict[str, object]]) -> None:
    """Write the rows, beside those of other sizes that are there."""
    from benchmarks.peers import machine
    from fedstale.spreadsheet import write_table

    path = folder / "large-models.csv"
    size = {(str(row["params"]), str(row["clients"])) for row in rows}
    others = [row for row in machine.read(path) if (row["params"], row["clients"]) not in size]
    cells = [{key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    lines: list[Mapping[str, object]] = sorted([*others, *cells], key=lambda row: int(str(row["params"])))
    write_table(path, rows[0], ([row[key] for key in rows[0]] for row in lines))
    machine.write_about(folder / "large-models-about.csv", "python benchmarks/large_models.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=25_000_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", help="contenders, separated by semicolons")
    parser.add_argument("--before", type=Path, help="another src folder of fedstale, measured in the same turns")
    parser.add_argument("--folder", help="where files are written; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="folder for large-models.csv, such as docs/results/benchmarks")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--resume", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    names = [BASE, OURS, DEFAULT, SAVED] if arguments.only is None else arguments.only.split(";")
    with tempfile.TemporaryDirectory(prefix="large-", dir=arguments.folder) as folder:
        rows = measure(arguments, names, Path(folder))
    for row in rows:
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    from benchmarks.peers import large, page

    for what, seen, bar, verdict in large.verdicts(large.model_bars(rows)):
        print(f"{verdict.strip('*')}: {what}: {seen} (bar {bar})")
    if arguments.out is not None:
        keep(arguments.out, rows)
        if arguments.out.resolve() == ROOT / "docs/results/benchmarks":
            page.render(ROOT / "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
