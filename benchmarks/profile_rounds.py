"""Where our time goes in the three works of benchmarks/peers, and what improvements that the profile suggested brought.

    python benchmarks/profile_rounds.py [--before FOLDER] [--repetitions 3] [--docs DOCS]

Every run is a process of its own; the present version, those with one improvement undone and, with --before, that of
another working tree take turns. Spans: local training, drawing batches, the server (`Rule.step`), evaluation, and
bookkeeping (the rest of a round). Bar: server and bookkeeping at most 10 % of a round of the small models (b) and (c).
Results: docs/results/benchmarks/profile.csv and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import environments, machine, page
from benchmarks.peers.export import export
from benchmarks.peers.work import WORKS, Shards

SPANS = ("local training", "batches", "server", "evaluation")
ROUNDS = {"cnn": 6, "logistic": 100, "digits": 300}
RULES = ("fedstale", "tempered")


def undo_nothing() -> None:
    """The present version."""


def undo_kept_memory() -> None:
    """Let malloc give freed memory back, as it does by default."""
    from fedstale.training import allocator

    allocator.keep_freed_memory = lambda: False


def undo_views() -> None:
    """Copy test samples before they are evaluated."""
    import torch

    from fedstale.tasks.client_data import Values
    from fedstale.training.setup import Samples

    inputs = Samples.inputs

    def copied(self: Samples, rows: torch.Tensor | slice) -> Values:
        return inputs(self, torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows)

    Samples.inputs = copied  # type: ignore[method-assign]


NOW, BEFORE = "now", "before"
VERSIONS: dict[str, Callable[[], None]] = {
    NOW: undo_nothing,
    BEFORE: undo_nothing,  # of another working tree
    "freed memory given back": undo_kept_memory,
    "test samples copied": undo_views,
}


def profiled(name: str, rule: str, data: Path, rounds: int) -> dict[str, float]:
    """Run a work with a rule and return the seconds of a round and the share of each span."""
    import numpy as np

    import fedstale as fs
    from benchmarks.peers.with_fedstale import task_of
    from fedstale.participation import Bernoulli, Participation, UniformSample
    from fedstale.simulation import Callback, Simulation

    work = WORKS[name]
    spent = dict.fromkeys(SPANS, 0.0)

    def timed(owner: Any, attribute: str, span: str) -> None:
        call = getattr(owner, attribute)

        def wrapper(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                spent[span] += time.perf_counter() - began

        setattr(owner, attribute, wrapper)

    class Spans(Callback):
        began = 0.0
        faults = 0
        count = 0

        def on_start(self, simulation: Simulation) -> None:
            trainer: Any = simulation.trainer
            timed(trainer.engine, "batches", "batches")
            timed(trainer.engine, "train", "local training")
            timed(trainer, "evaluate", "evaluation")
            timed(type(simulation.rule), "step", "server")

        def on_round(self, simulation: Simulation, record: Any) -> None:
            if record.round == 0:  # the first round belongs to the start
                spent.update(dict.fromkeys(SPANS, 0.0))
                self.began, self.faults = time.perf_counter(), page_faults()
            else:
                self.count += 1

    spans = Spans()
    length: dict[str, Any] = {"epochs": 1} if work.epoch else {"local_steps": work.steps, "replacement": True}
    fs.simulate(
        task_of(work, Shards(data / name)),
        rule,
        Participation(Bernoulli(np.ones(work.clients)), UniformSample(work.cohort)),
        rounds=rounds,
        lr=work.lr,
        batch_size=work.batch,
        evaluate_every=work.evaluate_every,
        callbacks=[spans],
        **length,
    )
    whole = time.perf_counter() - spans.began
    shares = {span: value / whole for span, value in spent.items()}
    faults = (page_faults() - spans.faults) / spans.count
    return {"seconds": whole / spans.count, **shares, "bookkeeping": 1.0 - sum(shares.values()), "faults": faults}


def page_faults() -> int:
    """How often this process has touched a page that it did not have yet."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def contenders(before: Path | None) -> list[tuple[str, str]]:
    """Which rules in which versions: single improvements are undone for the first rule only."""
    both = [NOW] if before is None else [NOW, BEFORE]
    return [(rule, version) for rule in RULES for version in both] + [
        (RULES[0], version) for version in VERSIONS if version not in (NOW, BEFORE)
    ]


def measure(
    works: list[str], repetitions: int, data: Path, rounds: int | None, before: Path | None
) -> list[dict[str, object]]:
    """All works, rules and versions, interleaved; medians."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for _ in range(repetitions):
        for work in works:
            for rule, version in contenders(before):
                command = [sys.executable, __file__, "--child", work, "--rule", rule, "--version", version]
                command += ["--data", str(data), "--rounds", str(rounds or ROUNDS[work])]
                environment = {"PYTHONPATH": str(before / "src")} if before and version == BEFORE else {}
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | environment
                )
                found.setdefault((work, rule, version), []).append(json.loads(done.stdout.splitlines()[-1]))
    rows: list[dict[str, object]] = []
    for (work, rule, version), runs in found.items():
        middle = {key: median(run[key] for run in runs) for key in runs[0]}
        rows.append({"work": work, "rule": rule, "version": version, **middle})
        told = ", ".join(f"{key} {value:.4g}" for key, value in middle.items())
        print(f"{work:<9} {rule:<9} {version:<26} {told}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="rounds of every work, for trials")
    parser.add_argument("--data", type=Path, default=environments.HOME / "data")
    parser.add_argument("--docs", type=Path, default=environments.ROOT / "docs")
    parser.add_argument("--before", type=Path, help="a working tree of an earlier version, to take turns with")
    parser.add_argument("--before-name", default="before", help="what the page calls it, such as its commit")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--rule", default=RULES[0], help=argparse.SUPPRESS)
    parser.add_argument("--version", choices=VERSIONS, default=NOW, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        VERSIONS[arguments.version]()
        print(json.dumps(profiled(arguments.child, arguments.rule, arguments.data, arguments.rounds)))
        return
    for work in arguments.only:
        export(WORKS[work], arguments.data / work)
    rows = measure(arguments.only, arguments.repetitions, arguments.data, arguments.rounds, arguments.before)
    for row in rows:
        row["version"] = arguments.before_name if row["version"] == BEFORE else row["version"]
    results = arguments.docs / "results" / "benchmarks"
    for name, own in page.PROFILES.items():
        if measured := [row for row in rows if row["work"] in own]:
            machine.write(results / f"{name}.csv", measured)
            machine.write_about(results / f"{name}-about.csv", "python benchmarks/profile_rounds.py")
    page.render(arguments.docs)


if __name__ == "__main__":
    main()
