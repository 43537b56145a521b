"""One command per figure: run what is missing, draw what is there, say what was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..analysis import Cell, HeatMap, MeasuredRun, tuned, verdicts
from ..checks import fail
from ..durable import replacing
from ..simulation.settings import Settings
from ..spreadsheet import write_table
from ..store import Store
from ..sweeps import SweepProgress, at_edges, results, sweep, widen, write_csv
from ..sweeps.executors import Executor, in_process
from ..sweeps.widening import MOST
from . import auto_claims, claims, curves, fig1, heatmaps
from .grids import Extent

_FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5")
WHAT = (*_FIGURES, "claims", "all")
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
    at_edge
        Cells whose best learning rate stands at the edge of its grid, so that they may do better than is shown.
    progress
        Of each sweep.
    """

    files: list[Path] = field(default_factory=list)
    claims: list[verdicts.Claim] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    at_edge: list[str] = field(default_factory=list)
    progress: list[SweepProgress] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """The runs that a figure shows.

    Attributes
    ----------
    wanted
        What the figure is made of.
    measured
        What the store has of it.
    table
        That, at the best rates.
    tuned_on
        The cells on which the rates were chosen: with fresh seeds, others than those of the table.
    """

    wanted: list[Settings]
    measured: list[MeasuredRun]
    table: HeatMap
    tuned_on: list[Cell]


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
    fresh
        Seeds beside those of the extent: each rate is chosen on the extent's seeds, and Figures 2 to 5 and the claims
        are made of runs at that rate with so many other seeds. 0: of the runs that chose the rate, as in the paper.
    widen
        Further learning rates on each side of the grid, at most, where the best one stands at its edge.
    report
        Told the name and the progress of every sweep.
    """

    store: Store
    folder: Path
    extent: Extent
    fig1_runs: int = fig1.RUNS
    executor: Executor = in_process
    run: bool = True
    fresh: int = 0
    widen: int = MOST
    report: Callable[[str, SweepProgress], None] = lambda name, progress: None
    made: Reproduction = field(default_factory=Reproduction)

    def reproduce(self, what: str) -> Reproduction:
        """Make one of `WHAT`."""
        if what not in WHAT:
            raise fail("figure", what, f"must be one of {', '.join(WHAT)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        if what == "fig1":
            self.fig1()
        elif what in _FIGURES:
            getattr(self, what)()
        else:
            self.everything(draw=what == "all")
        if what != "fig1":
            self.made.left_out = [*self.extent.left_out(), *self.made.left_out]
        if self.fig1_runs < fig1.RUNS and what in ("fig1", "claims", "all"):
            self.made.left_out.append(f"{fig1.RUNS - self.fig1_runs} of {fig1.RUNS} runs of Figure 1 (d)")
        return self.made

    def _note(self, *parts: _Found) -> str:
        """Say what stands below a figure: what was left out of the paper's grid, and what is missing of the rest."""
        out = self.extent.left_out()
        wanted, there = (sum(map(len, lists)) for lists in zip(*((p.wanted, p.measured) for p in parts), strict=True))
        if there < wanted:
            out.append(f"{wanted - there:,} of {wanted:,} runs, which are not in the store")
            if out[-1] not in self.made.left_out:
                self.made.left_out.append(out[-1])
        said = [f"left out of the paper's grid: {'; '.join(out)}"] if out else []
        if self.fresh:
            last = max(self.extent.seeds)
            said.insert(0, f"rates chosen on seeds up to {last}, shown: seeds {last + 1} to {last + self.fresh}")
        edges = list(dict.fromkeys(edge for part in parts for edge in at_edges(part.tuned_on)))
        self.made.at_edge += [edge for edge in edges if edge not in self.made.at_edge]
        if edges:
            said.append(f"best rate at the edge of its grid for {len(edges)} methods (marked *)")
        ended = list(dict.fromkeys(text for part in parts for text in part.table.diverged()))
        if ended:
            more = f" and {len(ended) - 3} more, all in the CSV" if len(ended) > 3 else ""
            said.append(f"no result, because seeds diverged at every rate: {'; '.join(ended[:3])}{more}")
        return "; ".join(said)

    def fig1(self) -> None:
        """Figure 1."""
        self._sweep("fig1", fig1.runs(self.fig1_runs))
        self.made.files += fig1.draw(self.store, self.folder, self.fig1_runs)

    def fig2(self) -> None:
        """Figure 2, and the runs behind it."""
        found = self._measured("fig2", self.extent.fig2())
        self.made.files += heatmaps.fig2(found.table, self.folder, self.name, self._note(found))
        path = self.folder / f"fig2-{self.name}-runs.csv"
        write_csv(path, found.measured)
        self.made.files.append(path)

    def fig3(self) -> None:
        """Figure 3: a column of Figure 2."""
        self._line("fig3", self.extent.fig3(), curves.fig3)

    def fig4(self) -> None:
        """Figure 4: a row of Figure 2."""
        self._line("fig4", self.extent.fig4(), curves.fig4)

    def fig5(self) -> None:
        """Figure 5."""
        known, estimated = (self._measured("fig5", self.extent.fig5(source)) for source in ("known", "fedau"))
        note = self._note(known, estimated)
        self.made.files += heatmaps.fig5(known.table, estimated.table, self.folder, self.name, note)

    def everything(self, *, draw: bool) -> None:
        """All figures and the table of claims, or the table alone."""
        if draw:
            for name in _FIGURES:
                getattr(self, name)()
        else:
            self._sweep("fig1", fig1.runs(self.fig1_runs))
        exact, guessed = self._found("fig2", self.extent.fig2()), self._found("fig5", self.extent.fig5("fedau"))
        self._note(exact, guessed)
        known, estimated = exact.table, guessed.table
        found = [
            claims.fig1_finding(fig1.curves(self.store, self.fig1_runs)),
            *claims.fig2_findings(known),
            *claims.fig34_findings(known),
            *claims.fig5_findings(known, estimated),
            *auto_claims.auto_findings(known),
        ]
        if self.fresh:
            found += auto_claims.fresh_findings(known, HeatMap(exact.tuned_on))
        self.made.claims = verdicts.judged(found)
        self._write_claims()

    def _write_claims(self) -> None:
        stem = self.folder / f"claims-{self.name}"
        with replacing(stem.with_suffix(".md")) as whole:
            whole.write_text(verdicts.markdown(self.made.claims), encoding="utf-8")
        write_table(stem.with_suffix(".csv"), verdicts.HEADINGS, (claim.cells() for claim in self.made.claims))
        self.made.files += [stem.with_suffix(".md"), stem.with_suffix(".csv")]

    def _line(self, name: str, runs: list[Settings], draw: Callable[[HeatMap, Path, str, str], list[Path]]) -> None:
        found = self._measured(name, runs)
        self.made.files += draw(found.table, self.folder, self.name, self._note(found))

    def _sweep(self, name: str, runs: list[Settings]) -> None:
        if self.run and runs:
            done = sweep(
                runs,
                self.store,
                name=f"paper-{runs[0].task}",
                executor=self.executor,
                report=lambda progress: self.report(name, progress),
            )
            self.made.progress.append(done)

    def _found(self, name: str, runs: list[Settings]) -> _Found:
        """Run what is missing, widen the learning rates, and return what the figure shows."""
        self._sweep(name, runs)
        runs = widen(runs, self.store, lambda wanted: self._sweep(f"{name}, further rates", wanted), self.widen)
        measured = results(self.store, runs)
        cells = tuned(measured)
        if not self.fresh:
            return _Found(runs, measured, HeatMap(cells), cells)
        runs = _fresh_runs(cells, self.extent.seeds, self.fresh)
        self._sweep(f"{name}, fresh seeds", runs)
        measured = results(self.store, runs)
        return _Found(runs, measured, HeatMap(tuned(measured, cells)), cells)

    def _measured(self, name: str, runs: list[Settings]) -> _Found:
        """Like `_found`, for a figure that cannot be drawn of nothing."""
        found = self._found(name, runs)
        if not found.measured:
            raise fail("store", str(self.store.folder), f"has no run of {name}: leave out --draw-only to run them")
        return found

    @property
    def name(self) -> str:
        """What files and titles call the task: figures of fresh seeds do not overwrite the others."""
        return f"{self.extent.task}-fresh" if self.fresh else self.extent.task


