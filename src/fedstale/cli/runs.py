"""`fedstale runs`: list, show, export and delete what the store holds."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from .. import configs
from ..analysis import config_label
from ..analysis.methods import EVERYBODY
from ..analysis.metrics import main_metric, metric_text
from ..checks import InvalidInput, counted, fail
from ..participation.registry import takes_p_min
from ..terminal import make_console
from . import complete
from .chart import chart, spark
from .group import CommandGroup
from .options import Json, StoreArgument, StorePath, Which, Wide, chosen_store, print_json, say

if TYPE_CHECKING:
    from rich.console import Console

    from ..store import RunInfo
    from ..store.blocks import Series

_ROOMY = 110
"""Columns of a terminal that has room for the settings, too."""
_FORMATS = (".csv", ".parquet")
_OTHER_FORMATS = (".xlsx", ".xls", ".ods", ".json", ".tsv", ".feather", ".h5")
"""Names that would promise something that the file is not."""

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Runs in the store: list, show, export, delete.")


@app.command("list")
def list_(
    where: StoreArgument = None,
    store: StorePath = None,
    status: Annotated[str | None, typer.Option(help="running, finished, diverged, failed or interrupted.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of runs.")] = 50,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """List runs, the newest first.

    STORE is the folder of the store, as --store is; by default the one that FEDSTALE_STORE names, or ./fedstale-runs.
    """
    from rich.markup import escape
    from rich.table import Table

    from ..store import Store

    with Store.open(chosen_store(where, store), create=False, read_only=True) as opened:
        found = opened.runs(status=status, limit=limit)
    if json:
        print_json([_plain(info) for info in found])
        return
    console = make_console(wide=wide)
    roomy = console.width >= _ROOMY
    table = Table(padding=(0, 1) if roomy else (0, 0))
    more = ("p_min", "swap", "seed") if roomy else ()
    for heading in ("run", "task", "rule", *more, "status", "rounds", "accuracy"):
        right = heading in ("p_min", "swap", "seed", "accuracy")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading == "run", overflow="fold")
    for info in found:
        config = info.config
        # The last value before a run diverged is not what it reached.
        accuracy = None if info.diverged_in is not None else info.summary.get("accuracy")
        who = config.get("participation", "two-groups"), config.get("participation_options", {})
        p_min = f"{config.get('p_min', '')}" if takes_p_min(*who) else "–"
        setting = (p_min, f"{config.get('swap', '')}", f"{config.get('seed', '')}")
        table.add_row(
            info.id,
            escape(configs.text(config.get("task", ""))),
            escape(EVERYBODY if info.name == EVERYBODY else config_label(config) or info.name or ""),
            *(setting if more else ()),
            info.status if info.diverged_in is None else info.reason,
            f"{info.rounds_done}/{info.rounds_total or '?'}",
            "" if accuracy is None else metric_text("accuracy", accuracy),
        )
    console.print(table)


@app.command()
def show(
    run: Which,
    store: StorePath = None,
    json: Json = False,
) -> None:
    """Show one run: settings, last numbers, and a small chart.

    RUN is its id, the beginning or end of it, or its name.
    """
    from ..store import Store

    with Store.open(store, create=False, read_only=True) as opened:
        stored_run = opened.run(run)
        info = stored_run.info()
        metrics = stored_run.metrics() if json else {}
        _, found = stored_run.columns()
    if json:
        print_json({**_plain(info), "metrics": {name: values.tolist() for name, values in metrics.items()}})
        return
    from rich.text import Text

    console = make_console()
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
    rounds = f"{info.rounds_done}/{info.rounds_total or '?'} rounds"
    console.print(Text.assemble((info.id, "bold"), f"  {info.name or ''}  {info.status}  {rounds}  started {begun}"))
    if info.reason != info.status:
        console.print(Text(info.reason, "red"))
    given = {key: value for key, value in info.config.items() if value not in (None, {}, "")}
    console.print(Text("  ".join(f"{key} {value}" for key, value in given.items()), "dim"), highlight=False)
    _draw(console, found, "" if info.diverged_in is None else f", {info.reason}")
    last = "last: " if info.diverged_in is None else f"last before it {info.reason}: "
    console.print(Text(last + "  ".join(f"{key} {value:.5g}" for key, value in info.summary.items())))


def _draw(console: Console, found: dict[str, Series], ending: str) -> None:
    """One chart of what the run is judged by, with how it ended, and a line for each of some others."""
    from rich.text import Text

    known = {
        name: (series.rounds.astype(np.float64), series.values)
        for name, series in found.items()
        if np.isfinite(series.values).any()
    }
    width = max(10, min(72, console.width - 12))
    plain = console.options.ascii_only
    main = main_metric(known)
    if main is not None:
        drawn = chart(*known[main], width=width, ascii_only=plain, form=partial(metric_text, main))
        console.print(Text(f"\n{main} over rounds{ending}\n{drawn}\n"), highlight=False, no_wrap=True)
    wanted = (
        "accuracy_group0",
        "accuracy_group1",
        "test_loss_group0",
        "test_loss_group1",
        "train_loss",
        "beta",
        "participants",
        "staleness_max",
    )
    for name in wanted:
        if name in known:
            values = known[name][1]
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            drawn = spark(*known[name], width=max(5, min(48, console.width - 36)), ascii_only=plain)
            console.print(Text(f"{name:<16}{drawn}  {low:.4g} to {high:.4g}"), highlight=False, no_wrap=True)


@app.command()
def export(
    target: Annotated[Path, typer.Argument()],
    store: StorePath = None,
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV; default: by the file name.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write Parquet.")] = False,
    run: Annotated[list[str] | None, typer.Option(help="Only these runs.", autocompletion=complete.runs)] = None,
) -> None:
    """Write the metrics of runs to one file: one line per run and round.

    TARGET is the file to write.
    """
    from ..store import Store

    if csv and parquet:
        raise InvalidInput("give either --csv or --parquet")
    suffix = target.suffix.lower()
    asked = ".csv" if csv else ".parquet" if parquet else suffix
    if asked not in _FORMATS or (suffix != asked and suffix in (*_FORMATS, *_OTHER_FORMATS)):
        raise fail("target", str(target), "runs are exported as .csv or .parquet")
    with Store.open(store, create=False, read_only=True) as opened:
        if asked == ".parquet":
            opened.export_parquet(target, run)
        else:
            opened.export_csv(target, run)
    say(f"written to {target}")


@app.command()
def delete(
    runs: Annotated[list[str], typer.Argument(autocompletion=complete.runs)],
    store: StorePath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs, after a question; a run in progress cannot be deleted.

    RUNS are their ids or names; their checkpoints go with them.
    """
    from ..store import Store

    with Store.open(store, create=False) as opened:
        found = [opened.run(which).info() for which in runs]
        if not yes:
            for info in found:
                say(f"{info.id}  {info.name or ''}  {info.status}, {counted(info.rounds_done, 'round')}", err=True)
            theirs = "its checkpoint" if len(found) == 1 else "their checkpoints"
            if not _agreed(f"Delete {counted(len(found), 'run')} and {theirs}?"):
                raise InvalidInput("nothing was deleted; --yes deletes without asking")
        for info in found:
            opened.delete(info.id)
            say(f"deleted {info.id}")


def _agreed(question: str) -> bool:
    """Ask; where nobody can answer, nobody agreed."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False


def _plain(info: RunInfo) -> dict[str, object]:
    return {**asdict(info), "reason": info.reason, "folder": str(info.folder)}
