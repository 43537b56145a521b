"""`fedstale board`: the live page over a store."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import StoreArgument, StorePath, chosen_store, say


def board(
    where: StoreArgument = None,
    store: StorePath = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.", min=0, max=65535)] = 8050,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default accepts local connections only.")
    ] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
) -> None:
    """Show the store in the browser, live and read-only; press Ctrl-C to stop.

    STORE is its folder, as --store is; by default the one that FEDSTALE_STORE names, or ./fedstale-runs.
    """
    from ..board import Board
    from ..board.security import reached_from_outside

    opened = Board(chosen_store(where, store), host, port)
    if reached_from_outside(host):
        note = f"warning: anyone who can reach {host} can read the whole store; there is no login and no encryption"
        say(note, colour=typer.colors.YELLOW, err=True)
    say(f"board of {opened.source.folder}: {opened.url} (press Ctrl-C to stop)")
    if open_:
        import webbrowser

        webbrowser.open(opened.url)
    opened.serve()
