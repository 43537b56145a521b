"""The rules compared: how much of the gap between U-FedAvg and everybody-in-every-round each of them closes.

    python benchmarks/rules.py --task mnist-logistic --store rules.db --out docs/results/rules [--workers 2]
    python benchmarks/rules.py --task digits-mlp --quick

In each cell (participation × data) every method is tuned by the objective Σ α_i F_i over the clients' training data, on
the seeds for choosing; a rate at the edge of its grid is widened until it is interior. Then it runs at that rate on the
seeds for judging, and only those are in the table. "Everybody" is FedAvg with all clients in every round: same seeds,
same batches. All runs go to a store: the same command, given again, goes on where it was interrupted.

Two files per task: TASK-cells.csv (every cell and method: rate, objective, accuracies, gap closed, how wide the range
of rates within 5 % of the best is) and TASK-mean.csv (every method over the cells that have a gap).
"""

from __future__ import annotations

import argparse
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

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fedavg", {}),
    ("u-fedavg", {}),
    ("fedvarp", {}),
    ("u-fedvarp", {}),
    ("fedstale", {"beta": "auto"}),
    ("mifa", {}),
    ("tempered", {}),
)
EVERYBODY, PLAIN = "everybody", "u-fedavg"
P_MIN = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
SWAPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ALPHAS = (0.1, 0.3, 1.0)
RATES = {"digits-mlp": (10**-0.5, 0.1, 10**-1.5), "mnist-logistic": (0.1, 10**-1.5, 0.01), "mnist-mlp": (0.1, 10**-1.5)}
CHOOSING, JUDGING = (100, 101), (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Place:
    """A cell: who comes, and whose data differ how."""

    name: str
    rounds: int
    setting: tuple[tuple[str, Any], ...]

    def settings(self, method: str, options: dict[str, Any], task: str, lr: float, seed: int) -> Settings:
        """Return the settings of one run; "everybody" is FedAvg in which all clients come in every round."""
        given: dict[str, Any] = dict(self.setting)
        if method == EVERYBODY:
            method = "fedavg"
            given |= {"participation": "two-groups", "p_min": 1.0, "participation_options": {}}
        return make_settings(
            task=task, rule=method, lr=lr, seed=seed, rounds=self.rounds, evaluate_every=max(1, self.rounds // 20),
            **given, **options,
        )  # fmt: skip


def places(p_mins: tuple[float, ...], swaps: tuple[float, ...], alphas: tuple[float, ...]) -> Iterator[Place]:
    """The paper's cells, then Dirichlet data with two groups and with log-uniform p_i."""
    for p_min in p_mins:
        rounds = math.ceil(10 / p_min - 1e-9)
        for swap in swaps:
            yield Place(f"p_min {p_min:g}, swap {swap:g}", rounds, (("p_min", p_min), ("swap", swap)))
        if p_min in (0.1, 0.02) or len(p_mins) == 1:
            for alpha in alphas:
                data = (("p_min", p_min), ("partition", "dirichlet"), ("partition_options", {"alpha": alpha}))
                yield Place(f"p_min {p_min:g}, Dirichlet {alpha:g}", rounds, data)
    if alphas and 0.02 in p_mins:
        p = np.exp(np.random.default_rng(1).uniform(np.log(0.02), 0.0, 24)).tolist()
        who: tuple[tuple[str, Any], ...] = (("participation", "bernoulli"), ("participation_options", {"p": p}))
        for alpha in alphas:
            parts = (("partition", "dirichlet"), ("partition_options", {"alpha": alpha}))
            yield Place(f"p log-uniform .02 to 1, Dirichlet {alpha:g}", 500, who + parts)


def tune(
    store: Store, executor: Executor, task: str, cells: list[Place], rates: tuple[float, ...], seeds: tuple[int, ...]
) -> dict[tuple[str, str], Cell]:
    """Best interior rate of every method in every cell, on the seeds for choosing."""
    first: dict[str, tuple[str, str]] = {}
    runs = []
    for place in cells:
        for name, options in (*METHODS, (EVERYBODY, {})):
            own = [place.settings(name, options, task, lr, seed) for lr in rates for seed in seeds]
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


def judge(store: Store, executor: Executor, task: str, cells: list[Place], rates: tuple[float, ...],
          choosing: tuple[int, ...], judging: tuple[int, ...], out: Path) -> None:  # fmt: skip
    chosen = tune(store, executor, task, cells, rates, choosing)
    final = {
        (place.name, name): [
            place.settings(name, options, task, chosen[place.name, name].lr or 0.1, s) for s in judging
        ]
        for place in cells
        for name, options in (*METHODS, (EVERYBODY, {}))
    }
    everything = [run for runs in final.values() for run in runs]
    sweep(everything, store, name="rules", executor=executor, report=told(f"{task}: judging"))
    lines, closed = [], dict[str, list[Estimate]]()
    pooled: dict[str, list[tuple[Any, Any]]] = {}
    by_run = {repr(run.settings): run for run in results(store, everything, "objective")}
    for place in cells:
        names = (*dict(METHODS), EVERYBODY)
        measured = {name: [by_run[repr(run)] for run in final[place.name, name]] for name in names}
        objective = {name: np.array([-run.accuracy for run in runs]) for name, runs in measured.items()}
        gap = Gap(objective[PLAIN], objective[EVERYBODY])
        for name, runs in measured.items():
            cell, share = chosen[place.name, name], gap.closed(objective[name])
            if gap.there and name != EVERYBODY:
                closed.setdefault(name, []).append(share)
                pooled.setdefault(name, []).append((gap.plain - objective[name], gap.plain - gap.everybody))
            label = EVERYBODY if name == EVERYBODY else method_label(name, dict(METHODS)[name].get("beta"))
            value = Estimate.of(objective[name], [run.diverged_in for run in runs])
            more = [
                Estimate.of([run.metrics.get(metric, math.nan) for run in runs])
                for metric in ("accuracy", "accuracy_group0", "accuracy_group1", "accuracy_worst_decile")
            ]
            numbers = [item for one in (value, share, *more) for item in (f"{one.mean:.5g}", f"{one.error:.3g}")]
            line = [place.name, label, f"{cell.lr:.4g}", cell.at_edge or "", f"{width(cell):.2g}", *numbers]
            lines.append([*line, gap.there, len(value.diverged)])
    shown = ("objective", "gap_closed", "accuracy", "accuracy_often", "accuracy_rare", "accuracy_worst_decile")
    columns = [item for name in shown for item in (name, f"{name}_error")]
    head = ["cell", "method", "lr", "at_edge", "decades_within_5_percent", *columns, "has_gap", "diverged"]
    write_table(out / f"{task}-cells.csv", head, lines)
    means = [_mean(name, closed[name], pooled[name]) for name in closed]
    columns = ["method", "gap_closed_mean", "error_over_cells", "median", "least", "pooled", "pooled_error"]
    write_table(out / f"{task}-mean.csv", columns, [[name, *(f"{x:.4f}" for x in row)] for name, row in means])
    print(f"\n{task}: gap closed over the {len(closed.get(PLAIN, []))} of {len(cells)} cells that have a gap, in %")
    print(f"  {'':<18}   mean ± over cells   median    least   pooled ± over seeds")
    for label, row in sorted(means, key=lambda mean: -mean[1][0]):
        mean, error, median, least, whole, whole_error = (100 * x for x in row)
        print(f"  {label:<18} {mean:6.1f} ± {error:<10.1f} {median:8.1f} {least:8.1f} {whole:8.1f} ± {whole_error:.1f}")


def _mean(name: str, shares: list[Estimate], parts: list[tuple[Any, Any]]) -> tuple[str, list[float]]:
    """A method over the cells: mean and error over cells, median, least; and the sums over cells, as one gap."""
    values = np.array([share.mean for share in shares])
    whole = ratio_of_means(sum(part for part, _ in parts), sum(whole for _, whole in parts))
    label = method_label(name, dict(METHODS)[name].get("beta"))
    spread = Estimate.of(values)
    return label, [spread.mean, spread.error, float(np.median(values)), float(values.min()), whole.mean, whole.error]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, filter(None, text.split(","))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=sorted(RATES), default="digits-mlp")
    parser.add_argument("--p-min", type=lambda text: tuple(map(float, text.split(","))), default=P_MIN)
    parser.add_argument("--swaps", type=lambda text: tuple(map(float, text.split(","))), default=SWAPS)
    parser.add_argument(
        "--alphas", type=lambda text: tuple(map(float, text.split(","))) if text else (), default=ALPHAS
    )
    parser.add_argument("--choosing", type=int, default=len(CHOOSING), help="seeds for choosing rates")
    parser.add_argument("--judging", type=int, default=len(JUDGING), help="seeds for judging")
    parser.add_argument("--judging-from", type=int, default=JUDGING[0], help="the first of them")
    parser.add_argument("--store", type=Path, help="default: a temporary one")
    parser.add_argument("--out", type=Path, default=Path("rules"), help="folder of the two tables")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="four cells, one seed for choosing and three for judging")
    given = parser.parse_args()
    cells = list(places(given.p_min, given.swaps, given.alphas))
    if given.quick:
        cells = [*places((0.1, 0.05), (0.6, 1.0), ())]
        given.choosing, given.judging = 1, 3
    executor = processes(given.workers) if given.workers > 1 else in_process
    with TemporaryDirectory() as folder, Store.open(given.store or Path(folder) / "rules.db") as store:
        seeds = (
            tuple(range(100, 100 + given.choosing)),
            tuple(range(given.judging_from, given.judging_from + given.judging)),
        )
        judge(store, executor, given.task, cells, RATES[given.task], *seeds, given.out)


if __name__ == "__main__":
    main()
