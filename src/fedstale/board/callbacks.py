"""What happens on the page: every callback reads the store and returns pieces of the page; none writes anything.

The browser asks every two seconds what changed (`tick`), and gets stamps; only the pieces whose stamp is new are drawn
again.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from ..analysis.axes import AXES, ROUND
from ..analysis.heatmap import BEST
from ..store import RunInfo
from . import page, parts
from .choice import LIMIT, all_or_none, chosen_runs, first_choice, looks, with_seeds
from .curves import group
from .filters import matching, ordered
from .heat import HeatMaps
from .panels import Panel, Panels
from .source import Source

_KEPT = ("chosen", "looks", "view", "axis", "metric", "smooth", "scale", "settings", "sweep", "map", "shown", "inspect",
        "order", "page")  # fmt: skip
"""What the browser keeps in the address, in the order in which `board.sync` is given it."""


def register(app: Dash, source: Source, maps: HeatMaps) -> None:
    """Wire the page to a source."""
    panels = Panels(source)
    _tick(app, source, maps)
    _table(app, source)
    _heat(app, source, maps)
    _chosen_curves(app, source, panels)
    _inspected_run(app, source, panels)
    app.clientside_callback(
        ClientsideFunction("board", "sync"),
        Output("board", "className"),
        *(Input(name, "data") for name in _KEPT),
        Input("filter", "value"),
    )
    for name in page.PANELS:
        app.clientside_callback(
            ClientsideFunction("board", "draw"),
            Output(f"{name}-graph", "figure"),
            Input(f"{name}-figure", "data"),
            State(f"{name}-graph", "figure"),
            State(f"{name}-graph", "id"),
            prevent_initial_call=True,
        )


def digest(*parts: object) -> str:
    """A stamp of anything that can be written down."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def counts(source: Source) -> str:
    """How many runs there are."""
    states: dict[str, int] = {}
    for info in source.runs.values():
        states[info.status] = states.get(info.status, 0) + 1
    return ", ".join([f"{len(source.runs):,} runs", *(f"{n:,} {name}" for name, n in sorted(states.items()))])


def short(folder: Path) -> str:
    """A folder as people write it, with ~ for their own."""
    try:
        return str("~" / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)


def first_page(source: Source) -> Any:
    """The page as it is sent: with the first rows of the table, so that they are seen before any script has asked."""
    shown, where, stamp = rows(source)
    return page.layout(short(source.folder), first_choice(source), counts(source), shown, where, stamp)


def _tick(app: Dash, source: Source, maps: HeatMaps) -> None:
    @app.callback(
        Output("stamp-runs", "data"),
        Output("stamp-chosen", "data"),
        Output("stamp-map", "data"),
        Output("stamp-running", "data"),
        Output("running", "children"),
        Output("counts", "children"),
        Output("trouble", "children"),
        Input("interval", "n_intervals"),
        State("chosen", "data"),
        State("view", "data"),
        State("stamp-runs", "data"),
        State("stamp-chosen", "data"),
        State("stamp-map", "data"),
        State("stamp-running", "data"),
        State("trouble", "children"),
    )
    def tick(_: Any, chosen: Any, view: str, runs: str, picked: str, heat: str, active: str, trouble: str) -> Any:
        source.look()
        infos = list(source.runs.values())
        paces = {info.id: source.pace(info.id) for info in infos if info.status == "running"}
        listed = parts.running(infos, paces, time.time())
        new = [
            digest(source.version),
            digest([(info.id, info.updated, info.status) for info in chosen_runs(source, chosen)]),
            digest([info.id for info in infos if info.ended]) if view == "sweep" else heat,
            digest([part.to_plotly_json() for part in listed]),
        ]
        old = [runs, picked, heat, active]
        stamps = [no_update if mine == theirs else mine for mine, theirs in zip(new, old, strict=True)]
        return (
            *stamps,
            no_update if stamps[3] is no_update else listed,
            no_update if stamps[0] is no_update else counts(source),
            no_update if (trouble or "") == source.trouble else source.trouble,
        )


