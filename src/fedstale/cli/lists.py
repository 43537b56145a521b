"""`fedstale list`: which rules, tasks, processes, estimators and memories there are."""

from __future__ import annotations

from typing import Annotated

import typer

from ..checks import choose
from ..rules import OPTIMIZERS
from ..terminal import make_console
from .names import registry
from .options import Json, print_json, say


def list_(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", autocompletion=lambda: list(registry()))] = None,
    json: Json = False,
) -> None:
    """List the names that settings take, with what each is.

    KIND is rules, tasks, participation, selections, estimators or memories; without it, the names of all kinds.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=kind == "rules", padding=(0, 1))
    if kind is None:
        if json:
            print_json({name: list(names) for name, names in registry().items()})
            return
        table.add_column("kind", no_wrap=True)
        table.add_column("names")
        for name, names in registry().items():
            table.add_row(name, Text(", ".join(names)))
    else:
        found = choose("kind", kind, registry())
        if json:
            print_json([{"name": name, "is": text} for name, text in found.items()])
            return
        table.add_column("name", no_wrap=True)
        table.add_column("what it is")
        for name, text in found.items():
            table.add_row(Text(name), Text(text))
    make_console().print(table)
    if kind == "rules":
        say(f"A plus adds a server optimiser: fedstale+adam ({', '.join(OPTIMIZERS)}).")
