"""Run all contenders in turn, again and again, each in its own process and environment, and measure.

    python -m benchmarks.peers.race [--only cnn logistic digits] [--repetitions 3] [--rounds N] [--minutes 25]

Every contender runs in network and process namespaces of its own that have nothing but loopback, so that nothing
leaves the machine and nothing outlives it. Memory is the proportional set size of its whole process tree, sampled so
rarely that sampling costs at most 2 % of one core. Results go to docs/results/benchmarks/peers.csv and, rendered, to
docs/benchmarks.md.

All rounds of a work are run in the first repetition, which decides the accuracies; later repetitions of the works with
many rounds run fewer, enough for the time of a round. A repetition is not begun when it would not end in time. Six
rounds of the CNN are enough for its time but not for its accuracy, which still jumps: a run of its own without timing
(--accuracy) decides it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import environments, machine, page, tables
from benchmarks.peers.export import export
from benchmarks.peers.work import BEGAN, WORKS
from benchmarks.tree import held

NAMESPACE = ["unshare", "-r", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
LOOPBACK = ["bash", "-c", 'ip link set lo up; exec "$@"', "ns"]
SHARE_OF_A_CORE = 0.02
PATIENCE = 1800.0


@dataclass(frozen=True)
class Contender:
    """Who takes part: its name in tables, its environment, its variant and the works it is for."""

    label: str
    environment: str
    option: str = ""
    works: tuple[str, ...] = tuple(WORKS)
    once: bool = False
    """Whether it runs in the first repetition only."""


CONTENDERS = (
    Contender("fedstale, FedAvg", "fedstale", "fedavg"),
    Contender("fedstale, FedStale β = auto", "fedstale", "fedstale"),
    Contender("fedstale, FedAvg, bfloat16", "fedstale", "fedavg:bfloat16", ("cnn",), once=True),
    Contender("plain PyTorch loop", "plain"),
    Contender("Flower, 2 actors × 1 thread", "flower", "1"),
    Contender("Flower, 1 actor × 2 threads", "flower", "2", ("cnn",), once=True),
    Contender("pfl-research", "pfl"),
    Contender("fluke", "fluke"),
)
LATER_ROUNDS = {"cnn": 4, "logistic": 100, "digits": 80}
"""Rounds of a work in the repetitions after the first."""
SETTLED = {"cnn": 12}
"""Rounds after which the accuracies of a work are compared, where its timed rounds are too few for that."""
FEW = {"fedstale, FedAvg, bfloat16": 3}
"""Contenders that are so slow that they run only so many rounds; their accuracy is not compared."""


def environment(home: Path) -> dict[str, str]:
    """What a contender finds: nobody calls home, torch chooses its threads, sockets have short names."""
    passed = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return passed | {
        "HOME": str(home),
        "PYTHONPATH": str(environments.ROOT),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(home),
        "WANDB_MODE": "disabled",
        "PYTHONWARNINGS": "ignore",
    }


def run(contender: Contender, work: str, rounds: int, data: Path, **more: str) -> dict[str, Any]:
    """Run one contender once, with more environment variables where given; its report, or {"error": …}."""
    wrong = environments.error(contender.environment)
    if wrong:
        return {"error": wrong}
    with tempfile.TemporaryDirectory(prefix="peers-", dir="/tmp") as name:
        home = Path(name)
        (home / "ray_bootstrap_config.yaml").write_text("cluster_name: local\nprovider: {type: local}\n")
        module = f"benchmarks.peers.with_{contender.environment}"
        command = [str(environments.python(contender.environment)), "-m", module, "--work", work]
        command += ["--data", str(data), "--rounds", str(rounds), "--out", str(home / "report.json")]
        command += ["--option", contender.option]
        variables = environment(home) | more
        with open(home / "log", "w") as log:
            variables[BEGAN] = repr(time.time())
            process = subprocess.Popen(
                [*NAMESPACE, *LOOPBACK, *command],
                cwd=environments.ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                peak = watch(process)
            finally:
                process.kill()  # and with it, everything in its namespaces
                process.wait()
        if process.returncode or not (home / "report.json").exists():
            return {"error": last_line((home / "log").read_text(errors="replace"), process.returncode)}
        report: dict[str, Any] = json.loads((home / "report.json").read_text())
        return {**report, "peak": peak}


def watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process and return the most bytes that its tree was seen to hold."""
    peak, until = 0, time.monotonic() + PATIENCE
    while process.poll() is None:
        began = time.perf_counter()
        peak = max(peak, held(process.pid))
        pause = max(0.2, (time.perf_counter() - began) / SHARE_OF_A_CORE)
        try:
            process.wait(min(pause, 5.0))
        except subprocess.TimeoutExpired:
            if time.monotonic() > until:
                process.kill()
    return peak


