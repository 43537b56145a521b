"""The rules compared: how much of the gap between U-FedAvg and everybody-in-every-round each of them closes.

    python benchmarks/rules.py --task mnist-logistic --store rules.db --out docs/results/rules [--workers 2]
    python benchmarks/rules.py --task digits-mlp --quick
    python benchmarks/rules.py --task mnist-cnn --p-min 0.1,0.05 --swaps 0.6,1 --alphas "" --tune-in-first

In each cell (participation × data) every method is tuned by the objective Σ α_i F_i over the clients' training data, on
the seeds for choosing; a rate at the edge of its grid is widened until it is interior, and all methods of a cell are
tried at all rates at which one of them was. Then it runs at that rate on the
seeds for judging, and only those are in the table. "Everybody" is FedAvg with all clients in every round: same seeds,
same batches. All runs go to a store: the same command, given again, goes on where it was interrupted.

Two files per task: TASK-cells.csv (every cell and method: rate, objective, accuracies, gap closed, how wide the range
of rates within 5 % of the best is) and TASK-mean.csv (every method over the cells that have a gap). Cells that the file
has already and that are not asked for again stay in it, so that a table can be made in several sittings.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedstale.analysis import Cell, Estimate, Gap, closed_over_cells, method_label
from fedstale.bench.contest import Entry, Run, Score, all_present, choose_rates, judge
from fedstale.bench.suite import log_uniform
from fedstale.simulation import Settings, make_settings
from fedstale.spreadsheet import update_table, write_table
from fedstale.store import Store
from fedstale.sweeps import SweepProgress, in_process, processes, sweep
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
    **{name: (name, {}) for name in ("fedsteer", "u-fedsteer", "fedawe", "ca-fed", "fedamd")},
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
            given = all_present(given)
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
        p = log_uniform(24, 0.02)
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


def entries(task: str, cells: list[Place], methods: list[str]) -> list[Entry]:
    """Every method in every cell."""
    return [
        Entry(place.name, name, partial(place.settings, name, task), PLANS[task].rates)
        for place in cells
        for name in methods
    ]


def told(what: str, store: Store, executor: Executor) -> Run:
    """Return what does runs and tells how it stands, at most once in ten seconds."""
    last = [0.0]

    def report(progress: SweepProgress) -> None:
        if time.monotonic() - last[0] > 10 or progress.worked == progress.work:
            last[0] = time.monotonic()
            print(f"{what}: {progress.stored + progress.done} of {progress.total} runs", file=sys.stderr, flush=True)

    return lambda wanted: sweep(wanted, store, name="rules", executor=executor, report=report)


def line(score: Score) -> dict[str, str]:
    """A line of the table of cells."""
    (place, name), cell = score.key, score.cell
    found = {
        "cell": place,
        "method": label(name),
        "lr": f"{cell.lr:.4g}",
        "at_edge": cell.at_edge or "",
        "decades_within_5_percent": f"{score.decades:.2g}",
    }
    metrics = ("accuracy", "accuracy_group0", "accuracy_group1", "accuracy_worst_decile")
    numbers = (score.objective, score.closed, *map(score.last, metrics))
    for column, one in zip(COLUMNS, numbers, strict=True):
        found |= {column: f"{one.mean:.5g}", f"{column}_error": f"{one.error:.3g}"}
    seen = " ".join(f"{x:.6g}" for x in score.by_seed)
    there = str(score.gap.there) if score.gap else ""
    return found | {"has_gap": there, "diverged": str(len(score.objective.diverged)), "objective_by_seed": seen}


def label(name: str) -> str:
    """What a method is called in the tables."""
    rule, options = (METHODS | RIVALS)[name]
    return EVERYBODY if name == EVERYBODY else method_label(rule, **options)


def write(task: str, lines: list[dict[str, str]], out: Path) -> None:
    """Put the lines into the table of cells, in place of those of the same cell and method, and write the means."""
    kept = update_table(out / f"{task}-cells.csv", lines, ("cell", "method"))
    table = {(line["cell"], line["method"]): line for line in kept}
    objective = {key: np.array(line["objective_by_seed"].split(), dtype=float) for key, line in table.items()}
    with_gap = [cell for (cell, method), line in table.items() if method == label(PLAIN) and line["has_gap"] == "True"]
    means = []
    for method in dict.fromkeys(method for _, method in table if method != EVERYBODY):
        cells = [cell for cell in with_gap if (cell, method) in table]
        if cells:
            gaps = [Gap(objective[cell, label(PLAIN)], objective[cell, EVERYBODY]) for cell in cells]
            found = closed_over_cells(gaps, [objective[cell, method] for cell in cells])
            over, pooled = found.mean, found.pooled
            row = [over.mean, over.error, found.median, found.least, pooled.mean, pooled.error]
            means.append((method, len(cells), row))
    columns = ["method", "cells", "gap_closed_mean", "error_over_cells", "median", "least", "pooled", "pooled_error"]
    rows = [[method, count, *(f"{x:.4f}" for x in row)] for method, count, row in means]
    if rows:
        write_table(out / f"{task}-mean.csv", columns, rows)
    for other in (label("fedstale"), label("mifa")):
        lost = list(behind(table, label("tempered"), other))
        count = sum(name == other for _, name in table)
        print(f"\n{task}: {label('tempered')} is behind {other} by more than the error in {len(lost)} of {count} cells")
        for cell, by in lost:
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
        run = told(f"{given.task}: choosing rates", store, executor)
        chosen = choose_rates(entries(given.task, where, given.methods), choosing, store, run, same_rates=True).cells
        if given.tune_in_first:
            chosen = {(cell.name, name): chosen[cells[0].name, name] for cell in cells for name in given.methods}
        for place, rate, name in diverged_alone(chosen, "tempered"):
            print(f"{given.task}: {place}, rate {rate:.4g}: tempered diverged, {name} did not")
        final = {
            entry.key: [entry.settings(chosen[entry.key].lr or 0.1, seed) for seed in judging]
            for entry in entries(given.task, cells, given.methods)
        }
        run = told(f"{given.task}: judging", store, executor)
        scores = judge(final, chosen, store, run, plain=PLAIN, everybody=EVERYBODY)
        write(given.task, [line(score) for score in scores], given.out)


if __name__ == "__main__":
    main()
