"""The board's figures as Plotly takes them: plain dicts. Text and grid get their colours from the style sheet.

Plotly reads a few HTML tags in any text, so every text that comes from the store goes through `plain`. No figure has a
legend: one list beside them serves all. Curves differ in colour and in dash, so that colour alone never tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..analysis import Raster, Style
from ..analysis.axes import unit
from ..analysis.curve import late_range
from ..analysis.metrics import TITLES, group_name, is_share, metric_title
from ..analysis.palette import BROWN, DASHES, GREEN, GREY, INDIGO, SKY
from ..checks import Float
from .clients import Ages, EstimatedProbabilities, some
from .curves import PlottedCurve

Figure = dict[str, Any]
Drawn = tuple[str, Style, PlottedCurve]
"""A line with its label and its style."""

_CLEAR = "rgba(0,0,0,0)"
BLANK: Figure = {
    "data": [],
    "layout": {
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
    },
}
"""Nothing to see: what a panel has before its first figure, where Plotly would show a white box."""


def plain(text: str) -> str:
    """Text that Plotly shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def curves(lines: Sequence[Drawn], metric: str, axis: str, *, log: bool = False) -> Figure:
    """Mean and band of every line; each comes with its label and its style."""
    form = ":.2%" if is_share(metric) else ":.4g"
    size, title = unit(axis, max((float(line.x[-1]) for _, _, line in lines), default=0.0))
    lines = [(label, style, replace(line, x=line.x / size)) for label, style, line in lines]
    traces: list[dict[str, Any]] = []
    for label, style, line in lines:
        # Where many bands lie upon each other, fainter ones keep the means in sight.
        shade = 0.16 if len(lines) <= 4 else 0.08
        traces += [_band(line, style.colour, shade)] if np.isfinite(line.error).any() else []
        traces.append(_trace(line, label, style, form))
        traces += [_cross(line, label, style.colour)] if line.ending else []
    figure = _figure(traces, title, plain(metric_title(metric)), f"{metric}-{axis}-{log}")
    if is_share(metric):
        figure["layout"]["yaxis"] |= {"tickformat": ".1~%"} if log else _percent([line for _, _, line in lines])
    if log:
        figure["layout"]["yaxis"] |= {"type": "log", "exponentformat": "power"}
    if axis == "bytes":
        figure["layout"]["xaxis"] |= {"tickformat": "~s", "ticksuffix": "B"}
    return figure


def _percent(lines: Sequence[PlottedCurve]) -> dict[str, Any]:
    frame = late(lines)
    return {"tickformat": ".1~%"} | ({} if frame is None else {"range": list(frame)})


def late(lines: Sequence[PlottedCurve]) -> tuple[float, float] | None:
    """The range of what comes after the first tenth of the axis, where the steep beginning would flatten it."""
    return late_range((line.x, line.mean, line.error) for line in lines)


def betas(lines: Sequence[Drawn]) -> Figure:
    """β over the rounds."""
    figure = curves(lines, "beta", "round")
    figure["layout"]["yaxis"] |= {"title": _title("β"), "range": [-0.04, 1.04], "dtick": 0.25}
    return figure


def groups(lines: Sequence[tuple[str, Style, int, PlottedCurve]]) -> Figure:
    """Accuracy of every participation group: the first drawn solid, the rarer ones dotted; with label, style, group."""
    traces = []
    for label, style, number, line in lines:
        name = f"{label}, {group_name(number)}"
        traces.append(_trace(line, name, replace(style, dashes=DASHES[0 if number == 0 else 2]), ":.2%"))
        traces += [_cross(line, name, style.colour)] if line.ending else []
    figure = _figure(traces, "round", TITLES["accuracy"], "groups")
    figure["layout"]["yaxis"] |= _percent([line for *_, line in lines])
    return figure