def last_line(log: str, code: int) -> str:
    """The line of a log that says what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "error" in line]
    return (told or lines or [f"ended with code {code}"])[-1][:200]


def rounds_of(contender: Contender, work: str, repetition: int, given: int | None) -> int:
    """How many rounds a contender runs in a repetition."""
    wanted = given or (WORKS[work].rounds if repetition == 0 else min(WORKS[work].rounds, LATER_ROUNDS[work]))
    return min(wanted, FEW.get(contender.label, wanted))


def race(
    works: list[str], repetitions: int, rounds: int | None, minutes: float, data: Path, folder: Path
) -> list[dict[str, Any]]:
    """Run everything, in turn; results are kept in the folder after every repetition."""
    began, longest, results = time.monotonic(), 0.0, []
    for repetition in range(repetitions):
        started = time.monotonic()
        if repetition and started - began + longest > 60 * minutes:
            print(f"repetition {repetition + 1} would not end within {minutes:g} minutes: left out")
            break
        for work in works:
            for contender in CONTENDERS:
                if work not in contender.works or (repetition and contender.once):
                    continue
                wanted = rounds_of(contender, work, repetition, rounds)
                found = run(contender, work, wanted, data)
                results.append({"work": work, "contender": contender.label, "repetition": repetition, **found})
                print(tables.line(results[-1]), flush=True)
        tables.write(folder, results)
        longest = time.monotonic() - started
    return results


def settled(data: Path, folder: Path) -> None:
    """Run the works whose timed rounds are too few as long as their accuracies need; nothing is timed."""
    results = []
    for work, rounds in SETTLED.items():
        for contender in CONTENDERS:
            if work in contender.works and not contender.once:
                # One thread: nothing is timed, and threads that wait for each other suffer on a busy machine.
                found = run(contender, work, rounds, data, OMP_NUM_THREADS="1")
                results.append({"work": work, "contender": contender.label, "repetition": 0, **found})
                print(tables.line(results[-1]), flush=True)
    tables.write(folder, results, tables.ACCURACIES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), help="works to run")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="rounds of every work, for trials")
    parser.add_argument("--minutes", type=float, default=25.0, help="what all repetitions may take")
    parser.add_argument("--data", type=Path, default=environments.HOME / "data", help="where the shards lie")
    parser.add_argument("--out", type=Path, default=environments.ROOT / "docs", help="where results and page go")
    parser.add_argument("--accuracy", action="store_true", help="only the runs that decide accuracies, without timing")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contender that runs is ended, too
    for work in arguments.only:
        export(WORKS[work], arguments.data / work)
    folder = arguments.out / "results" / "benchmarks"
    if not arguments.accuracy:
        race(arguments.only, arguments.repetitions, arguments.rounds, arguments.minutes, arguments.data, folder)
        machine.write_about(folder / "peers-about.csv", "make bench-peers")
    if arguments.rounds is None and SETTLED.keys() & set(arguments.only):
        settled(arguments.data, folder)
    page.render(arguments.out)
    problems = tables.problems(tables.read(folder), tables.accuracies(folder)) if arguments.rounds is None else []
    print("\n".join(problems) or "samples and accuracies agree")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
