"""The table of a comparison: its cells as text, once, and as a terminal, a notebook and a printed line show them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ..analysis import Estimate, style
from ..analysis.metrics import group_name, is_share, short_title
from ..checks import counted

if TYPE_CHECKING:
    from .comparison import Comparison

_WIDE = 160
"""Columns of a terminal that has room for everything; a narrower one shows how good the methods are."""
_ROOMY = 110
"""Columns from which on cells have space around them."""


@dataclass(frozen=True)
class _Cells:
    """The table as text: headings without that of the methods, and for each method its cells."""

    headings: list[str]
    rows: dict[str, list[str]]


def title(comparison: Comparison) -> str:
    """Say in which setting the methods are compared."""
    settings = comparison.settings
    about = [settings.task_name, comparison.participation_text]
    about += [f"swap {comparison.swap_text}"] if settings.swap else []
    return ", ".join([*about, counted(settings.total_rounds, "round")])


def caption(comparison: Comparison) -> str:
    """Say how many seeds there are, or how far the comparison is."""
    if comparison.done < comparison.total:
        return f"{comparison.done} of {counted(comparison.total, 'run')}"
    return f"seeds: {len(comparison.seeds)}"


def as_rich(comparison: Comparison, width: int) -> Any:
    """Make a table for a terminal that is so many columns wide."""
    from rich.table import Table
    from rich.text import Text

    cells = _cells(comparison, wide=width >= (_ROOMY if comparison.metric == "excess_loss" else _WIDE))
    made = Table(title=title(comparison), caption=caption(comparison), padding=(0, 1) if width >= _ROOMY else (0, 0))
    made.add_column("method", min_width=8, overflow="fold")
    for heading in cells.headings:
        made.add_column(heading, justify="right", overflow="fold")
    for label, row in cells.rows.items():
        made.add_row(Text(label, style=style(label).colour), *row)
    return made


def as_text(comparison: Comparison, width: int = 80) -> str:
    """Write the table as plain text."""
    from ..terminal import plain_text

    return plain_text(as_rich(comparison, width), width)


def as_html(comparison: Comparison) -> str:
    """Write the table as HTML."""
    cells = _cells(comparison, wide=False)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("method", *cells.headings))
    rows = ""
    for label, row in cells.rows.items():
        first = f'<td style="text-align:left;color:{style(label).colour}">{escape(label)}</td>'
        rows += f"<tr>{first}{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    above = f"<caption>{escape(title(comparison))}; {escape(caption(comparison))}</caption>"
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(comparison: Comparison, *, wide: bool) -> _Cells:
    """Mean ± standard error over seeds; accuracies are means over the last tenth of the rounds.

    A method of which a seed diverged says so in place of its accuracy, and has no other numbers.
    """
    grouped, form = comparison.metric != "excess_loss", ".1%" if is_share(comparison.metric) else ".3g"
    rows = comparison.rows()

    def known(key: str) -> bool:
        return any(key in row and _text(row[key], ".0f") != "–" for row in rows)

    columns = [("objective", "objective", ".3f")] if grouped else []
    columns += [("gap closed", "gap closed", ".0%")] if known("gap closed") else []
    columns += [(short_title(comparison.metric), comparison.metric, form)]
    columns += [(group_name(1), "group 1", form), ("worst tenth", "worst tenth", form)] if grouped else []
    if comparison.target is not None:
        timed = known("virtual seconds to target")
        columns += [("s to target", "virtual seconds to target", ".1f")] if timed else []
        columns += [("rounds to target", "rounds to target", ".0f")] if wide or not timed else []
        columns.append(("MB to target", "bytes to target", "MB"))
    if not wide and not grouped:
        columns.append(("β", "beta", ".2f"))
    if wide:
        columns += [(group_name(0), "group 0", form)] if grouped else []
        columns += [("β", "beta", ".2f"), ("MB up", "bytes", "MB"), ("MB down", "bytes down", "MB")]
        columns += [("server MB", "server bytes", "MB")]
        columns += [("rounds lost", "rounds lost", ".0f")] if known("rounds lost") else []
        in_time = ("virtual seconds", ".1f"), ("late", ".0f"), ("lost", ".0f"), ("wasted seconds", ".1f")
        columns += [(key, key, spec) for key, spec in in_time] if known("virtual seconds") else []
        columns.append(("seconds", "seconds", ".1f"))
    found: dict[str, list[str]] = {}
    for row in rows:
        found[str(row["method"])] = [
            format(row[key], spec) if key == comparison.metric else _text(row[key], spec) for _, key, spec in columns
        ]
    return _Cells([heading for heading, _, _ in columns], found)


def _text(cell: Estimate | str, spec: str) -> str:
    if isinstance(cell, str) or cell.diverged:
        return "–"
    if spec == "MB":
        return "–" if cell.mean != cell.mean else f"{cell.mean / 1e6:.2f}"
    return format(cell, spec)
