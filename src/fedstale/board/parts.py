"""Pieces of the page that change: rows of the table, the list of curves, what is running, the heat map's cells.

They are plain HTML elements whose text React escapes. What a click on them means is in `assets/board.js`, by `data-`
attributes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dash import html

from .. import configs
from ..analysis import HeatMap, Square, Style, diverged_text
from ..analysis.heatmap import Point, ratio
from ..analysis.metrics import metric_text
from ..store import RunInfo
from ..terminal import duration
from .curves import RunGroup
from .filters import result, title
from .run_settings import differing, full, meaning, unusual, value

Children = list[Any]
_SETTINGS = 8
"""Curves whose settings stand side by side."""


def number(value: Any) -> str:
    """A setting's value in a cell."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def outcome(info: RunInfo) -> str:
    """The result column."""
    found = result(info)
    return "–" if found is None else metric_text(*found)


def rows(infos: Sequence[RunInfo]) -> Children:
    """The table's body."""
    return [_row(info) for info in infos]


def _row(info: RunInfo) -> Any:
    name = title(info)
    # The last four characters are enough for the commands, too.
    settings, other = full(info), unusual(info)
    below = " · ".join(part for part in (configs.text(settings.get("task", "")), info.id[-4:], other) if part)
    whole = "\n".join([name, info.id, *([f"sweep {info.sweep}"] if info.sweep else []), *([other] if other else [])])
    done = f"{info.rounds_done}"
    if info.rounds_total not in (None, info.rounds_done):
        done += f"/{info.rounds_total}"
    box = html.Button(
        className="tick", role="checkbox", **{"data-run": info.id, "aria-label": f"Show {name}, {info.id}"}
    )
    cells = [html.Td(number(settings.get(key)), className="num") for key in ("p_min", "swap", "lr", "seed")]
    mark = [html.Span(info.status, className=f"status {info.status}", title=info.reason)]
    if info.diverged_in is not None:
        mark.append(html.Span(f"in round {info.diverged_in:,}", className="below"))
    return html.Tr(
        [
            html.Td(box),
            html.Th([html.Span(name, className="name"), html.Span(below, className="below")], scope="row", title=whole),
            *cells,
            html.Td(done, className="num"),
            html.Td(outcome(info), className="num"),
            html.Td(mark),
        ],
        **{"data-row": info.id},
    )


def legend(curves: Sequence[RunGroup]) -> Children:
    """One line per curve: how it is drawn, what it is, how it stands; and a button that takes it away."""
    return [_entry(curve) for curve in curves]


def _entry(curve: RunGroup) -> Any:
    # A run that has no value yet waits for it; one that diverged will never have one.
    known = [found for found in map(result, curve.runs) if found is not None and not math.isnan(found[1])]
    mean = sum(value for _, value in known) / len(known) if known else math.nan
    last = metric_text(known[0][0], mean) if known else "–"
    ended = [info.diverged_in for info in curve.runs if info.diverged_in is not None]
    last = diverged_text(ended, len(curve.runs)) if ended else last
    ids = " ".join(info.id for info in curve.runs)
    seeds = f"{len(curve.runs)} seed" + ("s" if len(curve.runs) > 1 else "")
    line = html.Span(className="swatch", style={"background": _stroke(curve.style)}, **{"aria-hidden": "true"})
    return html.Li(
        [
            line,
            html.Span(curve.label, className="name", title=curve.label),
            html.Span(seeds, className="muted"),
            html.Span(last, className="num", title="no result" if ended else "mean of the last values"),
            html.Button("×", className="drop", **{"data-drop": ids, "aria-label": f"Take away {curve.label}"}),
        ],
        className="ended" if ended else "",
        **{"data-look": str(curve.repetition), "data-ids": ids},
    )


def settings(curves: Sequence[RunGroup], *, every: bool) -> Children:
    """The settings of the curves side by side: those in which they differ, or all."""
    shown = curves[:_SETTINGS]
    records = [_settings(curve) for curve in shown]
    apart = differing(records)
    names = list(dict.fromkeys(name for record in records for name in record)) if every else apart
    if not names:
        why = "Choose runs to see their settings." if not curves else "One curve: nothing differs."
        why = why if len(curves) < 2 else "The chosen runs differ in nothing that is a setting."
        return [html.P(why, className="muted")]
    head = [html.Th("setting", scope="col")]
    head += [
        html.Th([html.Span(className="swatch", style={"background": _stroke(one.style)}), one.label], scope="col")
        for one in shown
    ]
    body = [
        html.Tr(
            [
                html.Th(name, scope="row", title=meaning(name)),
                *(html.Td(value(record.get(name)), className="num") for record in records),
            ],
            className="apart" if name in apart and every and len(shown) > 1 else "",
        )
        for name in names
    ]
    caption = html.Caption("Settings of the chosen runs, one column for each curve", className="hidden")
    made: Children = [html.Table([caption, html.Thead(html.Tr(head)), html.Tbody(body)], className="settings")]
    if len(curves) > len(shown):
        made.append(html.P(f"The first {len(shown)} of {len(curves)} curves.", className="note"))
    return made


