"""`fedstale runs`: list, show, export and delete what the store holds."""

from __future__ import annotations

import json as jsons
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from ..checks import Float, InvalidInput
from .options import Json, StorePath, screen

if TYPE_CHECKING:
    from ..store import RunInfo

app = typer.Typer(no_args_is_help=True, help="Runs in the store: list, show, export, delete.")


@app.command("list")
def list_(
    store: StorePath = None,
    status: Annotated[str | None, typer.Option(help="running, finished, failed or interrupted.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, the newest first.")] = 50,
    json: Json = False,
) -> None:
    """List runs, the newest first."""
    from rich.table import Table

    from ..store import Store

    with Store.open(store, create=False, read_only=True) as opened:
        found = opened.runs(status=status, limit=limit)
    if json:
        typer.echo(jsons.dumps([_plain(info) for info in found]))
        return
    table = Table()
    for heading in ("run", "task", "rule", "p_min", "swap", "seed", "status", "rounds", "accuracy"):
        right = heading in ("p_min", "swap", "seed", "accuracy")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading != "rule")
    for info in found:
        config = info.config
        beta = f" β={config['beta']}" if config.get("beta") is not None else ""
        accuracy = info.summary.get("accuracy")
        table.add_row(
            info.id,
            str(config.get("task", "")),
            f"{config.get('rule', info.name or '')}{beta}",
            f"{config.get('p_min', '')}",
            f"{config.get('swap', '')}",
            f"{config.get('seed', '')}",
            info.status,
            f"{info.rounds_done}/{info.rounds_total or '?'}",
            "" if accuracy is None else f"{accuracy:.1%}",
        )
    screen().print(table)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="The run: its id, its beginning or end, or its name.")],
    store: StorePath = None,
    json: Json = False,
) -> None:
    """Show one run: settings, last numbers, and a small chart."""
    from ..store import Store

    with Store.open(store, create=False, read_only=True) as opened:
        kept = opened.run(run)
        info, metrics = kept.info(), kept.metrics()
    if json:
        columns = {name: [None if np.isnan(v) else float(v) for v in values] for name, values in metrics.items()}
        typer.echo(jsons.dumps({**_plain(info), "metrics": columns}))
        return
    console = screen()
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
    console.print(
        f"[bold]{info.id}[/]  {info.status}  {info.rounds_done}/{info.rounds_total or '?'} rounds  begun {begun}"
    )
    console.print({key: value for key, value in info.config.items() if value not in (None, {}, "")})
    console.print({key: round(value, 5) for key, value in info.summary.items()})
    for name in ("accuracy", "excess_loss"):
        values = np.asarray(metrics.get(name, np.array([])), dtype=np.float64)
        if np.isfinite(values).any():
            console.print(f"\n{name} over rounds")
            console.print(chart(values, width=min(72, console.width - 14)), highlight=False)


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="The file to write.")],
    store: StorePath = None,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values (default by the file's ending).")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Parquet.")] = False,
    run: Annotated[list[str] | None, typer.Option(help="Only these runs.")] = None,
) -> None:
    """Write the metrics of runs to one file: one line per run and round."""
    from ..store import Store

    if csv and parquet:
        raise InvalidInput("choose --csv or --parquet")
    with Store.open(store, create=False, read_only=True) as opened:
        if parquet or (not csv and target.suffix == ".parquet"):
            opened.export_parquet(target, run)
        else:
            opened.export_csv(target, run)
    typer.echo(f"written to {target}")


@app.command()
def delete(
    runs: Annotated[list[str], typer.Argument(help="The runs to delete, with their checkpoints.")],
    store: StorePath = None,
) -> None:
    """Delete runs; one that is running is refused."""
    from ..store import Store

    with Store.open(store, create=False) as opened:
        for which in runs:
            opened.delete(which)
            typer.echo(f"deleted {which}")


def _plain(info: RunInfo) -> dict[str, object]:
    return {**asdict(info), "folder": str(info.folder)}


def chart(values: Float, width: int = 72, height: int = 10) -> str:
    """A curve in characters: the mean of each column's rounds, with the range on the left."""
    cuts = np.array_split(values, min(width, len(values)))
    means = np.array([np.nanmean(cut) if np.isfinite(cut).any() else np.nan for cut in cuts])
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    level = np.zeros(len(means)) if high == low else (means - low) / (high - low)
    rows = []
    for row in range(height - 1, -1, -1):
        marks = "".join("•" if np.isfinite(x) and round(float(x) * (height - 1)) == row else " " for x in level)
        label = f"{high:.4g}" if row == height - 1 else f"{low:.4g}" if row == 0 else ""
        rows.append(f"{label:>9} │{marks}")
    return "\n".join(
        [*rows, f"{'':>9} └{'─' * len(means)}", f"{'':>10} 1{'':>{max(len(means) - 7, 1)}}{len(values):>6}"]
    )