def rows(source: Source, text: Any = "", order: Any = None, number: Any = 0) -> tuple[list[Any], str, str]:
    """One page of the table, where in the list it is, and its stamp."""
    found = _listed(source, text, order)
    last = max(0, -(-len(found) // page.PAGE) - 1)
    start = page.PAGE * min(max(number if isinstance(number, int) else 0, 0), last)
    shown = found[start : start + page.PAGE]
    where = f"{start + 1:,}–{start + len(shown):,} of {len(found):,} runs" if shown else "no run matches the filter"
    return parts.rows(shown), where, digest(shown, len(found), start)


def _listed(source: Source, text: Any, order: Any) -> list[RunInfo]:
    """The runs that the filter keeps, in order."""
    found = matching(source.runs.values(), str(text or ""))
    order = order if isinstance(order, dict) else {}
    return ordered(found, str(order.get("column", "")), bool(order.get("descending")))


def _table(app: Dash, source: Source) -> None:
    @app.callback(
        Output("rows", "children"),
        Output("page-text", "children"),
        Output("stamp-rows", "data"),
        Output("page", "data"),
        Input("stamp-runs", "data"),
        Input("filter", "value"),
        Input("order", "data"),
        Input("page", "data"),
        State("stamp-rows", "data"),
    )
    def table(_: str, text: Any, order: Any, number: Any, old: str) -> Any:
        # Another list begins at its first page, unless an address names one.
        first = ctx.triggered_id == "filter" and "page.data" not in ctx.triggered_prop_ids
        shown, where, stamp = rows(source, text, order, 0 if first else number)
        return *((no_update,) * 3 if stamp == old else (shown, where, stamp)), 0 if first else no_update


def _heat(app: Dash, source: Source, maps: HeatMaps) -> None:
    @app.callback(
        Output("sweep-box", "children"),
        Output("map-box", "children"),
        Output("shown-box", "children"),
        Output("heat", "children"),
        Output("heat-note", "children"),
        Output("map", "data"),
        Input("view", "data"),
        Input("stamp-map", "data"),
        Input("sweep", "data"),
        Input("map", "data"),
        Input("shown", "data"),
    )
    def heat(view: str, _: str, sweep: Any, given: Any, shown: Any) -> Any:
        if view != "sweep":
            return (no_update,) * 6
        sweeps = {"": "all together", **{name: name for name in maps.sweeps()}}
        sweep = sweep if sweep in sweeps else ""
        found = {available.key: available for available in maps.maps(sweep)}
        key = given if given in found else next(iter(found), "")
        listed = {key: f"{available.label} ({available.runs:,} runs)" for key, available in found.items()}
        boxes = [page.select("sweep", "Sweep", sweeps, sweep), page.select("map", "Setting", listed or {"": "–"}, key)]
        if not key:
            note = "There are no finished runs that differ in p_min or swap and have a β and a test accuracy."
            return *boxes, page.select("shown", "Cells show", {BEST: "β_opt"}, BEST), "", note, no_update
        table = maps.table(key, sweep)
        options = {BEST: "β_opt, Δ₀, Δ₁", **{beta: f"{beta} − best β" for beta in table.adaptive}}
        shown = shown if shown in options else BEST
        boxes.append(page.select("shown", "Cells show", options, shown))
        partial = sum(not table.complete(point) for point in table.cells)
        note = (
            "β with the best test accuracy, each β at its best learning rate, mean over seeds. Δ₀, Δ₁: its gain over "
            "β = 0 (FedAvg) and β = 1 (FedVARP), percentage points."
            if shown == BEST
            else f"Test accuracy of β = {shown} minus that of the best fixed β, percentage points."
        )
        note += " ± standard error over seeds; pale where the difference is within two of them: nothing is decided."
        note += f" {partial} cells lack some β that others have." if partial else ""
        note += " A star: the best learning rate of some β is at the edge of its grid." * any(
            map(table.starred, table.cells)
        )
        return *boxes, parts.heat(table, shown), note, no_update if key == given else key

    @app.callback(
        Output("chosen", "data", allow_duplicate=True),
        Input("cell", "data"),
        State("map", "data"),
        State("sweep", "data"),
        prevent_initial_call=True,
    )
    def open_cell(cell: Any, key: str, sweep: str) -> Any:
        try:
            p, swap = map(float, str(cell).split())
        except ValueError:
            return no_update
        return maps.runs_behind(key, (p, swap), sweep or "")[:LIMIT] or no_update

    @app.callback(
        Output("chosen", "data", allow_duplicate=True),
        Input("all", "n_clicks"),
        State("filter", "value"),
        State("order", "data"),
        State("chosen", "data"),
        prevent_initial_call=True,
    )
    def choose_all(_: Any, text: Any, order: Any, chosen: Any) -> Any:
        return all_or_none(source, _listed(source, text, order), chosen)

    @app.callback(
        Output("chosen", "data", allow_duplicate=True),
        Input("seeds", "n_clicks"),
        State("chosen", "data"),
        prevent_initial_call=True,
    )
    def add_seeds(_: Any, chosen: Any) -> Any:
        return with_seeds(source, [info.id for info in chosen_runs(source, chosen)])


def _outputs(*names: str) -> list[Any]:
    found = []
    for name in names:
        found += [Output(f"{name}-figure", "data"), Output(f"{name}-plot", "className")]
        found += [Output(f"{name}-{part}", "children") for part in ("empty", "note", "alt")]
    return found


def _values(*panels: Panel) -> list[Any]:
    found: list[Any] = []
    for one in panels:
        found += [one.figure, "plot" if one.instead == "" else "plot empty", one.instead, one.note, one.spoken]
    return found


def _chosen_curves(app: Dash, source: Source, panels: Panels) -> None:
    @app.callback(
        Output("metric-box", "children"),
        Output("axis-box", "children"),
        *_outputs("curve"),
        Input("chosen", "data"),
        Input("stamp-chosen", "data"),
        Input("metric", "data"),
        Input("axis", "data"),
        Input("smooth", "data"),
        Input("scale", "data"),
        State("looks", "data"),
    )
    def curve(chosen: Any, _: str, metric: Any, axis: Any, smooth: Any, scale: Any, held: Any) -> Any:
        curves = group(chosen_runs(source, chosen), looks(held))
        options = panels.metrics(curves)
        metric = metric if metric in options else next(iter(options), "accuracy")
        box = page.select("metric", "y", options or {"accuracy": "Test accuracy"}, metric)
        axis = axis if axis in AXES else ROUND
        window = int(smooth) if smooth in map(str, page.WINDOWS) else 1
        log = {"linear": False, "log": True}.get(str(scale))
        return box, page.axes(panels.axes(curves)), *_values(panels.curve(curves, metric, axis, window, log=log))

    @app.callback(
        Output("legend", "children"),
        Output("chosen-text", "children"),
        Output("settings-box", "children"),
        *_outputs("beta", "groups"),
        Input("chosen", "data"),
        Input("stamp-chosen", "data"),
        Input("settings", "data"),
        State("looks", "data"),
    )
    def rest(chosen: Any, _: str, which: Any, held: Any) -> Any:
        infos = chosen_runs(source, chosen)
        curves = group(infos, looks(held))
        return (
            parts.legend(curves),
            panels.count(infos, curves),
            parts.settings(curves, every=which == "all" or len(curves) == 1),
            *_values(panels.beta(curves), panels.groups(curves)),
        )


def _inspected_run(app: Dash, source: Source, panels: Panels) -> None:
    @app.callback(
        Output("inspect-box", "children"),
        *_outputs("raster", "staleness", "probability"),
        Input("chosen", "data"),
        Input("stamp-chosen", "data"),
        Input("inspect", "data"),
    )
    def inspected_run(chosen: Any, _: str, inspect: Any) -> Any:
        options = {
            info.id: f"{curve.label} · seed {info.config.get('seed', '–')}"
            for curve in group(chosen_runs(source, chosen))
            for info in curve.runs
        }
        inspect = inspect if inspect in options else next(iter(options), "")
        box = page.select("inspect", "Run", options or {"": "–"}, inspect)
        return box, *_values(*panels.inspected_run(source.runs.get(inspect)))
