"""The results of methods side by side on one setting: the table, the picture, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import configs
from ..analysis import Cell, Estimate, Gap, MeasuredRun
from ..analysis.axes import ROUND
from ..analysis.metrics import main_metric
from ..analysis.target import cost_to_target
from ..checks import choose, counted
from ..spreadsheet import data_frame, write_table
from ..tasks.label_swap import swap_text
from .methods import EVERYBODY, PLAIN, Method
from .run import Result
from .settings import ROUNDS, Settings

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass(repr=False)
class Comparison:
    """The results of a comparison, by method and seed; `print` shows its table, and so does a notebook.

    Attributes
    ----------
    settings
        What all methods share.
    methods, seeds
        What was compared.
    results
        The runs, by method and seed; `comparison["FedAvg"]` are those of a method by its name.
    """

    settings: Settings
    methods: Sequence[Method]
    seeds: Sequence[int]
    results: dict[Method, dict[int, Result]] = field(default_factory=dict)
    groups: str = ""
    """Who is frequent and who is rare: sizes and ranges of p"""
    target: float | None = None
    """With one, the table says what it cost to reach it: rounds, virtual seconds and bytes"""

    def __repr__(self) -> str:
        """One line: the task, and how much was compared."""
        rounds = counted(self.settings.total_rounds, "round")
        extent = f"{counted(len(self.methods), 'method')}, {counted(len(self.seeds), 'seed')}, {rounds}"
        return f"<Comparison {self.settings.task_name}: {extent}>"

    def __str__(self) -> str:
        """The table as text, 80 columns wide."""
        from .comparison_table import as_text

        return as_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table for a terminal: all columns where they have room."""
        from .comparison_table import as_rich

        yield as_rich(self, options.max_width)

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        from .comparison_table import as_html

        return as_html(self)

    def __getitem__(self, label: str) -> dict[int, Result]:
        """The runs of a method by seed; the method by what it is called in the table."""
        return choose("method", label, {method.label: runs for method, runs in self.results.items()})

    @property
    def done(self) -> int:
        """How many runs there are."""
        return sum(len(runs) for runs in self.results.values())

    @property
    def total(self) -> int:
        """How many runs there will be."""
        return len(self.methods) * len(self.seeds)

    @property
    def metric(self) -> str:
        """What methods are compared by: the test accuracy, the excess loss of a quadratic, or the test loss."""
        known = {name for runs in self.results.values() for run in runs.values() for name in run.metrics}
        # Where it diverged before anything was evaluated, the task tells.
        return main_metric(known) or ("excess_loss" if self.settings.task == "quadratic" else "accuracy")

    def cell(self, method: Method) -> Cell:
        """The runs of a method so far, one per seed."""
        metric = self.metric
        return Cell(
            tuple(
                MeasuredRun(
                    self.settings.model_copy(update={"seed": seed}), run.tail(metric), {}, run.diverged_in, run=run
                )
                for seed, run in self.results.get(method, {}).items()
            ),
            self.settings.lr,
        )

    @property
    def participation_text(self) -> str:
        """Who shows up."""
        if self.settings.participation == "two-groups":
            return f"p_min {self.settings.p_min:g}"
        return f"participation {configs.text(self.settings.participation)}"

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
        if not {PLAIN, EVERYBODY} <= self.results.keys() or method == EVERYBODY:
            return None
        columns = [[run.tail("objective") for run in self.results[one].values()] for one in (PLAIN, EVERYBODY, method)]
        if len(set(map(len, columns))) > 1 or np.isnan(columns).any():
            return None
        return Gap(np.array(columns[0]), np.array(columns[1])).closed(columns[2])

    def cost(self, method: Method) -> dict[str, Estimate]:
        """What the target cost a method; nothing where there is no target, NaN where a seed did not reach it."""
        if self.target is None:
            return {}
        runs = self.results.get(method, {}).values()
        costs = [cost_to_target(run.metrics, self.metric, self.target) for run in runs if self.metric in run.metrics]
        reached = [cost for cost in costs if cost is not None]
        whole = len(reached) == len(runs)
        names = {"rounds": "rounds", "seconds": "virtual seconds", "bytes": "bytes"}
        return {
            f"{title} to target": Estimate.of([getattr(cost, name) for cost in reached] if whole else [])
            for name, title in names.items()
        }

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
            "group 0": cell.over_seeds(f"{self.metric}_group0"),
            "group 1": cell.over_seeds(f"{self.metric}_group1"),
            "worst tenth": cell.over_seeds(f"{self.metric}_worst_decile"),
            "beta": cell.over_seeds("beta"),
            "bytes": cell.over_seeds("bytes_up", "sum"),
            "bytes down": cell.over_seeds("bytes_down", "sum"),
            "server bytes": cell.over_seeds("server_bytes", "final"),
            "rounds lost": cell.over_seeds("rounds_lost", "final"),
            "seconds": cell.over_seeds("seconds", "sum"),
            **(self._in_time(cell) if self.settings.server != ROUNDS else {}),
            **self.cost(method),
        }

    @staticmethod
    def _in_time(cell: Cell) -> dict[str, Estimate | str]:
        """How long it took on the clock, and what became of the devices' work."""
        return {
            "virtual seconds": cell.over_seeds("virtual_seconds", "final"),
            "late": cell.over_seeds("late", "sum"),
            "lost": cell.over_seeds("lost", "sum"),
            "wasted seconds": cell.over_seeds("wasted_seconds", "sum"),
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

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame with every column, by method."""
        records = self.records()
        return data_frame({name: [record[name] for record in records] for name in records[0]}, index="method")

    def plot(self, metric: str | None = None, ax: Any = None, *, x: str = ROUND) -> Any:
        """Draw a metric of every method over the rounds or another axis, mean and standard error, and return the axes.

        Parameters
        ----------
        metric
            Its name, or "gap closed" for bars; default: the test accuracy, or the excess loss of a quadratic.
        ax
            The Matplotlib axes to draw on; default: new ones.
        x
            "round", "bytes" (sent both ways), "seconds" (of computing) or "virtual_seconds" (of a simulation's clock).
        """
        from ..plots import plot_bars, plot_curves

        if metric == "gap closed":
            closed = {method.label: self.gap_closed(method) for method in self.results}
            return plot_bars({label: gap for label, gap in closed.items() if gap is not None}, ax)
        metric = metric or self.metric
        curves = {method.label: self.cell(method).curve(metric, x) for method in self.results}
        return plot_curves(curves, metric, ax, x)

    def save(self, folder: str | Path) -> list[Path]:
        """Write the table (comparison.csv) and the picture (PNG and SVG) to a folder, and return the files."""
        from ..figures import comparison_picture

        table = Path(folder) / "comparison.csv"
        self.to_csv(table)
        return [table, *comparison_picture(self, Path(folder) / "comparison")]

    def summary(self) -> list[str]:
        """What the numbers say, in sentences."""
        from .summary import sentences

        return sentences(self)

    def to_csv(self, path: Path) -> None:
        """Write `records`, one line per method."""
        records = self.records()
        lines = ({**record, "diverged in": " ".join(map(str, record["diverged in"]))}.values() for record in records)
        write_table(path, records[0], lines)
