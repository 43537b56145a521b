"""`fedstale rules`: which rules there are, what each computes and what it takes."""

from __future__ import annotations

import inspect
from dataclasses import fields

import typer

from ..terminal import make_console
from .group import CommandGroup
from .options import Json, print_json, say

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Rules: list the aggregation rules.")


@app.command("list")
def list_(json: Json = False) -> None:
    """List the rules by name, with what each computes and the options it takes."""
    from rich.table import Table
    from rich.text import Text

    from ..rules import OPTIMIZERS, RULES

    rows = [
        {
            "name": name,
            "computes": " ".join((inspect.getdoc(rule) or "").partition("\n\n")[0].split()),
            "options": [field.name for field in fields(rule)],
        }
        for name, rule in RULES.items()
    ]
    if json:
        print_json(rows)
        return
    table = Table(show_lines=True)
    for heading in ("rule", "global update", "options"):
        table.add_column(heading, no_wrap=heading == "rule")
    for row in rows:
        table.add_row(Text(str(row["name"])), Text(str(row["computes"])), Text(", ".join(row["options"])))
    make_console().print(table)
    around = ", ".join(f"+{name}" for name in OPTIMIZERS)
    say(f"Append a server optimiser with a plus sign: fedstale+adam ({around}).")
