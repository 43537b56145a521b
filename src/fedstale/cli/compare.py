"""`fedstale compare`: the main job. Methods side by side, a live table, a picture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import configs
from ..checks import fail
from ..terminal import make_console
from .options import Json, padding, print_json, say, with_settings

if TYPE_CHECKING:
    from rich.table import Table

    from ..analysis import Estimate
    from ..simulation import Comparison, Method

_SETTING = {"p_min": 0.05, "swap": 0.6}
"""The default setting: the middle cell of the paper's grid, the fourth of its eight p_min and of its six swaps."""

_LR = dict.fromkeys(("digits", "digits-mlp"), 10**-0.5)
"""The rate of the embedded task: the one of half a decade each at which U-FedAvg, the baseline, does best there."""

_WIDE = 160
"""Columns of a terminal that has room for everything; a narrower one shows how good the methods are."""

_QUICK = {"rounds": 20}
"""What --quick changes in it."""


@with_settings("task", "rule", "beta", "rule_options")
def compare(
    task: Annotated[str, typer.Argument()] = "digits-mlp",
    rules: Annotated[
        str,
        typer.Option(
            help='Method names, separated by commas; "all" compares every method. Add β after a colon, a server '
            'optimiser after a plus, a memory after an @: "fedavg,fedstale:0.8,fedstale+adam,fedstale@lowrank:4". '
            '"everybody" is the limit: all clients in every round.'
        ),
    ] = "",
    seeds: Annotated[int | None, typer.Option(help="How many seeds (default 3).", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="Folder for the table and the picture.")] = Path("fedstale-compare"),
    quick: Annotated[bool, typer.Option("--quick", help="One seed and 20 rounds: a quick check.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live table.")] = False,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Compare methods on one setting: same participants, same batches, several seeds.

    TASK is what is learned: digits-mlp, mnist-mlp, quadratic, …
    """
    from rich.live import Live

    from ..figures import comparison_picture
    from ..simulation import compare as run_comparison
    from ..simulation import make_settings
    from ..simulation.comparison import ALL, DEFAULT

    settings = make_settings(**{"task": task, "lr": _LR.get(task), **_SETTING, **(_QUICK if quick else {}), **changes})
    methods = list(ALL) if rules == "all" else [_method(name) for name in rules.split(",")] if rules else list(DEFAULT)
    console = make_console(err=True)
    with (
        Live(console=console, refresh_per_second=4, transient=True) as live,
        warnings.catch_warnings(record=True) as caught,
    ):

        def show(comparison: Comparison) -> None:
            if not (quiet or json):
                live.update(table(comparison, console.width))

        comparison = run_comparison(settings, methods, (1 if quick else 3) if seeds is None else seeds, after=show)
    for note in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"note: {note}", err=True)
    out.mkdir(parents=True, exist_ok=True)
    comparison.to_csv(out / "comparison.csv")
    pictures = comparison_picture(comparison, out / "comparison")
    if json:
        print_json(comparison.records())
        return
    shown = make_console()
    shown.print(table(comparison, shown.width))
    say(f"table: {out / 'comparison.csv'}   pictures: {', '.join(str(path) for path in pictures)}")


def _method(text: str) -> Method:
    from .. import memory as memories
    from .. import rules
    from ..simulation.comparison import EVERYBODY, Method
    from .options import number_or_text

    described, at, memory = text.strip().partition("@")
    name, colon, beta = described.partition(":")
    if described == "everybody":
        return EVERYBODY
    rules.make(name)
    if colon and not beta:
        raise fail("rules", text, "β stands behind the colon: fedstale:0.5")
    if at:
        memories.parse(memory)
    return Method(name, number_or_text(beta) if colon else None, memory or None)


def table(comparison: Comparison, width: int = 140) -> Table:
    """Mean ± standard error over seeds; accuracies are means over the last tenth of the rounds.

    A method of which a seed diverged says so in place of its accuracy, and has no other numbers.
    """
    from rich.table import Table
    from rich.text import Text

    from ..analysis import style
    from ..analysis.metrics import group_name

    def number(row: dict[str, Estimate | str], name: str, spec: str) -> str:
        cell = row[name]
        return "–" if isinstance(cell, str) or cell.diverged else format(cell, spec)

    def mega(row: dict[str, Estimate | str], name: str) -> str:
        cell = row[name]
        return "–" if isinstance(cell, str) or cell.mean != cell.mean else f"{cell.mean / 1e6:.2f}"

    settings = comparison.settings
    done = sum(len(runs) for runs in comparison.results.values())
    total = len(comparison.methods) * len(comparison.seeds)
    who = (
        f"p_min {settings.p_min:g}"
        if settings.participation == "two-groups"
        else f"participation {configs.text(settings.participation)}"
    )
    title = f"{settings.task_name}, {who}, swap {comparison.swap_text}, {settings.total_rounds} rounds"
    made = Table(title=title, padding=padding(width))
    made.caption = f"run {done} of {total}" if done < total else f"seeds: {len(comparison.seeds)}"
    made.add_column("method", min_width=8)
    grouped = comparison.metric == "accuracy"
    headings = ["objective", "gap closed", "accuracy", group_name(1)] if grouped else ["excess loss"]
    rows = comparison.rows()
    waits = any(number(row, "rounds lost", ".0f") != "–" for row in rows)
    more = [group_name(0)] if grouped else []
    more += ["β", "MB up", "MB down", "server MB", *(["rounds lost"] if waits else []), "seconds"]
    more = more if width >= _WIDE or not grouped else []
    for heading in (*headings, *more):
        first = "accuracy" if grouped else headings[0]
        made.add_column(heading, justify="right", min_width=8 if heading == first else None)  # "diverged"
    for row in rows:
        numbers = [number(row, "objective", ".3f"), number(row, "gap closed", ".0%")] if grouped else []
        numbers += [format(row[comparison.metric], ".1%" if grouped else ".3g")]
        numbers += [number(row, "group 1", ".1%"), number(row, "group 0", ".1%")] if grouped else []
        numbers += [number(row, "beta", ".2f"), *(mega(row, name) for name in ("bytes", "bytes down", "server bytes"))]
        numbers += [number(row, "rounds lost", ".0f")] if waits else []
        numbers.append(number(row, "seconds", ".1f"))
        label = str(row["method"])
        made.add_row(Text(label, style=style(label).colour), *numbers[: len(headings) + len(more)])
    return made