def _settings(curve: RunGroup) -> dict[str, Any]:
    """The settings of a curve: those of its first run, with all of its seeds."""
    seeds = [info.config["seed"] for info in curve.runs if "seed" in info.config]
    return {**full(curve.runs[0]), **({"seed": ", ".join(map(str, seeds))} if seeds else {})}


def _stroke(style: Style) -> str:
    """A line with its dashes as a background."""
    ends = [sum(style.dashes[:k]) for k in range(len(style.dashes) + 1)]
    shades = [style.colour, "transparent"]
    parts = [f"{shades[k % 2]} {a}px {b}px" for k, (a, b) in enumerate(pairwise(ends))]
    return f"repeating-linear-gradient(90deg, {', '.join(parts)})" if parts else style.colour


def running(infos: Sequence[RunInfo], paces: dict[str, float | None], now: float) -> Children:
    """What is running, and which sweeps had runs end in the last minute."""
    active = [info for info in infos if info.status == "running"]
    entries = [_progress(info, paces.get(info.id)) for info in active[:30]]
    if len(active) > 30:
        entries.append(html.Li(f"and {len(active) - 30} more"))
    ended: dict[str, int] = {}
    for info in infos:
        if info.sweep and info.ended and now - info.updated < 60:
            ended[info.sweep] = ended.get(info.sweep, 0) + 1
    total = {name: sum(info.sweep == name for info in infos) for name in ended}
    entries += [
        html.Li(
            [
                html.Span(f"sweep {name}", className="name"),
                html.Span(f"{total[name]:,} runs, {count:,} ended in the last minute", className="muted"),
            ]
        )
        for name, count in ended.items()
    ]
    if entries:
        return entries
    newest = max((info.updated for info in infos), default=None)
    last = "" if newest is None else f" The last change was {time.strftime('%Y-%m-%d %H:%M', time.localtime(newest))}."
    return [html.Li(f"Nothing is running.{last}", className="muted")]


def _progress(info: RunInfo, pace: float | None) -> Any:
    name = title(info)
    text = f"round {info.rounds_done:,}" + (f" of {info.rounds_total:,}" if info.rounds_total else "")
    if pace:
        text += f" · {pace:.3g} rounds/s"
        if info.rounds_total:
            text += f" · {duration((info.rounds_total - info.rounds_done) / pace)} left"
    bar = html.Progress(
        value=str(info.rounds_done), max=str(info.rounds_total or 1), **{"aria-label": f"Progress of {name}"}
    )
    found = outcome(info)
    return html.Li(
        [
            html.Button(name, className="name link", **{"data-only": info.id, "aria-label": f"Show only {name}"}),
            bar,
            html.Span(text, className="muted"),
            html.Span("" if found == "–" else found, className="num"),
        ],
        **{"data-running": info.id},
    )


def heat(table: HeatMap, shown: str) -> Any:
    """The heat map as a table of buttons; `shown` is "best" or the β that is compared with the best fixed one."""
    squares = table.squares(shown)
    head = html.Tr(
        [
            html.Th(["swap", html.Span(" \\ ", **{"aria-hidden": "true"}), "p_avg/p_min"], className="corner"),
            *(html.Th(f"{ratio(p):.3g}", scope="col", title=f"p_min {p:g}") for p in table.p_min),
        ]
    )
    body = [
        html.Tr(
            [
                html.Th(table.swap_text(swap), scope="row"),
                *(html.Td(_cell((p, swap), squares[p, swap]) if (p, swap) in squares else "") for p in table.p_min),
            ]
        )
        for swap in reversed(table.swaps)
    ]
    caption = "Rows: label swap σ̂²_g. Columns: p_avg/p_min. Arrow keys move, Enter shows the curves behind a cell."
    return html.Table([html.Caption(caption, className="hidden"), html.Thead(head), html.Tbody(body)], className="heat")


def _cell(point: Point, square: Square) -> Any:
    look = {
        "backgroundColor": square.colour or "transparent",
        "color": ("#fff" if square.on_dark else "#111") if square.colour else "inherit",
    }
    marks = {"data-cell": f"{point[0]!r} {point[1]!r}", "aria-label": square.description}
    lines = [html.B(square.text), *map(html.Span, square.notes)]
    pale = "" if square.decided or not square.colour else "pale"
    return html.Button(lines, style=look, title=square.description, tabIndex="-1", className=pale, **marks)
