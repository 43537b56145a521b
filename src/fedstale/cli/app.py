"""`fedstale`: the commands, and how every error becomes one clear line."""

from __future__ import annotations

import faulthandler
import io
import sys
import warnings
from contextlib import suppress
from typing import Annotated

import typer

from .. import __version__
from ..checks import InvalidInput
from ..extras import explained
from ..tasks.data import DataUnavailable
from . import advise, bench, board, compare, data, flower, lists, report, reproduce, run, runs, sweep
from .group import CommandGroup
from .options import say

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning with devices that show up unevenly: fresh and stale updates, mixed without bias.",
)
app.command("compare")(compare.compare)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("advise")(advise.advise)
app.command("list")(lists.list_)
app.command("sweep", epilog=sweep.settings_help())(sweep.sweep)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("board")(board.board)
app.add_typer(bench.app, name="bench")
app.add_typer(runs.app, name="runs")
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")


def _version(wanted: bool) -> None:
    if wanted:
        say(f"fedstale {__version__}")
        raise typer.Exit


@app.callback()
def fedstale(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning with devices that show up unevenly."""


def main() -> None:
    """Run a command; a wrong input is one line on standard error and exit code 2, never a traceback."""
    with suppress(AttributeError, RuntimeError, OSError):  # a standard error that is no file
        faulthandler.enable()  # a row file that is cut between two looks ends the process by SIGBUS: not without a word
    warnings.showwarning = _note  # type: ignore[assignment]  # it wants the text only
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no β shows a question mark
            stream.reconfigure(errors="replace")
    try:
        app()
    except (InvalidInput, DataUnavailable) as error:
        _complain("; ".join([str(error), *getattr(error, "__notes__", ())]))
    except ModuleNotFoundError as error:
        known = explained(error)
        if known is error:
            raise
        _complain(str(known))
    except MemoryError as error:  # NumPy says how much it wanted
        _complain(f"not enough memory: {error or 'choose a smaller model or fewer clients'}")
    except OSError as error:
        if error.errno is None:  # not the system's word
            raise
        where = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        _complain(f"{where}; what was saved before is intact: fix this, then continue with fedstale resume")
    except KeyboardInterrupt:
        sys.exit(130)


def _note(message: Warning | str, *_: object) -> None:
    say(f"note: {message}", colour=typer.colors.YELLOW, err=True)


def _complain(message: str) -> None:
    say(f"fedstale: {' '.join(message.split())}", colour=typer.colors.RED, err=True)
    sys.exit(2)
