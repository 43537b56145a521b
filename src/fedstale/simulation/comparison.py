"""Methods side by side on one setting: same participants, same batches, several seeds."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..checks import Float, fail, positive_int
from ..rules import OPTIMIZERS, RULES
from ..tasks.quadratic import Quadratic
from ..tasks.swap import swap_text
from .build import build, make_participation, make_task
from .loop import Callback
from .run import Result, result
from .settings import Settings


@dataclass(frozen=True)
class Method:
    """A rule with its β and its memory, and what it is called."""

    rule: str
    beta: float | str | None = None
    memory: str | None = None
    """Where stale updates live, if not where the setting says."""

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        name, plus, optimizer = self.rule.partition("+")
        label = LABELS.get(name, name) + plus + optimizer + ("" if self.beta is None else f" β={self.beta}")
        return label if self.memory is None else f"{label}, {self.memory}"


LABELS = {
    "fedavg": "FedAvg",
    "u-fedavg": "U-FedAvg",
    "fedvarp": "FedVARP",
    "u-fedvarp": "U-FedVARP",
    "fedstale": "FedStale",
    "fedau": "FedAU",
    "mifa": "MIFA",
    "mifa-wait": "MIFA, waiting",
    "fedlaavg": "FedLaAvg",
    "afa-cd": "AFA-CD",
    "afa-cs": "AFA-CS",
    "scaffold": "SCAFFOLD",
    "svrg": "SVRG",
    "scsg": "SCSG",
    "sarah": "SARAH",
    "spider": "SPIDER",
    "fedprox": "FedProx",
    "feddyn": "FedDyn",
}
DEFAULT = (
    Method("fedavg"),
    Method("u-fedavg"),
    Method("fedvarp"),
    Method("u-fedvarp"),
    Method("fedstale", 0.5),
    Method("fedstale", "auto"),
)
ALL = (
    *(Method(name) for name in RULES if name != "fedstale"),
    Method("fedstale", 0.5),
    Method("fedstale", "auto"),
    Method("fedstale", "auto-per-client"),
    Method("fedstale", "auto", "clustered:4"),
    Method("fedstale", "auto", "lowrank:4"),
    *(Method(f"fedstale+{name}", "auto") for name in OPTIMIZERS),
)
"""Every method by its default, the approximate memories, and FedStale with each server optimiser."""


@dataclass(frozen=True)
class Cell:
    """Mean and standard error over seeds of one metric of one method."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Cell:
        """NaN where nothing was measured; the error needs two seeds."""
        good = np.array([value for value in values if np.isfinite(value)])
        if not good.size:
            return cls(float("nan"), float("nan"), 0)
        error = float(good.std(ddof=1) / np.sqrt(good.size)) if good.size > 1 else float("nan")
        return cls(float(good.mean()), error, int(good.size))

    def __format__(self, spec: str) -> str:
        """Mean ± error, each by the given format."""
        if np.isnan(self.mean):
            return "–"
        return f"{self.mean:{spec}}" + ("" if np.isnan(self.error) else f" ± {self.error:{spec}}")


