"""`fedstale reproduce`: the paper's figures and the table of its claims, each by one command."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import counted, number_or_text
from ..simulation.settings import DEFAULT_TASK
from ..terminal import make_console
from . import complete
from .names import known
from .options import Json, Patience, Quiet, StorePath, print_json, say
from .sweep import Ray, Widen, Workers, count_runs, executor, progress_bar, report_failures

if TYPE_CHECKING:
    from ..paper.reproduce import Reproduction
    from ..sweeps import SweepProgress


def reproduce(
    what: Annotated[str, typer.Argument()],
    task: Annotated[
        str, typer.Option(help=f"Task of figures 2 to 5. {known('tasks')}", autocompletion=complete.tasks)
    ] = DEFAULT_TASK,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a smaller part of the grid, and print what was left out.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Folder for pictures and tables.")] = Path("fedstale-paper"),
    store: StorePath = None,
    patience: Patience = None,
    p_min: Annotated[str, typer.Option(help="Only these p_min, comma-separated.")] = "",
    swap: Annotated[str, typer.Option(help="Only these label swaps.")] = "",
    beta: Annotated[str, typer.Option(help="Only these β: numbers, auto, auto-per-client.")] = "",
    lr: Annotated[str, typer.Option(help="Initial learning rates instead of the task's.")] = "",
    widen: Widen = 4,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds; 3 in the paper.", min=1)] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting other than the paper's, such as batch_size=32."),
    ] = None,
    fresh_seeds: Annotated[
        int, typer.Option(help="Number of fresh seeds to evaluate at the tuned learning rates.", min=0)
    ] = 0,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Run nothing; draw what is in the store.")] = False,
    workers: Workers = None,
    ray: Ray = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run (or resume) the experiments of a figure of the paper, and write it as PNG, SVG and CSV.

    WHAT is fig1, fig2, fig3, fig4, fig5, claims or all.
    """
    from ..paper import fig1
    from ..paper.reproduce import QUICK_FIG1_RUNS, Reproducer, extent
    from ..store import Store

    axes: dict[str, Any] = {
        "p_min": _numbers("--p-min", p_min),
        "swaps": _numbers("--swap", swap),
        "betas": [number_or_text(part.strip()) for part in beta.split(",")] if beta else None,
        "rates": _numbers("--lr", lr),
    }
    if axes["betas"]:
        axes["betas"] = [float(value) if isinstance(value, int) else value for value in axes["betas"]]
    changed = dict(_pair(text) for text in change or [])
    grid_extent = extent(task, quick=quick, seeds=seeds, changed=changed, **axes)
    began = time.monotonic()
    with Store.open(store, patience=patience) as opened, progress_bar(what, quiet=quiet or json) as report:

        def show(name: str, progress: SweepProgress) -> None:
            report(progress)

        runs = QUICK_FIG1_RUNS if quick else fig1.RUNS
        work = executor(workers, ray)
        made = Reproducer(
            opened, folder, grid_extent, runs, work, run=not draw_only, fresh=fresh_seeds, widen=widen, report=show
        ).reproduce(what)
    seconds = time.monotonic() - began
    if json:
        claims = [asdict(claim) for claim in made.claims]
        files = [str(path) for path in made.files]
        summary = {"figure": what, **count_runs(*made.progress), "seconds": seconds, "files": files}
        print_json({**summary, "left_out": made.left_out, "at_edge": made.at_edge, "claims": claims})
    else:
        _print_result(made, seconds)
    report_failures(made.progress)


def _pair(text: str) -> tuple[str, Any]:
    from ..checks import fail

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise fail("--set", text, "must be NAME=VALUE")
    return name.strip().replace("-", "_"), number_or_text(value.strip())


def _numbers(flag: str, text: str) -> list[float] | None:
    from ..checks import fail

    if not text:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise fail(flag, text, "must be numbers separated by commas") from None


def _print_result(made: Reproduction, seconds: float) -> None:
    from rich.table import Table

    from ..analysis.verdicts import EXPLANATION, HEADINGS

    if made.claims:
        table = Table(title="the paper's claims", caption=EXPLANATION, show_lines=True)
        for heading in HEADINGS:
            table.add_column(heading)
        for row in made.claims:
            table.add_row(*row.cells())
        make_console().print(table)
    ran = sum(progress.done for progress in made.progress)
    say(f"{counted(ran, 'run')} in {seconds:.0f} s; " + ", ".join(str(path) for path in made.files))
    for edge in made.at_edge:
        say(f"best rate at the edge of its grid: {edge}")
    if made.left_out:
        say(f"left out of the paper's grid: {'; '.join(made.left_out)}")
