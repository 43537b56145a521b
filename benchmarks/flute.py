"""The work of FLUTE's published comparison, whole: a fresh process until it has ended.

    python benchmarks/flute.py [--repetitions 5] [--docs DOCS]

Logistic regression on MNIST, 1,000 clients of 60 samples, 10 a round, one local epoch with batch 10, 100 rounds, an
evaluation on all test data every 10 rounds (theirs: every 20): work (b) of benchmarks/peers, by `fedstale.simulate`
with FedAvg, with FedStale and with the default rule, in turns. What is timed is the process from its start to its end:
starting Python, loading torch and the data, and all rounds. The times beside it are those that FLUTE publishes, of
another machine. Results: docs/results/benchmarks/flute.csv and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import environments, machine, page
from benchmarks.peers.export import export
from benchmarks.peers.work import WORKS

WORK = "logistic"
RULES = ("fedavg", "fedstale", "tempered")
PUBLISHED = {"FLUTE": 200.0, "Flower": 1814.0}
"""Seconds on a CPU: 3:20 and 30:14, as the README of FLUTE (Dimitriadis et al., 2022) gives them for LR_MNIST."""


def whole(rule: str, data: Path) -> float:
    """Seconds of a process that does the whole work."""
    command = [sys.executable, "-m", "benchmarks.peers.with_fedstale", "--work", WORK, "--data", str(data)]
    command += ["--rounds", str(WORKS[WORK].rounds), "--option", rule, "--out", str(data / "flute.json")]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=environments.ROOT)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--data", type=Path, default=environments.HOME / "data")
    parser.add_argument("--docs", type=Path, default=environments.ROOT / "docs")
    arguments = parser.parse_args()
    export(WORKS[WORK], arguments.data / WORK)
    seconds: dict[str, list[float]] = {rule: [] for rule in RULES}
    for turn in range(arguments.repetitions + 1):
        for rule, found in seconds.items():
            taken = whole(rule, arguments.data)
            if turn:  # files are in memory from then on
                found.append(taken)
    rows: list[dict[str, object]] = []
    for rule, found in seconds.items():
        low, middle, high = quantiles(found, n=4)
        rows.append({"what": rule, "seconds": median(found), "lower quartile": low, "upper quartile": high})
        print(f"{rule:10s} {middle:.2f} s [{low:.2f}, {high:.2f}]")
    rows += [
        {"what": f"{name}, as published", "seconds": value, "lower quartile": "", "upper quartile": ""}
        for name, value in PUBLISHED.items()
    ]
    results = arguments.docs / "results" / "benchmarks"
    machine.write(results / "flute.csv", rows)
    machine.write_about(results / "flute-about.csv", "python benchmarks/flute.py")
    page.render(arguments.docs)


if __name__ == "__main__":
    main()
