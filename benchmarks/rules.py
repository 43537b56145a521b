"""The rules compared: how much of the gap between U-FedAvg and everybody-in-every-round each of them closes.

    python benchmarks/rules.py --task mnist-logistic --store rules.db --out docs/results/rules [--workers 2]
    python benchmarks/rules.py --task digits-mlp --quick
    python benchmarks/rules.py --task mnist-cnn --p-min 0.1,0.05 --swaps 0.6,1 --alphas "" --tune-in-first

In each cell (participation × data) every method is tuned by the objective Σ α_i F_i over the clients' training data, on
the seeds for choosing; a rate at the edge of its grid is widened until it is interior. Then it runs at that rate on the
seeds for judging, and only those are in the table. "Everybody" is FedAvg with all clients in every round: same seeds,
same batches. All runs go to a store: the same command, given again, goes on where it was interrupted.

Two files per task: TASK-cells.csv (every cell and method: rate, objective, accuracies, gap closed, how wide the range
of rates within 5 % of the best is) and TASK-mean.csv (every method over the cells that have a gap). Cells that the file
has already and that are not asked for again stay in it, so that a table can be made in several sittings.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedstale.analysis import Cell, Estimate, Gap, method_label, ratio_of_means, tuned
from fedstale.simulation import Settings, make_settings
from fedstale.spreadsheet import write_table
from fedstale.store import Store
from fedstale.sweeps import in_process, processes, results, sweep, widen
from fedstale.sweeps.executors import Executor

Method = tuple[str, dict[str, Any]]
EVERYBODY, PLAIN = "everybody", "u-fedavg"
METHODS: dict[str, Method] = {
    "fedavg": ("fedavg", {}),
    PLAIN: (PLAIN, {}),
    "fedvarp": ("fedvarp", {}),
    "u-fedvarp": ("u-fedvarp", {}),
    "fedstale": ("fedstale", {"beta": "auto"}),
    "mifa": ("mifa", {}),
    "tempered": ("tempered", {}),
    EVERYBODY: ("fedavg", {}),
}
RIVALS: dict[str, Method] = {
    **{name: (name, {}) for name in ("fedsteer", "u-fedsteer", "fedawe", "ca-fed")},
    "tempered-alone": ("tempered", {"rule_options": {"stand_in": False}}),
}
"""Only where `--methods` names them; all but the last are not in lock-step, and so slower."""
P_MIN = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
SWAPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ALPHAS = (0.1, 0.3, 1.0)
HALF = 10**-0.5


@dataclass(frozen=True)
class Plan:
    """How a task is run: the rates to begin with, and what differs from the task's own settings."""

    rates: tuple[float, ...]
    settings: tuple[tuple[str, Any], ...] = ()


SMALL = (("share", 0.08), ("batch_size", 32))
"""200 MNIST images a client and batch 32."""
PLANS = {
    "digits-mlp": Plan((HALF, 0.1, 0.1 * HALF)),
    "mnist-logistic": Plan((0.1, 0.1 * HALF, 0.01), SMALL),
    "mnist-mlp": Plan((HALF, 0.1, 0.1 * HALF), SMALL),
    "mnist-cnn": Plan((HALF, 0.1, 0.1 * HALF), (*SMALL, ("precision", "bfloat16"))),
}
CHOOSING, JUDGING = (100, 101), (2, 3, 4, 5, 6)
"""Seeds. 0 and 1 had a part in the design of the tempered rule."""
COLUMNS = ("objective", "gap_closed", "accuracy", "accuracy_often", "accuracy_rare", "accuracy_worst_decile")


