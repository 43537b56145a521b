"""Where typer below 0.21 and click 8.5 disagree: help of arguments is overwritten, a suggestion is made twice.

Flower holds typer below 0.21, and nothing holds click, so both meet. Without this, `--help` says what every option
means and not what an argument is.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import click
from typer.core import TyperArgument

TYPER_SUGGESTS = not hasattr(click, "NoSuchCommand")
"""Whether typer must say which command was meant; since click 8.5 says it, it would be said twice."""

_init = TyperArgument.__init__


@wraps(_init)
def _keeping_help(self: TyperArgument, *, help: str | None = None, **rest: Any) -> None:
    _init(self, help=help, **rest)
    self.help = help


def keep_argument_help() -> None:
    """Let arguments keep their help, whichever versions are installed."""
    TyperArgument.__init__ = _keeping_help  # type: ignore[method-assign]
