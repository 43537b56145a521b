"""`fedstale sweep`: a grid of runs, resumable, here, in worker processes or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import counted, fail
from ..terminal import duration, make_console
from .options import Json, Patience, Quiet, StorePath, print_json, say

if TYPE_CHECKING:
    from ..analysis import Cell
    from ..simulation.settings import Settings
    from ..sweeps import SweepProgress
    from ..sweeps.executors import Executor

Workers = Annotated[
    int | None,
    typer.Option("--workers", help="Number of worker processes; 0 uses this process only. Default: one per core."),
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help='Address of a Ray cluster ("auto": the one on this machine, "local": start one here).'),
]
Widen = Annotated[
    int,
    typer.Option(
        "--widen",
        min=0,
        help="Maximum number of learning rates to add where the best one is at the edge of its grid.",
    ),
]


def settings_help() -> str:
    """Every setting of [settings] and [grid], for the help."""
    from ..simulation.settings import Settings

    lines = [f"{name}: {field.description}" for name, field in Settings.model_fields.items()]
    return "[settings] and lists of them in [grid]:\n\n".replace("[", r"\[") + "\n\n".join(lines).replace("[", r"\[")


def sweep(
    file: Annotated[Path, typer.Argument()],
    store: StorePath = None,
    patience: Patience = None,
    workers: Workers = None,
    ray: Ray = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the results to this CSV file.")] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Extend the learning rates until the best is not at the edge; print the tuned methods."
        ),
    ] = False,
    widen: Widen = 4,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and exit.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run every combination of a grid, except runs that are already in the store.

    FILE is a TOML file with [settings] and [grid], or a Python file. The settings are listed below.
    """
    from .. import analysis, sweeps
    from ..analysis.metrics import metric_text
    from ..store import Store

    grid = sweeps.from_file(file)
    runs = grid.runs()
    if tune and any(settings.lr is None for settings in runs):
        raise fail("--tune", "on", 'needs learning rates to choose from: lr = "grid" or a list of rates in [grid]')
    with Store.open(store, patience=patience) as opened:
        if dry_run:
            left = sweeps.missing(opened, runs)
            batches = sweeps.plan(left)
            together = sum(len(batch.runs) for batch in batches if batch.lockstep)
            if json:
                numbers = {"runs": len(runs), "stored": len(runs) - len(left), "to_do": len(left)}
                print_json({"sweep": grid.name, **numbers, "batches": len(batches), "lockstep": together})
                return
            say(
                f"{grid.name}: {counted(len(runs), 'run')}, {len(runs) - len(left)} in the store, {len(left)} to do in "
                f"{counted(len(batches), 'batch')} ({counted(together, 'run')} in lock-step)"
            )
            return
        with progress_bar(grid.name, quiet=quiet or json) as report:
            work = executor(workers, ray)
            parts: list[SweepProgress] = []

            def do(some: Sequence[Settings]) -> None:
                parts.append(sweeps.sweep(some, opened, name=grid.name, executor=work, report=report))

            do(runs)
            if tune:
                runs = sweeps.widen(runs, opened, do, widen)
        table = sweeps.results(opened, runs)
        if out is not None:
            sweeps.write_csv(out, table)
        cells = analysis.tuned(table) if tune else []
    if json:
        summary = {"sweep": grid.name, **count_runs(*parts), "results": str(out) if out else None}
        print_json({**summary, "tuned": [_cell(cell) for cell in cells]})
    else:
        for cell in cells:
            settings = cell.runs[0].settings
            rate = "default" if cell.lr is None else f"{cell.lr:.4g}"
            where = f"p_min {settings.p_min:g}, swap {settings.swap:g}"
            say(f"{where}, {settings.label}: {metric_text('accuracy', cell.estimate)} at lr {rate}")
        for edge in sweeps.at_edges(cells):
            say(f"best rate at the edge of its grid: {edge}")
        numbers = count_runs(*parts)
        where = f"results: {out}" if out else f"store: {opened.folder}"
        done = f"{numbers['stored']} already in the store, {numbers['ran']} run now"
        say(f"{counted(numbers['runs'], 'run')}: {done}. {where}")
    report_failures(parts)


def _cell(cell: Cell) -> dict[str, Any]:
    settings = cell.runs[0].settings
    where: dict[str, Any] = {
        "task": settings.task,
        "p_min": settings.p_min,
        "swap": settings.swap,
        "rule": settings.rule,
        "beta": settings.beta,
    }
    own = cell.estimate
    numbers = {"accuracy": own.mean, "error": own.error, "seeds": len(cell.runs), "diverged_in": list(own.diverged)}
    return {**where, "lr": cell.lr, "at_edge": cell.at_edge, **numbers}


def executor(workers: int | None, ray: str | None) -> Executor:
    """Choose where the work is done."""
    from .. import sweeps

    if ray is not None:
        if workers is not None:
            raise fail("--workers", workers, "cannot be combined with --ray")
        return sweeps.ray(None if ray == "local" else ray)
    return sweeps.in_process if workers == 0 else sweeps.processes(workers)


@contextmanager
def progress_bar(name: str, *, quiet: bool) -> Iterator[Callable[[SweepProgress], None]]:
    """Show one bar for the sweep: runs, failures, time left by the rounds that are still to be done."""
    if quiet:
        with say_on_interrupt():
            yield lambda progress: None
        return
    import time

    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}")]
    began = time.monotonic()
    with say_on_interrupt(), Bars(*columns, console=make_console(err=True)) as bars:
        task = bars.add_task(name, total=1, numbers="")

        def report(progress: SweepProgress) -> None:
            nonlocal began
            if not progress.worked:  # a sweep begins; `reproduce` has several
                began = time.monotonic()
            numbers = f"{progress.stored + progress.done}/{progress.total} runs"
            if progress.failures:
                numbers += f", {len(progress.failures)} failed"
            if progress.worked:
                left = (time.monotonic() - began) * (progress.work - progress.worked) / progress.worked
                numbers += f", {duration(left)} left"
            bars.update(task, total=max(progress.work, 1), completed=progress.worked or int(not progress.work))
            bars.update(task, numbers=numbers)

        yield report


@contextmanager
def say_on_interrupt(*, kept: bool = True) -> Iterator[None]:
    """Say, on Ctrl-C, that nothing is lost, or what would have to be given for that."""
    try:
        yield
    except KeyboardInterrupt:
        what = "run the same command again to continue" if kept else "runs are kept, and go on, with --store FOLDER"
        say(f"interrupted; {what}", err=True)
        raise


def count_runs(*progress: SweepProgress) -> dict[str, Any]:
    """How sweeps ended, for JSON."""
    failures = [
        {"settings": settings.record(), "reason": reason} for each in progress for settings, reason in each.failures
    ]
    return {
        "runs": sum(each.total for each in progress),
        "stored": sum(each.stored for each in progress),
        "ran": sum(each.done for each in progress) - len(failures),
        "failed": failures,
    }


def report_failures(progress: Sequence[SweepProgress]) -> None:
    """List the runs that failed; they make the exit code 1."""
    failures = [failure for each in progress for failure in each.failures]
    for settings, reason in failures[:20]:
        which = f"{settings.label}, p_min {settings.p_min:g}, swap {settings.swap:g}, seed {settings.seed}"
        say(f"  failed: {which}: {reason}", err=True)
    if failures:
        what = "it" if len(failures) == 1 else "them"
        say(f"{counted(len(failures), 'run')} failed; run the same command again to retry {what}", err=True)
        raise typer.Exit(1)
