"""`fedstale compare`: the main job. Methods side by side, a live table, a picture."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import fail
from .options import Json, screen, with_settings

if TYPE_CHECKING:
    from rich.table import Table

    from ..simulation import Comparison, Method

SETTING = {"p_min": 0.05, "swap": 1.0}
"""The default setting: rare clients who disagree about two labels, so that bias, variance and staleness all show."""


@with_settings("task", "rule", "beta")
def compare(
    task: Annotated[str, typer.Argument(help="What is learned.")] = "digits-mlp",
    rules: Annotated[
        str, typer.Option(help='Methods by name, comma-separated, with β behind a colon: "fedavg,fedstale:0.8".')
    ] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the table and the picture.")] = Path("fedstale-compare"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live table.")] = False,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Compare methods on one setting: same participants, same batches, several seeds."""
    from rich.console import Console
    from rich.live import Live

    from ..figures import comparison_picture
    from ..simulation import compare as run_comparison
    from ..simulation import settings
    from ..simulation.comparison import DEFAULT

    chosen = settings(**{"task": task, **SETTING, **changes})
    methods = [_method(name) for name in rules.split(",")] if rules else list(DEFAULT)
    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show(comparison: Comparison) -> None:
            if not (quiet or json):
                live.update(table(comparison))

        comparison = run_comparison(chosen, methods, seeds, after=show)
    out.mkdir(parents=True, exist_ok=True)
    comparison.to_csv(out / "comparison.csv")
    pictures = comparison_picture(comparison, out / "comparison")
    if json:
        rows = [
            {key: value if isinstance(value, str) else value.mean for key, value in row.items()}
            for row in comparison.rows()
        ]
        typer.echo(jsons.dumps(rows))
        return
    screen().print(table(comparison))
    typer.echo(f"table: {out / 'comparison.csv'}   pictures: {', '.join(str(path) for path in pictures)}")


def _method(text: str) -> Method:
    from ..rules import RULES
    from ..simulation.comparison import Method
    from .options import number_or_text

    name, colon, beta = text.strip().partition(":")
    if name not in RULES:
        from ..checks import unknown

        raise unknown("rule", name, RULES)
    if colon and not beta:
        raise fail("rules", text, "β stands behind the colon: fedstale:0.5")
    return Method(name, number_or_text(beta) if colon else None)


def table(comparison: Comparison) -> Table:
    """Mean ± standard error over seeds; accuracies are means over the last tenth of the rounds."""
    from rich.table import Table

    chosen = comparison.settings
    done = sum(len(runs) for runs in comparison.results.values())
    total = len(comparison.methods) * len(comparison.seeds)
    title = f"{chosen.task}, p_min {chosen.p_min:g}, swap {chosen.swap:g}, {chosen.total_rounds} rounds"
    made = Table(title=title, caption=f"run {done} of {total}" if done < total else f"{len(comparison.seeds)} seeds")
    made.add_column("method")
    grouped = comparison.metric == "accuracy"
    headings = ["accuracy", "frequent clients", "rare clients"] if grouped else ["excess loss"]
    for heading in (*headings, "β", "MB sent", "seconds"):
        made.add_column(heading, justify="right")
    for row in comparison.rows():
        numbers = [f"{row['accuracy']:.1%}", f"{row['group 0']:.1%}", f"{row['group 1']:.1%}"] if grouped else []
        if not grouped:
            numbers = [f"{row['excess_loss']:.3g}"]
        sent, seconds = row["bytes"], row["seconds"]
        mega = "–" if isinstance(sent, str) else f"{sent.mean / 1e6:.1f}"
        made.add_row(str(row["method"]), *numbers, f"{row['beta']:.2f}", mega, f"{seconds:.1f}")
    return made
