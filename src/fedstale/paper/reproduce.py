"""One command per figure: run what is missing, draw what is there, say what was left out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..checks import fail
from ..simulation.settings import Settings
from ..store import Store
from ..sweeps import Measured, Progress, results, sweep, write_csv
from ..sweeps.executors import Executor, in_process
from . import claims, curves, fig1, heatmaps
from .grids import Extent
from .table import Table

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5")
WHAT = (*FIGURES, "claims", "all")
QUICK_FIG1_RUNS = 3


@dataclass
class Reproduction:
    """What a command made.

    Attributes
    ----------
    files
        Pictures and tables.
    claims
        The rows of the table of claims, where it was asked for.
    left_out
        What the paper has and this reproduction has not.
    progress
        Of each sweep.
    """

    files: list[Path] = field(default_factory=list)
    claims: list[claims.Claim] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)


@dataclass
class Reproducer:
    """Runs and draws.

    Parameters
    ----------
    store
        Where runs are kept.
    folder
        Where figures go.
    extent
        How much of the paper's grid is run.
    fig1_runs
        Runs of Figure 1 (d).
    executor
        Where runs are done.
    run
        False draws what the store has and runs nothing.
    report
        Told the name and the progress of every sweep.
    """

    store: Store
    folder: Path
    extent: Extent
    fig1_runs: int = fig1.RUNS
    executor: Executor = in_process
    run: bool = True
    report: Callable[[str, Progress], None] = lambda name, progress: None
    made: Reproduction = field(default_factory=Reproduction)

    def reproduce(self, what: str) -> Reproduction:
        """Make one of `WHAT`."""
        if what not in WHAT:
            raise fail("figure", what, f"must be one of {', '.join(WHAT)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        if what == "fig1":
            self.fig1()
        elif what in FIGURES:
            getattr(self, what)()
        else:
            self.everything(draw=what == "all")
        if what != "fig1":
            self.made.left_out = [*self.extent.left_out(), *self.made.left_out]
        if self.fig1_runs < fig1.RUNS and what in ("fig1", "claims", "all"):
            self.made.left_out.append(f"{fig1.RUNS - self.fig1_runs} of {fig1.RUNS} runs of Figure 1 (d)")
        return self.made

    def _note(self, runs: Sequence[Settings], measured: Sequence[Measured]) -> str:
        """Say what stands below a figure: what was left out of the paper's grid, and what is missing of the rest."""
        out = self.extent.left_out()
        absent = len(runs) - len(measured)
        if absent:
            out.append(f"{absent:,} of {len(runs):,} runs, which are not in the store")
            if out[-1] not in self.made.left_out:
                self.made.left_out.append(out[-1])
        return f"left out of the paper's grid: {'; '.join(out)}" if out else ""

    def fig1(self) -> None:
        """Figure 1."""
        self._sweep("fig1", fig1.runs(self.fig1_runs))
        self.made.files += fig1.draw(self.store, self.folder, self.fig1_runs)

    def fig2(self) -> None:
        """Figure 2, and the runs behind it."""
        runs = self.extent.fig2()
        measured = self._measured("fig2", runs)
        note = self._note(runs, measured)
        self.made.files += heatmaps.fig2(Table(measured), self.folder, self.extent.task, note)
        path = self.folder / f"fig2-{self.extent.task}-runs.csv"
        write_csv(path, measured)
        self.made.files.append(path)

    def fig3(self) -> None:
        """Figure 3: a column of Figure 2."""
        self._line("fig3", self.extent.fig3(), curves.fig3)

    def fig4(self) -> None:
        """Figure 4: a row of Figure 2."""
        self._line("fig4", self.extent.fig4(), curves.fig4)

    def fig5(self) -> None:
        """Figure 5."""
        runs = {source: self.extent.fig5(source) for source in ("known", "fedau")}
        found = {source: self._measured("fig5", listed) for source, listed in runs.items()}
        note = self._note([*runs["known"], *runs["fedau"]], [*found["known"], *found["fedau"]])
        known, estimated = (Table(measured) for measured in found.values())
        self.made.files += heatmaps.fig5(known, estimated, self.folder, self.extent.task, note)

    def everything(self, *, draw: bool) -> None:
        """All figures and the table of claims, or the table alone."""
        if draw:
            for name in FIGURES:
                getattr(self, name)()
        elif self.run:
            self._sweep("fig1", fig1.runs(self.fig1_runs))
            self._sweep("fig2", self.extent.fig2())
            self._sweep("fig5", self.extent.fig5("fedau"))
        runs, guessed = self.extent.fig2(), self.extent.fig5("fedau")
        measured, found = results(self.store, runs), results(self.store, guessed)
        self._note([*runs, *guessed], [*measured, *found])
        known, estimated = Table(measured), Table(found)
        self.made.claims = [
            claims.fig1_claim(fig1.curves(self.store, self.fig1_runs)),
            *claims.fig2_claims(known),
            *claims.fig34_claims(known),
            *claims.fig5_claims(known, estimated),
            *claims.auto_claims(known),
        ]
        self._write_claims()

    def _write_claims(self) -> None:
        stem = self.folder / f"claims-{self.extent.task}"
        stem.with_suffix(".md").write_text(claims.markdown(self.made.claims), encoding="utf-8")
        with open(stem.with_suffix(".csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["claim", "measured", "verdict"])
            writer.writerows([row.claim, row.measured, row.verdict] for row in self.made.claims)
        self.made.files += [stem.with_suffix(".md"), stem.with_suffix(".csv")]

    def _line(self, name: str, runs: list[Settings], draw: Callable[[Table, Path, str, str], list[Path]]) -> None:
        measured = self._measured(name, runs)
        self.made.files += draw(Table(measured), self.folder, self.extent.task, self._note(runs, measured))

    def _sweep(self, name: str, runs: list[Settings]) -> None:
        if self.run:
            done = sweep(
                runs,
                self.store,
                name=f"paper-{runs[0].task}",
                executor=self.executor,
                report=lambda progress: self.report(name, progress),
            )
            self.made.progress.append(done)

    def _measured(self, name: str, runs: list[Settings]) -> list[Measured]:
        """Run what is missing, and return what the store has."""
        self._sweep(name, runs)
        found = results(self.store, runs)
        if not found:
            raise fail("store", str(self.store.folder), f"has no run of {name}: leave out --draw-only to run them")
        return found


def extent(
    task: str,
    *,
    quick: bool = False,
    p_min: Sequence[float] | None = None,
    swaps: Sequence[float] | None = None,
    betas: Sequence[float | str] | None = None,
    seeds: int | None = None,
    rates: Sequence[float] | None = None,
) -> Extent:
    """Choose how much is run: the whole grid, the quick part of it, or chosen values of some axes."""
    chosen = Extent.quick(task) if quick else Extent.full(task)
    numbers = None if seeds is None else range(seeds)
    return chosen.but(p_min=p_min, swaps=swaps, betas=betas, seeds=numbers, rates=rates)