@dataclass(frozen=True)
class Place:
    """A cell: who comes, and whose data differ how."""

    name: str
    rounds: int
    setting: tuple[tuple[str, Any], ...]

    def settings(self, method: str, task: str, lr: float, seed: int) -> Settings:
        """Return the settings of one run; "everybody" is FedAvg in which all clients come in every round."""
        rule, options = (METHODS | RIVALS)[method]
        given: dict[str, Any] = dict(self.setting)
        if method == EVERYBODY:
            given |= {"participation": "two-groups", "p_min": 1.0, "participation_options": {}}
            given |= {"selection": "all", "selection_options": {}}
        evaluate_every = max(1, self.rounds // 20)
        named = {"task": task, "rule": rule, "lr": lr, "seed": seed, "rounds": self.rounds}
        return make_settings(**dict(PLANS[task].settings) | given | options | named, evaluate_every=evaluate_every)


def places(p_mins: tuple[float, ...], swaps: tuple[float, ...], alphas: tuple[float, ...]) -> Iterator[Place]:
    """The paper's cells, then Dirichlet data with two groups and with log-uniform p_i.

    With Dirichlet data a client may have fewer samples than a batch: batches are drawn with replacement there.
    """
    for p_min in p_mins:
        rounds = math.ceil(10 / p_min - 1e-9)
        for swap in swaps:
            yield Place(f"p_min {p_min:g}, swap {swap:g}", rounds, (("p_min", p_min), ("swap", swap)))
        if p_min in (0.1, 0.02) or len(p_mins) == 1:
            for alpha in alphas:
                yield Place(f"p_min {p_min:g}, Dirichlet {alpha:g}", rounds, (("p_min", p_min), *_dirichlet(alpha)))
    if alphas and 0.02 in p_mins:
        p = np.exp(np.random.default_rng(1).uniform(np.log(0.02), 0.0, 24)).tolist()
        who: tuple[tuple[str, Any], ...] = (("participation", "bernoulli"), ("participation_options", {"p": p}))
        for alpha in alphas:
            yield Place(f"p log-uniform .02 to 1, Dirichlet {alpha:g}", 500, who + _dirichlet(alpha))


def _dirichlet(alpha: float) -> tuple[tuple[str, Any], ...]:
    return (("partition", "dirichlet"), ("partition_options", {"alpha": alpha}), ("replacement", True))


def many_clients() -> Iterator[Place]:
    """200 clients of whom the server asks 10 a round: all of them there, or half of them in a tenth of the rounds."""
    asked: tuple[tuple[str, Any], ...] = (("selection", "uniform"), ("selection_options", {"m": 10}))
    data = (("num_clients", 200), ("share", 0.4), *_dirichlet(0.3))
    for p_min, rounds in ((1.0, 200), (0.1, 500)):
        who = "all there" if p_min == 1.0 else f"half with p {p_min:g}"
        yield Place(f"10 of 200 asked, {who}, Dirichlet 0.3", rounds, (("p_min", p_min), *data, *asked))


def tune(
    store: Store, executor: Executor, task: str, cells: list[Place], methods: list[str], seeds: tuple[int, ...]
) -> dict[tuple[str, str], Cell]:
    """Best interior rate of every method in every cell, on the seeds for choosing."""
    first: dict[str, tuple[str, str]] = {}
    runs = []
    for place in cells:
        for name in methods:
            own = [place.settings(name, task, lr, seed) for lr in PLANS[task].rates for seed in seeds]
            first |= {_where(settings): (place.name, name) for settings in own[:1]}
            runs += own

    def run(wanted: list[Settings]) -> None:
        sweep(wanted, store, name="rules", executor=executor, report=told(f"{task}: choosing rates"))

    run(runs)
    table = results(store, widen(runs, store, run, metric="objective"), "objective")
    return {first[_where(cell.runs[0].settings)]: cell for cell in tuned(table)}


def _where(settings: Settings) -> str:
    """Everything but rate and seed: what a best rate belongs to."""
    return repr({name: value for name, value in settings.record().items() if name not in ("lr", "seed")})


def told(what: str) -> Any:
    """Tell how a sweep stands, at most once in ten seconds."""
    last = [0.0]

    def report(progress: Any) -> None:
        if time.monotonic() - last[0] > 10 or progress.worked == progress.work:
            last[0] = time.monotonic()
            print(f"{what}: {progress.stored + progress.done} of {progress.total} runs", file=sys.stderr, flush=True)

    return report


def width(cell: Cell) -> float:
    """Decades of rates whose objective is within 5 % of the best: how little the rate has to be tuned."""
    known = {rate: -mean for rate, mean in cell.rates.items() if rate is not None and not math.isnan(mean)}
    best = min(known.values(), default=math.nan)
    good = [rate for rate, mean in known.items() if mean <= 1.05 * best]
    return math.log10(max(good) / min(good)) if good else math.nan


def judge(
    store: Store,
    executor: Executor,
    task: str,
    cells: list[Place],
    chosen: dict[tuple[str, str], Cell],
    methods: list[str],
    seeds: tuple[int, ...],
) -> list[dict[str, str]]:
    """Run every method at its rate on the seeds for judging; return a line for each cell and method."""
    final = {
        (place.name, name): [place.settings(name, task, chosen[place.name, name].lr or 0.1, seed) for seed in seeds]
        for place in cells
        for name in methods
    }
    everything = [run for runs in final.values() for run in runs]
    sweep(everything, store, name="rules", executor=executor, report=told(f"{task}: judging"))
    lines = []
    by_run = {repr(run.settings): run for run in results(store, everything, "objective")}
    for place in cells:
        measured = {name: [by_run[repr(run)] for run in final[place.name, name]] for name in methods}
        objective = {name: np.array([-run.accuracy for run in runs]) for name, runs in measured.items()}
        gap = Gap(objective[PLAIN], objective[EVERYBODY]) if {PLAIN, EVERYBODY} <= set(methods) else None
        for name, runs in measured.items():
            cell = chosen[place.name, name]
            value = Estimate.of(objective[name], [run.diverged_in for run in runs])
            share = gap.closed(objective[name]) if gap else Estimate(math.nan, math.nan, len(runs))
            more = [
                Estimate.of([run.metrics.get(metric, math.nan) for run in runs])
                for metric in ("accuracy", "accuracy_group0", "accuracy_group1", "accuracy_worst_decile")
            ]
            line = {
                "cell": place.name,
                "method": label(name),
                "lr": f"{cell.lr:.4g}",
                "at_edge": cell.at_edge or "",
                "decades_within_5_percent": f"{width(cell):.2g}",
            }
            for column, one in zip(COLUMNS, (value, share, *more), strict=True):
                line |= {column: f"{one.mean:.5g}", f"{column}_error": f"{one.error:.3g}"}
            seen = " ".join(f"{x:.6g}" for x in objective[name])
            there = str(gap.there) if gap else ""
            lines.append(line | {"has_gap": there, "diverged": str(len(value.diverged)), "objective_by_seed": seen})
    return lines


def label(name: str) -> str:
    """What a method is called in the tables."""
    rule, options = (METHODS | RIVALS)[name]
    return EVERYBODY if name == EVERYBODY else method_label(rule, **options)


def write(task: str, lines: list[dict[str, str]], out: Path) -> None:
    """Put the lines into the table of cells, in place of those of the same cell and method, and write the means."""
    path = out / f"{task}-cells.csv"
    table: dict[tuple[str, str], dict[str, str]] = {}
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            table = {(line["cell"], line["method"]): line for line in csv.DictReader(file)}
    table |= {(line["cell"], line["method"]): line for line in lines}
    write_table(path, list(lines[0]), [list(line.values()) for line in table.values()])
    objective = {key: np.array(line["objective_by_seed"].split(), dtype=float) for key, line in table.items()}
    with_gap = [cell for (cell, method), line in table.items() if method == label(PLAIN) and line["has_gap"] == "True"]
    means = []
    for method in dict.fromkeys(method for _, method in table if method != EVERYBODY):
        cells = [cell for cell in with_gap if (cell, method) in table]
        if cells:
            plain, full = ([objective[cell, of] for cell in cells] for of in (label(PLAIN), EVERYBODY))
            own = [objective[cell, method] for cell in cells]
            shares = [Gap(a, b).closed(c).mean for a, b, c in zip(plain, full, own, strict=True)]
            values, spread = np.array(shares), Estimate.of(shares)
            sums = [np.sum(parts, axis=0) for parts in (plain, own, full)]
            whole = ratio_of_means(sums[0] - sums[1], sums[0] - sums[2])
            worst, middle = float(values.min()), float(np.median(values))
            row = [spread.mean, spread.error, middle, worst, whole.mean, whole.error]
            means.append((method, len(cells), row))
    columns = ["method", "cells", "gap_closed_mean", "error_over_cells", "median", "least", "pooled", "pooled_error"]
    rows = [[method, count, *(f"{x:.4f}" for x in row)] for method, count, row in means]
    if rows:
        write_table(out / f"{task}-mean.csv", columns, rows)
    for other in (label("fedstale"), label("mifa")):
        found = list(behind(table, label("tempered"), other))
        count = sum(name == other for _, name in table)
        print(
            f"\n{task}: {label('tempered')} is behind {other} by more than the error in {len(found)} of {cells} cells"
        )
        for cell, by in found:
            print(f"  {cell}: {by.mean:.4g} ± {by.error:.2g}")
    edge = sum(bool(line["at_edge"]) for line in table.values())
    diverged = sum(int(line["diverged"]) for line in table.values())
    print(f"{task}: best rates at an edge: {edge} of {len(table)}; runs that diverged: {diverged}")
    print(f"\n{task}: gap closed over the cells that have a gap, in %")
    print(f"  {'':<18} cells   mean ± over cells   median    least   pooled ± over seeds")
    for method, count, row in sorted(means, key=lambda mean: -mean[2][0]):
        mean, error, median, least, all_cells, seeds_error = (100 * x for x in row)
        start = f"  {method:<18} {count:5d} {mean:6.1f} ± {error:<10.1f}"
        print(f"{start} {median:8.1f} {least:8.1f} {all_cells:8.1f} ± {seeds_error:.1f}")


def diverged_alone(chosen: dict[tuple[str, str], Cell], method: str) -> Iterator[tuple[str, float, str]]:
    """Cells and rates, on the seeds for choosing, at which a method diverged and another did not."""
    for (place, name), cell in chosen.items():
        for rate, mean in cell.rates.items():
            own = chosen[place, method].rates.get(rate, 0.0) if (place, method) in chosen else 0.0
            if rate is not None and math.isnan(own) and not math.isnan(mean):
                yield place, rate, name


def behind(table: dict[tuple[str, str], dict[str, str]], method: str, other: str) -> Iterator[tuple[str, Estimate]]:
    """Cells in which a method's objective is above another's by more than the standard error, seed by seed."""
    for (cell, name), line in table.items():
        if name == method and (cell, other) in table:
            own, others = (
                np.array(one["objective_by_seed"].split(), dtype=float) for one in (line, table[cell, other])
            )
            difference = Estimate.of(own - others)
            if difference.mean > difference.error:
                yield cell, difference


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, filter(None, text.split(","))))