@dataclass
class Comparison:
    """The results of a comparison, by method and seed."""

    settings: Settings
    methods: Sequence[Method]
    seeds: Sequence[int]
    results: dict[Method, dict[int, Result]] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """What methods are compared by: the test accuracy, or the excess loss of a quadratic."""
        first = next(iter(next(iter(self.results.values())).values()))
        return "accuracy" if "accuracy" in first.metrics else "excess_loss"

    def cell(self, method: Method, metric: str, how: str = "final") -> Cell:
        """A metric of a method over the seeds: "final", "tail" (mean of the last tenth) or "sum" over the run."""
        values = []
        for run in self.results.get(method, {}).values():
            if how == "sum":
                values.append(float(np.nansum(run.metrics.get(metric, np.array([np.nan])))))
            else:
                values.append(run.tail(metric) if how == "tail" else run.final(metric))
        return Cell.of(values)

    @property
    def swap_text(self) -> str:
        """The label swap, with the shares of labels that it came to in training and test, means over the seeds."""
        first = self.methods[0]
        return swap_text(self.settings.swap, *(self.cell(first, name).mean for name in ("swap_train", "swap_test")))

    def curve(self, method: Method, metric: str) -> tuple[Float, Float, Float]:
        """Rounds, mean and standard error of a metric over the seeds, at the rounds it was measured."""
        runs = list(self.results[method].values())
        length = max(len(run.metrics.get(metric, ())) for run in runs)
        table = np.full((len(runs), length), np.nan)
        for k, run in enumerate(runs):
            values = run.metrics.get(metric, np.array([]))
            table[k, : len(values)] = values
        at = np.flatnonzero(np.isfinite(table).any(axis=0))
        count = np.isfinite(table[:, at]).sum(axis=0)
        mean = np.nanmean(table[:, at], axis=0)
        spread = np.sqrt(np.nansum((table[:, at] - mean) ** 2, axis=0) / np.maximum(count - 1, 1) / count)
        return at.astype(np.float64) + 1, mean, np.where(count > 1, spread, np.nan)

    def rows(self) -> list[dict[str, Cell | str]]:
        """The table: one row per method."""
        rows: list[dict[str, Cell | str]] = []
        for method in self.methods:
            if method not in self.results:
                continue
            rows.append(
                {
                    "method": method.label,
                    self.metric: self.cell(method, self.metric, "tail"),
                    "group 0": self.cell(method, "accuracy_group0", "tail"),
                    "group 1": self.cell(method, "accuracy_group1", "tail"),
                    "beta": self.cell(method, "beta", "tail"),
                    "bytes": self.cell(method, "bytes_up", "sum"),
                    "bytes down": self.cell(method, "bytes_down", "sum"),
                    "server bytes": self.cell(method, "server_bytes"),
                    "rounds lost": self.cell(method, "rounds_lost"),
                    "seconds": self.cell(method, "seconds", "sum"),
                }
            )
        return rows

    def to_csv(self, path: Path) -> None:
        """Write mean, standard error and number of seeds of every column."""
        from ..durable import replacing

        rows = self.rows()
        with replacing(path) as whole, open(whole, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            names = [name for name in rows[0] if name != "method"]
            writer.writerow(["method", *(f"{name}{part}" for name in names for part in ("", " error", " seeds"))])
            for row in rows:
                line: list[object] = [row["method"]]
                for name in names:
                    cell = row[name]
                    if isinstance(cell, Cell):
                        line += [cell.mean, cell.error, cell.count]
                writer.writerow(line)


def compare(
    chosen: Settings,
    methods: Sequence[Method] = DEFAULT,
    seeds: int = 3,
    *,
    callbacks: Callable[[Method, int], Sequence[Callback]] = lambda method, seed: (),
    after: Callable[[Comparison], None] = lambda comparison: None,
) -> Comparison:
    """Run every method on the same setting, the same participants and the same batches, for several seeds.

    Parameters
    ----------
    chosen
        The setting; its rule, β and seed are replaced.
    methods
        What is compared.
    seeds
        How many: chosen.seed, chosen.seed + 1, …
    callbacks
        Further callbacks for each run.
    after
        Called after each run, for a live table.
    """
    positive_int("seeds", seeds)
    if not methods:
        raise fail("methods", methods, "there must be at least one method to compare")
    every = range(chosen.seed, chosen.seed + seeds)
    comparison = Comparison(chosen, methods, every)
    engine = None
    for seed in every:
        here = chosen.but(seed=seed)
        participation = make_participation(here)
        task = make_task(here, participation)
        for method in methods:
            memory = method.memory or here.memory
            one = here.but(rule=method.rule, beta=method.beta, memory=memory, engine=engine or here.engine)
            simulation = build(one, task=task, participation=participation, callbacks=callbacks(method, seed))
            reason = simulation.run()
            if not isinstance(task, Quadratic):  # what "auto" chose once serves all: the same arithmetic for everyone
                engine = simulation.trainer.engine.chosen  # type: ignore[attr-defined]
            comparison.results.setdefault(method, {})[seed] = result(simulation, reason, method.label)
            after(comparison)
    return comparison
