"""`fedstale data`: which data sets there are, where they lie, fetching one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..terminal import make_console
from .group import CommandGroup
from .options import Json, print_json, say

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Data sets: list, fetch, where.")


@app.command("list")
def list_(json: Json = False) -> None:
    """List the data sets and whether they are downloaded."""
    from rich.table import Table

    from ..tasks import data

    rows = data.available()
    if json:
        print_json([row._asdict() if hasattr(row, "_asdict") else vars(row) for row in rows])
        return
    table = Table()
    for heading in ("data set", "train", "test", "downloaded"):
        table.add_column(heading)
    for row in rows:
        table.add_row(
            row.name, f"{row.train:,}", f"{row.test:,}", "yes" if row.cached else "no: fedstale data fetch " + row.name
        )
    make_console().print(table)
    from ..tasks.phones_file import is_there

    there = "yes" if is_there() else "no: fedstale data fetch phones --from FOLDER"
    say(f'availability of 723 phones (participation "phones"): {there}')


@app.command()
def fetch(
    name: Annotated[str, typer.Argument()],
    folder: Annotated[
        Path | None, typer.Option("--from", help="A folder that has the files already; they are verified.")
    ] = None,
) -> None:
    """Download a data set, verify it and store it in the cache.

    NAME is one that `fedstale data list` shows, or phones, the availability of 723 phones.
    """
    from ..tasks import data, phones_file

    if name == phones_file.NAME:
        say(f"{name}: {phones_file.fetch_phones(folder)} (derived from {phones_file.SOURCE}; {phones_file.LICENCE})")
        return
    say(f"{name}: {data.fetch(name, source=folder)}")
    found = next(row for row in data.available() if row.name == name)
    if found.licence:
        say(f"licence: {found.licence}")
    if found.cite:
        say(f"please cite: {found.cite}")


@app.command()
def where() -> None:
    """Print the folder of downloaded data sets; FEDSTALE_DATA changes it."""
    from ..tasks import data

    say(data.where())
