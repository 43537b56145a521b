"""Methods side by side on one setting: same participants, same batches, several seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import Cell, Estimate, Gap, Measured, method_label
from ..analysis.methods import EVERYBODY as EVERYBODY_LABEL
from ..analysis.metrics import main_metric
from ..checks import fail, positive_int
from ..configs import Config
from ..participation import Bernoulli, Participation
from ..rules import OPTIMIZERS, RULES
from ..spreadsheet import write_table
from ..tasks.label_swap import swap_text
from ..tasks.quadratic import Quadratic
from .build import build, make_participation, make_task
from .loop import Callback
from .run import Result, result
from .settings import Settings


@dataclass(frozen=True)
class Method:
    """A rule with its β and its memory, and what it is called; or the limit, all clients in every round."""

    rule: Config
    beta: Config = None
    memory: str | None = None
    """Where stale updates live, if not where the setting says."""
    everybody: bool = False
    """Whether all clients take part in every round: what no method can have, same seeds and batches."""

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        return EVERYBODY_LABEL if self.everybody else method_label(self.rule, self.beta, self.memory)


EVERYBODY = Method("fedavg", everybody=True)
"""The yardstick: FedAvg with every client in every round."""
_PLAIN = Method("u-fedavg")
"""Corrects for absence and remembers nothing: where the gap begins that a memory may close."""
DEFAULT = (
    Method("fedavg"),
    _PLAIN,
    Method("fedvarp"),
    Method("fedstale", "auto"),
    Method("tempered"),
    EVERYBODY,
)
ALL = (
    *(Method(name) for name in RULES if name != "fedstale"),
    Method("fedstale", 0.5),
    Method("fedstale", "auto"),
    Method("fedstale", "auto-per-client"),
    Method("fedstale", "auto", "clustered:4"),
    Method("fedstale", "auto", "lowrank:4"),
    *(Method(f"fedstale+{name}", "auto") for name in OPTIMIZERS),
    EVERYBODY,
)
"""Every method by its default, the approximate memories, and FedStale with each server optimiser."""


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
        known = {name for runs in self.results.values() for run in runs.values() for name in run.metrics}
        # Where it diverged before anything was evaluated, the task tells.
        return main_metric(known) or ("excess_loss" if self.settings.task == "quadratic" else "accuracy")

    def cell(self, method: Method) -> Cell:
        """The runs of a method so far, one per seed."""
        metric = self.metric
        return Cell(
            tuple(
                Measured(
                    self.settings.model_copy(update={"seed": seed}), run.tail(metric), {}, run.diverged_in, run=run
                )
                for seed, run in self.results.get(method, {}).items()
            ),
            self.settings.lr,
        )

    @property
    def swap_text(self) -> str:
        """The label swap, with the shares of labels that it came to in training and test, means over the seeds."""
        runs = [run for runs in self.results.values() for run in runs.values()]
        shares = [[run.final(name) for run in runs] for name in ("swap_train", "swap_test")]
        # Of the data, the same for every method: a run that diverged before it was evaluated does not hide them.
        known = [[share for share in found if not np.isnan(share)] for found in shares]
        return swap_text(self.settings.swap, *(float(np.mean(found)) if found else float("nan") for found in known))

    def gap_closed(self, method: Method) -> Estimate | None:
        """Share of the gap between U-FedAvg and everybody that a method closes; None where the two were not compared.

        The methods share one learning rate here; `benchmarks/rules.py` tunes one for each.
        """
        if not {_PLAIN, EVERYBODY} <= self.results.keys() or method == EVERYBODY:
            return None
        columns = [[run.tail("objective") for run in self.results[one].values()] for one in (_PLAIN, EVERYBODY, method)]
        if len(set(map(len, columns))) > 1 or np.isnan(columns).any():
            return None
        return Gap(np.array(columns[0]), np.array(columns[1])).closed(columns[2])

    def rows(self) -> list[dict[str, Estimate | str]]:
        """The table: one row per method, those of which a seed diverged last."""
        known = [method for method in self.methods if method in self.results]
        cells = {method: self.cell(method) for method in known}
        ranked = sorted(known, key=lambda method: bool(cells[method].estimate.diverged))
        return [self._row(method, cells[method]) for method in ranked]

    def _row(self, method: Method, cell: Cell) -> dict[str, Estimate | str]:
        return {
            "method": method.label,
            self.metric: cell.over_seeds(self.metric),
            "objective": cell.over_seeds("objective"),
            "gap closed": self.gap_closed(method) or Estimate(float("nan"), float("nan")),
            "group 0": cell.over_seeds("accuracy_group0"),
            "group 1": cell.over_seeds("accuracy_group1"),
            "beta": cell.over_seeds("beta"),
            "bytes": cell.over_seeds("bytes_up", "sum"),
            "bytes down": cell.over_seeds("bytes_down", "sum"),
            "server bytes": cell.over_seeds("server_bytes", "final"),
            "rounds lost": cell.over_seeds("rounds_lost", "final"),
            "seconds": cell.over_seeds("seconds", "sum"),
        }

    def records(self) -> list[dict[str, Any]]:
        """The table as plain values: mean, standard error and number of seeds of every column.

        A method of which seeds diverged has no means; "diverged in" has the round of each such seed.
        """
        found = []
        for row in self.rows():
            flat: dict[str, Any] = {}
            for name, value in row.items():
                if isinstance(value, str):
                    flat[name] = value
                else:
                    flat |= {name: value.mean, f"{name} error": value.error, f"{name} seeds": value.count}
                    flat["diverged in"] = list(value.diverged)
            found.append(flat)
        return found

    def to_csv(self, path: Path) -> None:
        """Write `records`, one line per method."""
        records = self.records()
        lines = ({**record, "diverged in": " ".join(map(str, record["diverged in"]))}.values() for record in records)
        write_table(path, records[0], lines)


def compare(
    settings: Settings,
    methods: Sequence[Method] = DEFAULT,
    seeds: int = 3,
    *,
    callbacks: Callable[[Method, int], Sequence[Callback]] = lambda method, seed: (),
    after: Callable[[Comparison], None] = lambda comparison: None,
) -> Comparison:
    """Run every method on the same setting, the same participants and the same batches, for several seeds.

    Parameters
    ----------
    settings
        The setting; its rule, β and seed are replaced.
    methods
        What is compared.
    seeds
        How many: settings.seed, settings.seed + 1, …
    callbacks
        Further callbacks for each run.
    after
        Called after each run, for a live table.
    """
    positive_int("seeds", seeds)
    if not methods:
        raise fail("methods", methods, "there must be at least one method to compare")
    every = range(settings.seed, settings.seed + seeds)
    comparison = Comparison(settings, methods, every)
    engine = None
    for seed in every:
        here = settings.replace(seed=seed)
        participation = make_participation(here)
        task = make_task(here, participation)
        for method in methods:
            memory = method.memory or here.memory
            own = here.replace(rule=method.rule, beta=method.beta, memory=memory, engine=engine or here.engine)
            who = participation
            if method.everybody:
                who = Participation(Bernoulli(np.ones(task.num_clients)))
            simulation = build(own, task=task, participation=who, callbacks=callbacks(method, seed))
            reason = simulation.run()
            if not isinstance(
                task, Quadratic
            ):  # what "fastest" chose once serves all: the same arithmetic for everyone
                engine = simulation.trainer.engine.resolved_name  # type: ignore[attr-defined]
            comparison.results.setdefault(method, {})[seed] = result(simulation, reason, method.label)
            after(comparison)
    return comparison
