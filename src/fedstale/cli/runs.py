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
from ..analysis.metrics import main_metric, metric_text
from ..checks import InvalidInput
from ..terminal import make_console
from .chart import chart, spark
from .group import CommandGroup
from .options import Json, StorePath, padding, print_json, say

if TYPE_CHECKING:
    from rich.console import Console

    from ..store import RunInfo
    from ..store.blocks import Series

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Runs in the store: list, show, export, delete.")


@app.command("list")
def list_(
    store: StorePath = None,
    status: Annotated[str | None, typer.Option(help="running, finished, diverged, failed or interrupted.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of runs.")] = 50,
    json: Json = False,
) -> None:
    """List runs, the newest first."""
    from rich.markup import escape
    from rich.table import Table

    from ..store import Store

    with Store.open(store, create=False, read_only=True) as opened:
        found = opened.runs(status=status, limit=limit)
    if json:
        print_json([_plain(info) for info in found])
        return
    console = make_console()
    table = Table(padding=padding(console.width))
    for heading in ("run", "task", "rule", "p_min", "swap", "seed", "status", "rounds", "accuracy"):
        right = heading in ("p_min", "swap", "seed", "accuracy")
        wraps = heading in ("rule", "status")
        least = {"run": 20, "rule": 8, "status": 8}.get(heading)
        table.add_column(heading, justify="right" if right else "left", no_wrap=not wraps, min_width=least)
    for info in found:
        config = info.config
        # The last value before a run diverged is not what it reached.
        accuracy = None if info.diverged_in is not None else info.summary.get("accuracy")
        table.add_row(
            info.id,
            escape(configs.text(config.get("task", ""))),
            escape(config_label(config) or info.name or ""),
            f"{config.get('p_min', '')}" if config.get("participation", "two-groups") == "two-groups" else "–",
            f"{config.get('swap', '')}",
            f"{config.get('seed', '')}",
            info.status if info.diverged_in is None else info.reason,
            f"{info.rounds_done}/{info.rounds_total or '?'}",
            "" if accuracy is None else metric_text("accuracy", accuracy),
        )
    console.print(table)


@app.command()
def show(
    run: Annotated[str, typer.Argument()],
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
    main = main_metric(known) or ("test_loss" if "test_loss" in known else None)
    if main is not None:
        drawn = chart(*known[main], width=width, ascii_only=plain, form=partial(metric_text, main))
        console.print(Text(f"\n{main} over rounds{ending}\n{drawn}\n"), highlight=False, no_wrap=True)
    wanted = ("accuracy_group0", "accuracy_group1", "train_loss", "beta", "participants", "staleness_max")
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
    run: Annotated[list[str] | None, typer.Option(help="Only these runs.")] = None,
) -> None:
    """Write the metrics of runs to one file: one line per run and round.

    TARGET is the file to write.
    """
    from ..store import Store

    if csv and parquet:
        raise InvalidInput("give either --csv or --parquet")
    with Store.open(store, create=False, read_only=True) as opened:
        if parquet or (not csv and target.suffix == ".parquet"):
            opened.export_parquet(target, run)
        else:
            opened.export_csv(target, run)
    say(f"written to {target}")


@app.command()
def delete(
    runs: Annotated[list[str], typer.Argument()],
    store: StorePath = None,
) -> None:
    """Delete runs; a run in progress cannot be deleted.

    RUNS are their ids or names; their checkpoints go with them.
    """
    from ..store import Store

    with Store.open(store, create=False) as opened:
        for which in runs:
            opened.delete(which)
            say(f"deleted {which}")


def _plain(info: RunInfo) -> dict[str, object]:
    return {**asdict(info), "reason": info.reason, "folder": str(info.folder)}