def _fresh_runs(cells: Sequence[Cell], tuned_on: Sequence[int], count: int) -> list[Settings]:
    """Return the tuned cells at their best rates with other seeds: nothing was chosen by what these runs give."""
    first = max(tuned_on) + 1
    seeds = range(first, first + count)
    return [cell.runs[0].settings.replace(seed=seed) for cell in cells for seed in seeds]


def extent(
    task: str,
    *,
    quick: bool = False,
    p_min: Sequence[float] | None = None,
    swaps: Sequence[float] | None = None,
    betas: Sequence[float | str] | None = None,
    seeds: int | None = None,
    rates: Sequence[float] | None = None,
    changed: Mapping[str, Any] | None = None,
) -> Extent:
    """Choose how much is run: the whole grid, the quick part of it, or chosen values of some axes."""
    whole = Extent.quick(task) if quick else Extent.full(task)
    numbers = None if seeds is None else range(seeds)
    return whole.replace(p_min=p_min, swaps=swaps, betas=betas, seeds=numbers, rates=rates, changed=_allowed(changed))


def _allowed(changed: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...] | None:
    """Refuse to change what the figures vary themselves."""
    for name in set(changed or ()) & {"task", "rule", "beta", "p_min", "swap", "lr", "seed", "probabilities"}:
        raise fail("--set", name, "is an axis of the figures: use the option for it")
    return tuple(changed.items()) if changed else None