def raster(found: Raster) -> Figure:
    """Client × round, filled where the client came."""
    trace = {
        "type": "heatmap",
        "z": found.share.round(3).tolist(),
        "x": found.rounds.tolist(),
        "y": found.clients.tolist(),
        "zmin": 0,
        "zmax": 1,
        "showscale": False,
        "colorscale": [[0, _faded(INDIGO, 0)], [1, _faded(INDIGO, 1)]],
        "hovertemplate": "client %{y}, round %{x}: %{z:.0%}<extra></extra>"
        if found.binned
        else "client %{y}, round %{x}<extra></extra>",
    }
    figure = _figure([trace], "round", "client", "raster")
    figure["layout"]["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    figure["layout"]["xaxis"]["showgrid"] = False
    figure["layout"]["hovermode"] = "closest"
    return figure


def staleness(found: Ages) -> Figure:
    """Rounds since each client last came: mean, longest, now."""
    who = some(len(found.clients))
    clients = found.clients[who].tolist()
    marks = (("longest", found.longest, BROWN, "line-ew"), ("mean", found.mean, GREEN, "circle"))
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": clients,
            "y": _list(values[who]),
            "marker": {"color": colour, "symbol": symbol, "size": 8, "line": {"width": 2, "color": colour}},
            "hovertemplate": "%{y:.1f}<extra>" + name + "</extra>",
        }
        for name, values, colour, symbol in (*marks, ("now", found.now, SKY, "x-thin"))
    ]
    figure = _figure(traces, "client", "rounds since it came", "staleness")
    figure["layout"]["yaxis"]["rangemode"] = "tozero"
    return figure


def probabilities(found: EstimatedProbabilities) -> Figure:
    """p̂ against p: a client on the diagonal is known exactly."""
    who = some(len(found.clients))
    true, estimated = found.true[who], found.estimated[who]
    positive = np.concatenate([true, estimated])
    positive = positive[np.isfinite(positive) & (positive > 0)]
    low = float(positive.min(initial=1.0)) / 1.5
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [low, 1],
            "y": [low, 1],
            "line": {"color": GREY, "dash": "dash", "width": 1},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": _list(true),
            "y": _list(estimated),
            "text": [f"client {client}" for client in found.clients[who].tolist()],
            "marker": {"color": INDIGO, "size": 8, "opacity": 0.75},
            "hovertemplate": "%{text}: p %{x:.3g}, p̂ %{y:.3g}<extra></extra>",
        },
    ]
    x = "share of rounds in which it came" if found.observed else "true p"
    figure = _figure(traces, x, "estimated p̂", "probabilities")
    ticks = {"type": "log", "range": [float(np.log10(low)), 0.06], "tickformat": "~g"}
    ticks |= {"tickvals": [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1]}
    figure["layout"]["xaxis"] |= ticks
    figure["layout"]["yaxis"] |= ticks
    figure["layout"]["hovermode"] = "closest"
    return figure


def _trace(line: PlottedCurve, label: str, style: Style, form: str) -> dict[str, Any]:
    few = len(line.x) < 3
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": plain(label),
        "x": _list(line.x),
        "y": _list(line.mean),
        "line": {"color": style.colour, "dash": _dash_text(style), "width": 2},
        "hovertemplate": "%{y" + form + "}",
    }


def _cross(line: PlottedCurve, label: str, colour: str) -> dict[str, Any]:
    """Mark where a curve ends because a run diverged."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(label),
        "x": _list(line.x[-1:]),
        "y": _list(line.mean[-1:]),
        "marker": {"color": colour, "symbol": "x", "size": 10},
        "hovertemplate": plain(line.ending),
    }


def _band(line: PlottedCurve, colour: str, shade: float) -> dict[str, Any]:
    error = np.nan_to_num(line.error)
    x, low, high = line.x, line.mean - error, line.mean + error
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _list(np.concatenate([x, x[::-1]])),
        "y": _list(np.concatenate([high, low[::-1]])),
        "fill": "toself",
        "fillcolor": _faded(colour, shade),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _dash_text(style: Style) -> str:
    """Dashes as Plotly takes them."""
    return ",".join(f"{length}px" for length in style.dashes) or "solid"


def _faded(colour: str, opacity: float) -> str:
    return f"rgba({','.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))},{opacity:g})"


def _figure(traces: list[dict[str, Any]], x: str, y: str, revision: str) -> Figure:
    axis = {"zeroline": False, "showline": True, "linewidth": 1, "ticks": "outside", "ticklen": 4, "nticks": 7}
    return {
        "data": traces,
        "layout": {
            "xaxis": {**axis, "title": _title(x), "showgrid": False},
            "yaxis": {**axis, "title": _title(y), "showgrid": True},
            "margin": {"l": 62, "r": 14, "t": 10, "b": 44},
            "font": {"family": "system-ui, sans-serif", "size": 12},
            "paper_bgcolor": _CLEAR,
            "plot_bgcolor": _CLEAR,
            "showlegend": False,
            "hovermode": "x unified",
            "hoverlabel": {"namelength": 40},
            "autosize": True,
            # The same revision keeps zoom and pan when new rounds arrive.
            "uirevision": revision,
            "dragmode": "zoom",
        },
    }


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "standoff": 6, "font": {"size": 12}}


def _list(values: Float) -> list[float | None]:
    """Six digits are more than a screen shows, and half the bytes."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
