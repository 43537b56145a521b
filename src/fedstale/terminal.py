"""Text and bars on their way to a terminal or a notebook.

What came from a file, a store or a request cannot send codes to a terminal: Rich's styles are kept apart from the text
until the very end, and that is where the text is looked at.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import textwrap
import time
from collections.abc import Iterable
from html import escape
from importlib import import_module
from io import StringIO
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .checks import printable

_REFRESH = 0.2
"""Seconds between two changes of a bar in a notebook."""


class _SafeConsole(Console):
    r"""A console that shows what is not printable as "\x1b" and the like, in tables, bars and lines."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Rich does; only its own codes are codes."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(printable(part.text, keep="\n"), part.style)


def make_console(*, err: bool = False, wide: bool = False) -> Console:
    """Return the console for tables: as wide as the terminal, also behind a pipe (`| less`); wide for a file.

    Parameters
    ----------
    err
        Whether to write to standard error.
    wide
        Whether lines may be longer than the terminal is wide.
    """
    plain = _SafeConsole(stderr=err)
    if plain.is_terminal and not wide:
        return plain
    screen = None if wide else _screen_behind_a_pipe()
    return _SafeConsole(stderr=err, width=max(240, plain.width) if wide else screen or 140)


def _screen_behind_a_pipe() -> int | None:
    """Columns of the terminal that somebody sits at whose output goes through a pipe, such as to a pager."""
    try:
        if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode) and sys.stderr.isatty():
            return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError, AttributeError):  # no such file, as in a notebook
        pass
    return None


def fitted(text: str, *, err: bool = False) -> str:
    """Break lines that are longer than the terminal is wide between words; where there is none, they stay whole."""
    if not (sys.stderr if err else sys.stdout).isatty():
        return text
    width = shutil.get_terminal_size().columns
    fill = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    return "\n".join(fill.fill(line) if len(line) > width else line for line in text.split("\n"))


def plain_text(what: RenderableType, width: int) -> str:
    """Write what Rich would show, without colours."""
    console = _SafeConsole(file=StringIO(), width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and hasattr(shell, "kernel")


def shows_progress(wanted: bool | None) -> bool:
    """Whether to show progress: as asked for, by default where somebody watches."""
    return wanted if wanted is not None else _in_notebook() or sys.stderr.isatty()


class Bar(Protocol):
    """A progress bar."""

    def update(self, done: int, text: str, more: RenderableType | None = None) -> None:
        """Show how much is done, a few words beside the bar, and what stands above it."""

    def stop(self) -> None:
        """Leave the last state standing."""


def make_bar(label: str, total: int, *, transient: bool = False) -> Bar:
    """Make a bar for a notebook or a terminal; `transient` ones vanish when they end."""
    return _NotebookBar(label, total, transient) if _in_notebook() else _TerminalBar(label, total, transient)


class _TerminalBar:
    """A bar by Rich, on standard error, with the time that is left."""

    def __init__(self, label: str, total: int, transient: bool = False) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        self._task = self._bars.add_task(label, total=total, text="")
        self._live = Live(self._bars, console=make_console(err=True), refresh_per_second=4, transient=transient)
        self._live.start()

    def update(self, done: int, text: str, more: RenderableType | None = None) -> None:
        """See `Bar`."""
        from rich.console import Group

        self._bars.update(self._task, completed=done, text=text)
        if more is not None:
            self._live.update(Group(more, self._bars))

    def stop(self) -> None:
        """See `Bar`."""
        self._live.stop()


class _NotebookBar:
    """A bar in HTML that the cell's output keeps replacing; it needs no widgets."""

    def __init__(self, label: str, total: int, transient: bool = False) -> None:
        shown: Any = import_module("IPython.display")  # there, or this would be no notebook
        self._html, self._label, self._total, self._transient = shown.HTML, label, total, transient
        self._began = self._shown = time.monotonic()
        self._first: int | None = None
        self._last: tuple[int, str, Any] = (0, "", None)
        self._output: Any = shown.display(shown.HTML(self._text()), display_id=True)

    def update(self, done: int, text: str, more: Any = None) -> None:
        """See `Bar`."""
        self._first = done if self._first is None else self._first
        self._last = done, text, more if more is not None else self._last[2]
        if time.monotonic() - self._shown >= _REFRESH:
            self._show()

    def stop(self) -> None:
        """See `Bar`."""
        self._output.update(self._html("" if self._transient else self._text()))

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._output.update(self._html(self._text()))

    def _text(self) -> str:
        done, text, more = self._last
        above = "" if more is None else more._repr_html_()
        bar = f'<progress value="{done}" max="{self._total}" style="width:8em"></progress>'
        words = " ".join(filter(None, [f"{done}/{self._total}", text, self._left(done)]))
        return f"{above}<div>{escape(self._label)} {bar} {escape(words)}</div>"

    def _left(self, done: int) -> str:
        since = done - (self._first or 0)
        if not since or done >= self._total:
            return ""
        left = (time.monotonic() - self._began) / since * (self._total - done)
        return f"{duration(left)} left"


def duration(seconds: float) -> str:
    """Write a time in words: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
