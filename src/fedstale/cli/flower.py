"""`fedstale flower …`: what helps to put a federation on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .group import CommandGroup
from .options import say

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Flower: apps that use fedstale's strategies.")


@app.callback()
def flower() -> None:
    """Flower: apps that use fedstale's strategies."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument()],
    name: Annotated[str | None, typer.Option(help="The app's name; default: the folder's.")] = None,
) -> None:
    """Write a complete Flower app that learns digits with fedstale.

    FOLDER is where it goes: a new or empty folder.
    """
    from ..flower.new_app import write_app

    for file in write_app(folder, name=name):
        say(file)
    say(f"\nTry it: cd {folder} && flwr run . local --stream")
