"""Time to a target: how long each method and server needs on devices with measured connections.

    python benchmarks/time_to_target.py --store time.db --out docs/results/time [--task wisdm] [--quick]

The target is a share (90 % and 97 %) of the accuracy that FedAvg reaches with all clients in every round, mean over the
last tenth of its rounds, on the seeds for judging. A run reaches it with the first of three successive evaluations that
are all above it. Every method has its own rate: the one with the least mean time to the smaller target on the seeds for
choosing, a run that does not reach it counting twice the time of a run; ties go to the larger accuracy at the end. A
best rate at the edge of the grid has its neighbour beyond run, too, until it is interior. Only the seeds for judging
are in the table. Runs are kept in a store: the same command goes on where it was interrupted.

Devices have the connections of the data set `device-speeds` (`fedstale data fetch device-speeds`); how fast they
compute is log-normal. Half of the clients are always there, the others a fifth of the time, in slots; who leaves in the
middle of its work is lost. All servers see the same devices and the same slots.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.analysis import Estimate, tail
from fedstale.analysis.target import Cost, cost_to_target
from fedstale.checks import Float
from fedstale.simulation import Settings, make_settings
from fedstale.simulation.identity import finished, identity
from fedstale.spreadsheet import write_table
from fedstale.store import Store
from fedstale.sweeps import in_process, processes, sweep
from fedstale.sweeps.widening import MOST, beyond

HALF = 10**-0.5
RATES = (HALF, 0.1, 0.1 * HALF, 0.01)
CHOOSING, JUDGING = (100, 101), (2, 3, 4, 5, 6)
TARGETS = (0.90, 0.97)
STAY = 3
DATA = {"partition": "dirichlet", "partition_options": {"alpha": 0.1}, "replacement": True}
TASKS: dict[str, dict[str, Any]] = {
    "mnist-mlp": {"task": "mnist-mlp", "share": 0.08, "batch_size": 32, **DATA},
    "wisdm": {"task": "wisdm"},
}
SECONDS = {"mnist-mlp": 120.0, "wisdm": 60.0}
"""How long a run lasts."""
WORLD: dict[str, Any] = {"p_min": 0.2, "devices": "measured", "slot_seconds": 10.0}
DEADLINE = 1.5


@dataclass(frozen=True)
class Entry:
    """A method on a server."""

    name: str
    rule: str
    server: str
    every: int
    """steps between evaluations: several a second of virtual time"""
    options: dict[str, Any] = field(default_factory=dict)


def _sync(name: str, rule: str, **options: Any) -> Entry:
    return Entry(f"{name}, deadline", rule, "synchronous", 1, {"deadline": DEADLINE, **options})


_DISCARD = {"server_options": {"late": "discard"}}
_FEW = {"server_options": {"size": 5}}
ENTRIES = (
    Entry("FedAvg, waits for all", "fedavg", "synchronous", 1),
    Entry("FedAvg, waits for 8", "fedavg", "synchronous", 1, {"server_options": {"wait_for": 8}}),
    _sync("FedAvg", "fedavg"),
    _sync("U-FedAvg", "u-fedavg"),
    _sync("MIFA, late remembered", "mifa"),
    _sync("MIFA, late discarded", "mifa", **_DISCARD),
    _sync("FedStale, late remembered", "fedstale"),
    _sync("FedStale, late discarded", "fedstale", **_DISCARD),
    _sync("Tempered FedStale, late remembered", "tempered"),
    _sync("Tempered FedStale, late discarded", "tempered", **_DISCARD),
    Entry("FedBuff", "fedbuff", "buffered", 3, _FEW),
    Entry("U-FedBuff", "u-fedbuff", "buffered", 3, _FEW),
    Entry("CA²FL", "ca2fl", "buffered", 3, _FEW),
    Entry("FedStaleAsync", "fedstale-async", "buffered", 3, _FEW),
    Entry("Tempered FedStale, buffered", "tempered", "buffered", 3, _FEW),
    Entry("FedAsync", "fedasync", "asynchronous", 15),
    Entry("ACE", "ace", "asynchronous", 15),
    Entry("ACE, waits for all clients first", "ace", "asynchronous", 15, {"rule_options": {"wait": True}}),
    Entry("ACED", "aced", "asynchronous", 15),
    Entry("AREA", "area", "asynchronous", 15),
    Entry("AFA-CS", "afa-cs", "asynchronous", 15),
)


def settings_of(task: str, entry: Entry, lr: float, seed: int) -> Settings:
    """Return the settings of one run; the number of steps is more than its time allows."""
    world = {**WORLD, "until_seconds": SECONDS[task]}
    common = {**TASKS[task], **world, "objective": False, "rounds": 20_000, "evaluate_every": entry.every}
    made: dict[str, Any] = {**common, "rule": entry.rule, "server": entry.server, "lr": lr, "seed": seed}
    return make_settings(**made | entry.options)


def everybody(task: str, lr: float, seed: int) -> Settings:
    """Return the settings of the limit: FedAvg with all clients in every round."""
    return make_settings(**TASKS[task], rule="fedavg", p_min=1.0, lr=lr, seed=seed, rounds=200, objective=False)


class Runs:
    """The runs of a store, made where they are missing."""

    def __init__(self, store: Store, workers: int) -> None:
        self._store, self._executor = store, in_process if workers == 1 else processes(workers)

    def make(self, wanted: list[Settings], what: str) -> None:
        """Run what the store does not have."""
        done = sweep(wanted, self._store, name="time", executor=self._executor)
        print(f"{what}: {done.total} runs, {done.done} of them now, {len(done.failures)} failed", file=sys.stderr)
        for settings, why in done.failures:
            print(f"  {settings.label}: {why}", file=sys.stderr)
        self._found = finished(self._store)

    def metrics(self, settings: Settings) -> dict[str, Float]:
        """Return what a run recorded, one entry per round; nothing for one that diverged."""
        info = self._found[identity(settings.record())]
        if info.diverged_in is not None:
            return {}
        columns = self._store.run(info.id).metrics()
        rounds = columns.pop("round")
        found = {name: np.full(int(rounds[-1]) + 1, np.nan) for name in columns}
        for name, values in columns.items():
            found[name][rounds] = values
        return found


def spent(metrics: dict[str, Float], target: float) -> Cost | None:
    """What the target cost."""
    return cost_to_target(metrics, "accuracy", target, STAY) if metrics else None


def at_the_end(metrics: dict[str, Float]) -> float:
    """Mean accuracy over the last tenth of the time; NaN for a run that diverged."""
    if not metrics:
        return math.nan
    late = metrics["virtual_seconds"] >= 0.9 * metrics["virtual_seconds"][-1]
    return float(np.nanmean(metrics["accuracy"][late]))


def choose(runs: Runs, task: str, entry: Entry, rates: tuple[float, ...], target: float) -> tuple[float, bool]:
    """Return the rate that is best on the seeds for choosing, and whether it is at the edge of what was run."""

    def cost(lr: float) -> tuple[float, float]:
        found = [runs.metrics(settings_of(task, entry, lr, seed)) for seed in CHOOSING]
        costs = [spent(metrics, target) for metrics in found]
        seconds = [2 * SECONDS[task] if one is None else one.seconds for one in costs]
        end = float(np.mean([at_the_end(metrics) for metrics in found]))
        return float(np.mean(seconds)), math.inf if math.isnan(end) else -end

    for _ in range(MOST + 1):
        runs.make([settings_of(task, entry, lr, seed) for lr in rates for seed in CHOOSING], f"choosing, {entry.name}")
        best = min(rates, key=cost)
        sides = [side for side, edge in ((1, max(rates)), (-1, min(rates))) if best == edge]
        if not sides or len(rates) < 2:
            return best, False
        rates = (*rates, *(beyond(best, side) for side in sides))
    return best, True


def main() -> None:
    """Choose, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist-mlp", choices=sorted(TASKS))
    parser.add_argument("--store", type=Path, default=Path("time.db"))
    parser.add_argument("--out", type=Path, default=Path("time"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--servers", default="synchronous,buffered,asynchronous", help="only entries on these servers")
    parser.add_argument("--quick", action="store_true", help="one rate, two entries: whether it runs at all")
    given = parser.parse_args()
    rates: tuple[float, ...]
    entries: tuple[Entry, ...]
    rates, entries = ((0.1,), ENTRIES[2:11:8]) if given.quick else (RATES, ENTRIES)
    entries = tuple(entry for entry in entries if entry.server in given.servers.split(","))
    with Store.open(given.store) as store:
        runs = Runs(store, given.workers)
        limit = {lr: [everybody(given.task, lr, seed) for seed in (*CHOOSING, *JUDGING)] for lr in rates}
        runs.make([one for some in limit.values() for one in some], "everybody, always")
        ends = {lr: [_tail(runs, settings) for settings in some] for lr, some in limit.items()}
        best = max(rates, key=lambda lr: float(np.nan_to_num(np.mean(ends[lr][: len(CHOOSING)]), nan=-1.0)))
        full = Estimate.of(ends[best][len(CHOOSING) :])
        targets = {share: share * full.mean for share in TARGETS}
        chosen = {entry.name: choose(runs, given.task, entry, rates, targets[min(TARGETS)]) for entry in entries}
        rate = {name: lr for name, (lr, _) in chosen.items()}
        for name in (name for name, (_, edge) in chosen.items() if edge):
            print(f"{name}: the best rate is still at the edge", file=sys.stderr)
        runs.make([settings_of(given.task, e, rate[e.name], seed) for e in entries for seed in JUDGING], "judging")
        lines = [_line(runs, given.task, entry, rate[entry.name], targets) for entry in entries]
    head = {"method": "everybody, always (rounds)", "server": "rounds", "lr": f"{best:.4g}"}
    head |= {"accuracy": f"{full.mean:.4f}", "accuracy_error": f"{full.error:.4f}"}
    table = [head, *lines]
    write_table(
        given.out / f"{given.task}.csv", list(lines[0]), [[row.get(key, "") for key in lines[0]] for row in table]
    )
    print(f"everybody, always: {full.mean:.1%} at {best:.4g}")
    print("\n".join([f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS), *map(page_row, lines)]))


def _tail(runs: Runs, settings: Settings) -> float:
    metrics = runs.metrics(settings)
    if not metrics:
        return math.nan
    values = metrics["accuracy"]
    return tail(np.arange(len(values)), values, planned=settings.total_rounds, done=len(values))


def _line(runs: Runs, task: str, entry: Entry, lr: float, targets: dict[float, float]) -> dict[str, str]:
    found = [runs.metrics(settings_of(task, entry, lr, seed)) for seed in JUDGING]
    line = {"method": entry.name, "server": entry.server, "lr": f"{lr:.4g}"}
    for share, target in targets.items():
        costs = [spent(metrics, target) for metrics in found]
        reached = [cost for cost in costs if cost is not None]
        name = f"{share:.0%}".replace("%", "")
        line[f"reached_{name}"] = f"{len(reached)} of {len(costs)}"
        all_did = len(reached) == len(costs)
        for what, scale in (("seconds", 1.0), ("bytes", 1e-6)):
            value = Estimate.of([scale * getattr(cost, what) for cost in reached] if all_did else [])
            column = what if what == "seconds" else "megabytes"
            line |= {f"{column}_{name}": f"{value.mean:.4g}", f"{column}_{name}_error": f"{value.error:.3g}"}
        line[f"seconds_{name}_seeds"] = " ".join("–" if cost is None else f"{cost.seconds:.4g}" for cost in costs)
    end = Estimate.of([at_the_end(metrics) for metrics in found])
    line |= {"accuracy": f"{end.mean:.4f}", "accuracy_error": f"{end.error:.4f}"}
    for name in ("late", "lost"):
        line[name] = f"{np.mean([_sum(metrics[name]) for metrics in found if metrics] or [math.nan]):.4g}"
    worked = [_sum(metrics["wasted_seconds"]) for metrics in found if metrics]
    line["wasted_device_seconds"] = f"{np.mean(worked or [math.nan]):.4g}"
    line["information_age"] = f"{np.mean([m['information_age'][-1] for m in found if m] or [math.nan]):.4g}"
    return line


HEADINGS = (
    *("method", "server", "η_c", "seconds to 90 %", "MB to 90 %", "reached 90 %", "reached 97 %"),
    *("accuracy at the end, %", "late", "lost", "wasted device-seconds"),
)


def page_row(line: Mapping[str, str]) -> str:
    """Write a line of the CSV as the page has it."""

    def estimate(name: str) -> str:
        return "–" if line[name] == "nan" else f"{float(line[name]):.3g} ± {float(line[f'{name}_error']):.2g}"

    end = " ± ".join(f"{100 * float(line[name]):.1f}" for name in ("accuracy", "accuracy_error"))
    counts = (f"{float(line[name]):.0f}" for name in ("late", "lost", "wasted_device_seconds"))
    costs = (estimate("seconds_90"), estimate("megabytes_90"), line["reached_90"], line["reached_97"])
    return f"| {' | '.join((line['method'], line['server'], line['lr'], *costs, end, *counts))} |"


def _sum(values: Float) -> float:
    """The sum over all steps, of which the store has those that were evaluated."""
    return float(np.nanmean(values) * len(values))


if __name__ == "__main__":
    main()
