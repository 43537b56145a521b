"""The Flower server under load: many nodes that join, leave, are killed and come back; is every round accounted for?

`python -m tests.faults.load --nodes 50 --rounds 200 --parameters 2500000 [--csv FILE]` starts a real SuperLink, the
ServerApp of `load_server` and the nodes of `load_nodes` in namespaces of their own (nothing but loopback), prints a
table and writes a CSV with one line per round. `--memory` runs the strategy alone, with the grid of
tests/flower/grid.py instead of a network, for many more rounds: a leak of ours shows there.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tests.flower.deployment import LOOPBACK, NAMESPACE, PORT, ROOT, Machine, server_processes, wait

from .load_server import model, resident

COLUMNS = (
    "round",
    "seconds",
    "rss",
    "superlink_rss",
    "connected",
    "asked",
    "replied",
    "contributed",
    "failed",
    "rejected",
    "silent",
    "stray",
)
_PROJECT = """[project]
name = "load"
version = "1.0.0"
description = "Load test."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedstale"
[tool.flwr.app.components]
serverapp = "load.server_app:app"
clientapp = "load.server_app:app"
[tool.flwr.app.config]
rounds = 3
parameters = 1000
nodes = 2
min-nodes = 2
ask = 2
timeout = 30.0
checkpoint = false
pause = ""
output = ""
"""


class Load(Machine):
    """A SuperLink and the processes that host the nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.app = folder / "load"
        (self.app / "load").mkdir(parents=True)
        (self.app / "pyproject.toml").write_text(_PROJECT)
        (self.app / "load" / "__init__.py").touch()
        (self.app / "load" / "server_app.py").write_text(
            "from tests.faults import load_server\n\napp = load_server.app\n"
        )
        (folder / "out").mkdir()

    def environment(self, name: str) -> dict[str, str]:
        """The ServerApp finds the tests package."""
        return {**super().environment(name), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def host(self, number: int, clients: list[int]) -> None:
        """Start a process with the nodes of these clients."""
        command = ["python", "-m", "tests.faults.load_nodes", f"127.0.0.1:{PORT}", str(self.folder)]
        self.start(f"host{number}", *command, *map(str, clients))

    def lines(self) -> list[dict[str, Any]]:
        """What the ServerApp has written so far; line 0 stands before the first round."""
        file = self.folder / "out" / "rounds.jsonl"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def drive(folder: Path, options: argparse.Namespace) -> None:
    """Run the load inside the namespaces: keep hosts coming and going until the last round."""
    machine = Load(folder)
    chance = random.Random(options.seed)
    hosts = min(options.hosts, options.nodes)
    shares = [list(range(options.nodes))[k::hosts] for k in range(hosts)]
    events: Counter[str] = Counter()
    memory: dict[int, int] = {}
    try:
        machine.superlink()
        for number, clients in enumerate(shares):
            machine.host(number, clients)
        config = {"rounds": options.rounds, "parameters": options.parameters, "nodes": options.nodes}
        config |= {
            "ask": options.ask,
            "timeout": options.timeout,
            "checkpoint": options.checkpoint,
            "pause": options.pause,
        }
        run = machine.run("out", **config)
        wait("the first round began", lambda: _alive(machine) and machine.lines(), 600)
        away: dict[int, int] = {}  # hosts that are down, and the round at which they come back
        next_event = options.every
        while (done := len(machine.lines()) - 1) < options.rounds:
            for t in range(done + 1):
                memory.setdefault(t, resident(machine.started["superlink"].pid))
            for number in [n for n, until in away.items() if done >= until]:
                machine.host(number, shares[number])
                del away[number]
                events["came back"] += 1
            if done >= next_event and len(away) < hosts - 1:
                number = chance.choice([n for n in range(hosts) if n not in away])
                kill = chance.random() < 0.5
                process = machine.started[f"host{number}"]
                process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                events["killed" if kill else "left"] += 1
                away[number] = done + chance.randint(1, 4)
                next_event = done + options.every
            if not server_processes() and len(machine.lines()) - 1 < options.rounds:
                raise RuntimeError(f"the ServerApp ended: {machine.status(run)}")
            time.sleep(0.5)
        memory[options.rounds] = resident(machine.started["superlink"].pid)
        status = machine.finish(run, "out")
        hosted = [
            resident(p.pid) for name, p in machine.started.items() if name.startswith("host") and p.poll() is None
        ]
        kept = stored(folder / "out")
    finally:
        for process in machine.started.values():
            process.kill()
    rounds = machine.lines()[1:]
    for line in rounds:
        line["superlink_rss"] = memory.get(line["round"], 0)
    answered: Counter[int] = Counter()
    for file in folder.glob("answered-*.jsonl"):
        answered.update(json.loads(text)["round"] for text in file.read_text().splitlines() if text.endswith("}"))
    report = {"status": status, "rounds": rounds, "events": events, "hosts_rss": hosted, "stored": kept}
    report["answered"] = {str(t): answered[t] for t in range(1, options.rounds + 1)}
    (folder / "report.json").write_text(json.dumps(report))


def _alive(machine: Load) -> bool:
    """Say at once when a process that must live has ended."""
    for name, process in machine.started.items():
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}")
    return True


