"""Drawings as inline SVG: lines with bands, and who came when.

Written by hand, because Matplotlib's SVG would serve the report worse: a chart of six lines with their bands takes
86 kB there and 33 kB here (and seven times as long to make), its text and grid do not follow the reader's light or dark
theme, and its lines have no titles for the pointer and no words for a screen reader. Nor does a report need Matplotlib:
a server that keeps a store can write one. The page has no script, so that Plotly cannot serve either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..analysis import Style, raster
from ..analysis.attendance import visits
from ..analysis.curve import late_range
from ..analysis.palette import INDIGO, SOLID
from ..checks import Float
from ..federation import Ints
from .markup import Markup, tag
from .scale import Scale, labels, span

_WIDTH, _HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 20, 10, 40
_POINTS = 160
"""More points than this are averaged: the drawing is not wider."""
CLIENTS, COLUMNS = 48, 180
"""The finest raster."""


@dataclass(frozen=True, eq=False)
class Line:
    """A line of a chart.

    Attributes
    ----------
    label
        What it is called.
    x, y
        Its points, shape (n,); those whose y is not finite are left out.
    error
        Half the height of its band, shape (n,), NaN or None for none.
    style
        Its colour and its dashes.
    ending
        Why it ends before the others: "diverged in round 17". A cross marks the place.
    """

    label: str
    x: Float
    y: Float
    error: Float | None = None
    style: Style = SOLID
    ending: str = ""


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str = "round",
    y_label: str = "",
    percent: bool = False,
    log: bool = False,
    limits: tuple[float, float] | None = None,
    legend: bool = False,
) -> Markup:
    """Draw lines with their bands.

    Parameters
    ----------
    title
        What stands above.
    lines
        What is drawn.
    x_label, y_label
        What the axes are.
    percent
        Whether y is a share, to be shown in per cent.
    log
        Whether the y axis is logarithmic.
    limits
        The range of y; default: of the numbers.
    legend
        Whether the lines are named below; not needed where one legend serves several charts.
    """
    thin = [_thin(line) for line in lines]
    thin = [line for line in thin if len(line.x)]
    bands = [line.y + sign * np.nan_to_num(_error(line)) for line in thin for sign in (-1, 1)]
    framed = late_range((line.x, line.y, _error(line)) for line in thin) if percent else None
    low, high = limits or framed or span(bands, log=log, least=0.02 if percent else 0.0)
    y = Scale(low, high, _HEIGHT - _BOTTOM, _TOP, log)
    x = Scale(*span([line.x for line in thin], whole=True), _LEFT, _WIDTH - _RIGHT)
    parts = [*_grid(x, y, x_label, y_label, percent=percent)]
    inside = [part for line in thin for part in _draw(line, x, y, percent=percent)]
    # A drawing in the drawing cuts off what lies outside the frame; the ends of lines may stand over its right edge.
    width, height = _WIDTH - _LEFT - 4, _HEIGHT - _TOP - _BOTTOM + 2
    box = {"x": _LEFT, "y": _TOP - 1, "width": width, "height": height, "aria_hidden": "true"}
    parts.append(tag("svg", inside, viewBox=f"{_LEFT} {_TOP - 1} {width} {height}", **box))
    ends = f"{x_label} {x.low:,.0f} to {x.high:,.0f}" if thin else "no finite number was recorded"
    description = f"{title}, {ends}. " + "; ".join(_describe(line, percent=percent) for line in thin)
    return figure(title, parts, description, legend_of(lines) if legend else None)


def legend_of(lines: Sequence[Line]) -> Markup:
    """The names of lines with their colours."""
    return tag("ul", [tag("li", _swatch(line.style), line.label) for line in lines], class_="legend")


def figure(
    title: str, parts: Sequence[Markup], description: str, below: Markup | None = None, height: int = _HEIGHT
) -> Markup:
    """A drawing with its title, and with words for those who cannot see it."""
    drawing = tag("svg", list(parts), viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=description)
    return tag("figure", tag("figcaption", title), drawing, below)


def raster_chart(title: str, came: Mapping[int, Ints], num_clients: int) -> Markup:
    """Draw who came in which round; many rounds or clients share a mark, the darker the more often they came."""
    found = raster(came, num_clients, rows=CLIENTS, columns=COLUMNS)
    rows, columns = found.share.shape
    height = _TOP + _BOTTOM + max(110, min(210, 9 * rows))
    y = Scale(0, rows, _TOP, height - _BOTTOM)
    x = Scale(0, columns, _LEFT, _WIDTH - _RIGHT)
    thick = (height - _BOTTOM - _TOP) / rows
    level = np.ceil(found.share * 4).astype(int)
    parts = [
        tag("path", d=path, class_="mark", stroke=INDIGO, stroke_width=f"{0.86 * thick:.1f}", opacity=f"{k / 4:g}")
        for k in (1, 2, 3, 4)
        if (path := _marks(level == k, x, y))
    ]
    first = int(found.rounds[0]) - 1
    rounds_axis = Scale(first, first + columns * found.bin_rounds, _LEFT, _WIDTH - _RIGHT)
    clients_axis = Scale(0, rows * found.bin_clients, _TOP, height - _BOTTOM)
    parts += _grid(rounds_axis, clients_axis, "round", "client", height=height, lines=False)
    often = np.bincount(visits(came)[0], minlength=num_clients) / len(came)
    words = f"{title}. {num_clients} clients, {len(came)} rounds; the clients came in {often.min():.0%} to "
    return figure(
        title, parts, words + f"{often.max():.0%} of the rounds, {often.mean():.0%} on average", height=height
    )


def _marks(here: NDArray[np.bool_], x: Scale, y: Scale) -> str:
    """Horizontal strokes over what is marked, neighbours joined."""
    strokes = []
    for row, marked in enumerate(here):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]])))
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            a, b = float(x(float(first))), float(x(float(end)))
            strokes.append(f"M{_short(a)} {_short(float(y(row + 0.5)))}h{_short(b - a)}")
    return "".join(strokes)


def _grid(
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    *,
    percent: bool = False,
    height: int = _HEIGHT,
    lines: bool = True,
) -> list[Markup]:
    parts = []
    values = y.ticks()
    for value, label in zip(values, labels(values, percent=percent), strict=True):
        at = _short(float(y(value)))
        if lines:
            parts.append(tag("path", d=f"M{_LEFT} {at}H{_WIDTH - _RIGHT}", class_="grid"))
        parts.append(tag("text", label, x=_LEFT - 6, y=at, dy=".32em", text_anchor="end"))
    values = [value for value in x.ticks(5) if value == int(value) or x.high - x.low < 5]
    for value, label in zip(values, labels(values), strict=True):
        at = _short(float(x(value)))
        parts.append(tag("path", d=f"M{at} {height - _BOTTOM}v4", class_="axis"))
        parts.append(tag("text", label, x=at, y=height - _BOTTOM + 16, text_anchor="middle"))
    parts.append(tag("path", d=f"M{_LEFT} {height - _BOTTOM}H{_WIDTH - _RIGHT}", class_="axis"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(tag("text", x_label, x=_short(middle), y=height - 6, text_anchor="middle", class_="label"))
    if y_label:
        at = _short((_TOP + height - _BOTTOM) / 2)
        turned = f"translate(11 {at}) rotate(-90)"
        parts.append(tag("text", y_label, transform=turned, text_anchor="middle", class_="label"))
    return parts


def _draw(line: Line, x: Scale, y: Scale, *, percent: bool) -> list[Markup]:
    error = _error(line)
    at = [_short(value) for value in x(line.x)]
    parts = []
    if np.isfinite(error).any():
        wide = np.nan_to_num(error)
        above = [f"{a} {_short(b)}" for a, b in zip(at, y(line.y + wide), strict=True)]
        below = [f"{a} {_short(b)}" for a, b in zip(at, y(line.y - wide), strict=True)]
        parts.append(
            tag("path", d="M" + "L".join([*above, *reversed(below)]) + "Z", class_="band", fill=line.style.colour)
        )
    points = [f"{a} {_short(b)}" for a, b in zip(at, y(line.y), strict=True)]
    d = "M" + "L".join(points) + ("h.1" if len(points) == 1 else "")
    title = tag("title", _describe(line, percent=percent))
    parts.append(tag("path", title, d=d, **_stroke(line.style)))
    if line.ending:
        cross = f"M{points[-1]}m-4 -4l8 8m0 -8l-8 8"
        parts.append(
            tag("path", tag("title", f"{line.label}: {line.ending}"), d=cross, **_stroke(Style(line.style.colour)))
        )
    return parts


def _thin(line: Line) -> Line:
    """The finite points; where there are too many, means of neighbours."""
    good = np.isfinite(line.y)
    x, y, error = line.x[good], line.y[good], _error(line)[good]
    if len(x) > _POINTS:
        cut = np.linspace(0, len(x), _POINTS + 1).astype(int)[:-1]
        size = np.diff([*cut, len(x)])
        x, y, error = (np.add.reduceat(values, cut) / size for values in (x, y, error))
    return replace(line, x=x, y=y, error=error)


def _error(line: Line) -> Float:
    return np.full(len(line.y), np.nan) if line.error is None else line.error


def _describe(line: Line, *, percent: bool) -> str:
    form = "{:.1%}" if percent else "{:.3g}"
    last, low, high = (form.format(value) for value in (line.y[-1], line.y.min(), line.y.max()))
    error = float(_error(line)[-1])
    shown = last + (f" ± {form.format(error)}" if np.isfinite(error) else "")
    end = f"{line.ending}, {shown} before" if line.ending else f"{shown} at the end"
    return f"{line.label}: {end}, between {low} and {high}"


def _swatch(style: Style) -> Markup:
    return tag(
        "svg", tag("path", d="M0 6H30", **_stroke(style)), viewBox="0 0 30 12", class_="swatch", aria_hidden="true"
    )


def _stroke(style: Style) -> dict[str, str | None]:
    dashes = " ".join(map(str, style.dashes))
    return {"class_": "line", "stroke": style.colour, "stroke_dasharray": dashes or None}


def _short(value: float) -> str:
    """One decimal is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")
