"""Text on its way to a terminal: what came from a file, a store or a request cannot send codes to it.

Rich's styles are kept apart from the text until the very end, and that is where the text is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..checks import printable


class SafeConsole(Console):
    r"""A console that shows what is not printable as "\x1b" and the like, in tables, bars and lines."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Rich does; only its own codes are codes."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(printable(part.text, keep="\n"), part.style)
