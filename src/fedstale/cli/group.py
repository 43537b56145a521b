"""A group of commands that says which command was meant, in the words of every other wrong name.

Typer bundles click since 0.22 and needs it installed before; some versions of either suggest a command by themselves,
and together they do it twice. Only what all of them offer is used here.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from ..checks import unknown


class CommandGroup(TyperGroup):
    """Commands by name; `Typer(cls=Commands)` makes a group of this kind."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the first word; an unknown one is an error like any other unknown name."""
        if args and self.get_command(ctx, args[0]) is None:
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)