def _names(text: str) -> list[str]:
    names = list(METHODS) if text == "main" else [*METHODS, *RIVALS] if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in METHODS | RIVALS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join([*METHODS, *RIVALS])}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=sorted(PLANS), default="digits-mlp")
    parser.add_argument("--methods", type=_names, default="main", help='"main", "all" (with the rivals), or names')
    parser.add_argument("--p-min", type=_numbers, default=P_MIN)
    parser.add_argument("--swaps", type=_numbers, default=SWAPS)
    parser.add_argument("--alphas", type=_numbers, default=ALPHAS)
    parser.add_argument("--choosing", type=int, default=len(CHOOSING), help="seeds for choosing rates")
    parser.add_argument("--judging", type=int, default=len(JUDGING), help="seeds for judging")
    parser.add_argument("--judging-from", type=int, default=JUDGING[0], help="the first of them")
    parser.add_argument(
        "--tune-in-first", action="store_true", help="choose the rates in the first cell and use them in all"
    )
    parser.add_argument("--store", type=Path, help="default: a temporary one")
    parser.add_argument("--out", type=Path, default=Path("rules"), help="folder of the two tables")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--many-clients", action="store_true", help="instead of these cells, 10 of 200 clients a round")
    parser.add_argument("--quick", action="store_true", help="four cells, one seed for choosing and three for judging")
    given = parser.parse_args()
    cells = list(places(given.p_min, given.swaps, given.alphas))
    if given.many_clients:
        cells = list(many_clients())
    if given.quick:
        cells = [*places((0.1, 0.05), (0.6, 1.0), ())]
        given.choosing, given.judging = 1, 3
    executor = processes(given.workers) if given.workers > 1 else in_process
    choosing = tuple(range(100, 100 + given.choosing))
    judging = tuple(range(given.judging_from, given.judging_from + given.judging))
    with TemporaryDirectory() as folder, Store.open(given.store or Path(folder) / "rules.db") as store:
        where = cells[:1] if given.tune_in_first else cells
        chosen = tune(store, executor, given.task, where, given.methods, choosing)
        if given.tune_in_first:
            chosen = {(cell.name, name): chosen[cells[0].name, name] for cell in cells for name in given.methods}
        for place, rate, name in diverged_alone(chosen, "tempered"):
            print(f"{given.task}: {place}, rate {rate:.4g}: tempered diverged, {name} did not")
        lines = judge(store, executor, given.task, cells, chosen, given.methods, judging)
        write(given.task, lines, given.out)


if __name__ == "__main__":
    main()