def stored(folder: Path) -> dict[str, list[float]]:
    """What the fedstale store has of each round."""
    from fedstale.store import Store

    with Store.open(folder / "runs", read_only=True) as store:
        run = store.run(store.runs()[0].id)
        metrics, who = run.metrics(), run.participants()
        names = ("round", "connected", "asked", "participants", "failed", "left_out", "stray", "silent")
        found = {name: metrics[name].tolist() for name in names}
        return found | {"came": [len(who[t]) for t in sorted(who)]}


def table(rounds: list[dict[str, Any]]) -> str:
    """Four quarters of the run, side by side."""
    quarter = len(rounds) // 4
    rows: list[tuple[str, ...]] = [
        (
            "rounds",
            "s/round",
            "server MB",
            "largest",
            "SuperLink MB",
            "asked",
            "contributed",
            "failed",
            "rejected",
            "silent",
        )
    ]
    for k in range(4):
        part = rounds[k * quarter : (k + 1) * quarter]
        sums = {
            name: sum(line[name] for line in part) for name in ("asked", "contributed", "failed", "rejected", "silent")
        }
        rows.append(
            (
                f"{part[0]['round']}–{part[-1]['round']}",
                f"{median(line['seconds'] for line in part):.2f}",
                f"{fmean(line['rss'] for line in part) / 1e6:.1f}",
                f"{max(line['rss'] for line in part) / 1e6:.1f}",
                f"{fmean(line['superlink_rss'] for line in part) / 1e6:.1f}",
                *(str(number) for number in sums.values()),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def growth(rounds: list[dict[str, Any]], key: str = "rss") -> float:
    """Mean memory of the last quarter over that of the second, minus one."""
    quarter = len(rounds) // 4
    second, last = rounds[quarter : 2 * quarter], rounds[3 * quarter :]
    return fmean(line[key] for line in last) / fmean(line[key] for line in second) - 1.0


def flat(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rounds as the CSV has them; raises where a round does not add up."""
    lines = []
    for line in rounds:
        rejected = line["left_out"] - line["stray"]
        if line["asked"] != line["participants"] + line["failed"] + rejected + line["silent"]:
            raise AssertionError(f"round {line['round']} does not add up: {line}")
        if len({*line["asked_nodes"]}) != line["asked"] or len(line["reasons"]) != line["failed"] + line["left_out"]:
            raise AssertionError(f"round {line['round']} does not name everybody: {line}")
        replied = line["participants"] + line["failed"] + rejected
        more = {"contributed": line["participants"], "rejected": rejected, "replied": replied}
        lines.append({**line, **more})
    return lines


def memory_only(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The strategy alone, with a grid in memory: nodes come and go by chance, some answer nonsense."""
    import logging

    import numpy as np
    from flwr.app import Message

    from fedstale.flower import FedStale
    from tests.flower.grid import MemoryGrid

    from .load_nodes import answer
    from .task import flower_task

    chance = random.Random(options.seed)

    class Coming(MemoryGrid):
        """A grid whose nodes come back with other ids, and that forgets what it sent."""

        def get_nodes(self) -> Any:
            self.sent.clear()
            client = chance.randrange(options.nodes)
            (old,) = [node for node, who in names.items() if who == client]
            del names[old], self.nodes[old]
            new = chance.randrange(10**6, 10**9)
            names[new], self.nodes[new] = client, node_of(client)
            self.online = {node for node in self.nodes if chance.random() < 0.9}
            return super().get_nodes()

    def node_of(client: int) -> Any:
        def node(message: Message) -> Message | None:
            return None if chance.random() < 0.02 else answer(client, message)

        return node

    names = {1000 + client: client for client in range(options.nodes)}
    grid = Coming({node: node_of(client) for node, client in names.items()})
    lines: list[dict[str, Any]] = []
    strategy = FedStale(selection=options.ask, fraction_evaluate=0.0, min_train_nodes=1, max_wait=0.0)
    began = time.monotonic()

    def after(server_round: int, arrays: Any) -> None:
        nonlocal began
        now, began = began, time.monotonic()
        if strategy.account is not None:
            line = {"round": server_round, "seconds": began - now, "rss": resident(), "superlink_rss": 0}
            lines.append(line | strategy.account.as_dict())

    with flower_task(logging.ERROR), np.errstate(all="ignore"):
        strategy.start(grid, model(options.parameters), num_rounds=options.rounds, evaluate_fn=after)
    return flat(lines)


def write_csv(path: Path, rounds: list[dict[str, Any]]) -> None:
    """One line per round."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rounds)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start `drive` in its namespaces and return its report."""
    words = [f"--{name}={value}" for name, value in vars(options).items() if name in _PASSED]
    words += ["--checkpoint"] if options.checkpoint else []
    inner = [sys.executable, "-m", "tests.faults.load", "--inside", str(folder), *words]
    with (folder / "load.log").open("w") as log:
        code = subprocess.run(
            [*NAMESPACE, *LOOPBACK, *inner], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    if code.returncode:
        logs = "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in sorted(folder.glob("*.log")))
        raise AssertionError(f"the load test failed:\n{logs}")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    report["rounds"] = flat(report["rounds"])
    return report


_PASSED = ("nodes", "rounds", "parameters", "hosts", "ask", "every", "timeout", "seed", "pause")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=2_500_000)
    parser.add_argument("--hosts", type=int, default=10, help="processes that the nodes are spread over")
    parser.add_argument("--ask", type=int, default=10, help="nodes asked in a round")
    parser.add_argument("--every", type=int, default=6, help="rounds between two departures")
    parser.add_argument("--timeout", type=float, default=25.0, help="seconds a round waits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", default="", help="a file: while it exists, no round begins")
    parser.add_argument("--checkpoint", action="store_true", help="save after every round")
    parser.add_argument("--memory", action="store_true", help="the strategy alone, without processes")
    parser.add_argument("--csv", type=Path, help="where to write one line per round")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    """Run the load test and print its table."""
    options = parse()
    if options.inside:
        drive(options.inside, options)
        return
    if options.memory:
        rounds, told = memory_only(options), ""
    else:
        with tempfile.TemporaryDirectory(prefix="fedstale-load-") as name:
            report = run(options, Path(name))
        rounds = report["rounds"]
        told = f"{report['status']}; {report['events']}; a host of nodes: {max(report['hosts_rss']) / 1e6:.0f} MB\n"
        agree = report["stored"]["asked"] == [line["asked"] for line in rounds]
        told += f"the store has the same {len(rounds)} rounds: {agree}\n"
    if options.csv:
        write_csv(options.csv, rounds)
    print(f"{told}{table(rounds)}\nserver, last quarter against the second: {growth(rounds):+.2%}")
    if not options.memory:
        print(f"SuperLink, last quarter against the second: {growth(rounds, 'superlink_rss'):+.2%}")


if __name__ == "__main__":
    main()
