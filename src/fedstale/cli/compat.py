"""Where typer and click disagree: click 8.5 overwrites the help that typer below 0.21 gave an argument before it.

Flower holds typer below 0.21, and nothing holds click, so both meet. Without this, `--help` says what every option
means and not what an argument is.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from typer.core import TyperArgument

_init = TyperArgument.__init__


@wraps(_init)
def _keeping_help(self: TyperArgument, *, help: str | None = None, **rest: Any) -> None:
    _init(self, help=help, **rest)
    self.help = help


def keep_argument_help() -> None:
    """Let arguments keep their help, whichever versions are installed."""
    TyperArgument.__init__ = _keeping_help  # type: ignore[method-assign]
