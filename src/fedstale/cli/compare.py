"""`fedstale compare`: the main job. Methods side by side, a live table, a picture, and what they say."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ..checks import number
from ..simulation.settings import DEFAULT_TASK
from ..tasks.defaults import CLIENTS, full_name
from ..tasks.names import QUADRATIC
from ..terminal import make_console
from . import complete
from .names import known
from .options import Json, Quiet, Target, Wide, print_json, say, task_of, with_settings
from .sweep import say_on_interrupt

_P_MIN, _SWAP = {"p_min": 0.05}, {"swap": 0.6}
"""The default setting: the middle cell of the paper's grid, the fourth of its eight p_min and of its six swaps."""

_LR = dict.fromkeys(("digits", "digits-mlp"), 10**-0.5)
"""The rate of the embedded task: the one of half a decade each at which U-FedAvg, the baseline, does best there."""

_QUICK = {"rounds": 20}
"""What --quick changes in it."""


@with_settings("task", "rule", "beta", "rule_options")
def compare(
    target: Target = DEFAULT_TASK,
    rules: Annotated[
        str | None,
        typer.Option(
            help='Method names, separated by commas; "all" compares every method. Add β after a colon, a server '
            'optimiser after a plus, a memory after an @: "fedavg,fedstale:0.8,fedstale+adam,fedstale@lowrank:4". '
            '"everybody" is the limit: all clients in every round. ' + known("rules"),
            autocompletion=complete.methods,
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds (default 3).", show_default=False)] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the table and the picture.")] = Path("fedstale-compare"),
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Also store the runs here; those that are there already are not run again."),
    ] = None,
    goal: Annotated[
        float | None,
        typer.Option(
            "--target",
            help="An accuracy (0.9), or an excess loss of a quadratic: also say what it cost to reach it, in rounds "
            "and bytes, and in virtual seconds where there is a clock.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and 20 rounds: a quick check.")] = False,
    wide: Wide = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Compare methods on one setting: same participants, same batches, several seeds.

    TARGET is a task (digits-mlp, mnist-mlp, quadratic, …) or a TOML file of settings; the rule of a file is compared
    with the others.
    """
    from ..simulation import compare_settings, from_toml, make_settings
    from ..simulation.methods import file_methods, methods

    if goal is not None:
        number("target", goal)
    changes = {**(_QUICK if quick else {}), **changes}
    if target.endswith(".toml"):
        settings = from_toml(Path(target), **changes)
        asked = file_methods(settings) if rules is None else methods(rules)
    else:
        task = task_of(target)
        swapped = {} if full_name(task) in (*CLIENTS, QUADRATIC) else _SWAP  # those have no labels to be swapped
        settings = make_settings(**{"task": task, "lr": _LR.get(target), **_P_MIN, **swapped, **changes})
        asked = methods(rules)
    count = (1 if quick else 3) if seeds is None else seeds
    with say_on_interrupt(kept=store is not None), warnings.catch_warnings(record=True) as caught:
        progress = None if not (quiet or json) else False
        comparison = compare_settings(settings, asked, count, store=store, progress=progress)
    comparison.target = goal
    for note in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"note: {note}", err=True)
    table, *pictures = comparison.save(folder)
    if json:
        print_json(comparison.records())
        return
    make_console(wide=wide).print(comparison)
    say(f"table: {table}   pictures: {', '.join(str(path) for path in pictures)}")
    if store is not None:
        say(f"runs: {store}, to be seen with fedstale report {store} or fedstale board {store}")
    for sentence in comparison.summary():
        say(sentence)
