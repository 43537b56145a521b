"""The page: what is on it before anything is chosen, with landmarks, headings and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from ..analysis.axes import AXES, ROUND
from ..analysis.heatmap import BEST
from .figures import BLANK
from .filters import COLUMNS

_INTERVAL_MS = 2000
"""Between two looks at the store."""
PAGE = 20
"""Runs of a page of the table."""
WINDOWS = (3, 5, 10, 25)
"""Points over which a curve can be smoothed."""

INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<meta name="color-scheme" content="light dark">
<title>{%title%}</title>
<script src="/assets/theme.js"></script>
<link rel="icon" type="image/svg+xml" href="/assets/icon.svg">
{%css%}
</head>
<body>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""

PANELS = {
    "curve": "Learning curves",
    "beta": "β over time",
    "groups": "Accuracy by group",
    "raster": "Who came",
    "staleness": "Staleness per client",
    "probability": "Estimated against true p",
}
"""Figures of the page by id."""
_STORES: dict[str, Any] = {
    "view": "runs",
    "metric": "",
    "axis": ROUND,
    "smooth": "1",
    "scale": "auto",
    "settings": "differ",
    "looks": {},
    "sweep": "",
    "map": "",
    "shown": BEST,
    "inspect": "",
    "order": {"column": "", "descending": False},
    "page": 0,
    "cell": None,
}
"""What was chosen on the page, kept by the browser and in the address (`assets/board.js`)."""
_STAMPS = ("runs", "chosen", "map", "running", "rows")

_GRAPH = {
    "displaylogo": False,
    "responsive": True,
    "plotlyServerURL": "",
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d"],
    "toImageButtonOptions": {"format": "svg"},
}


def layout(folder: str, chosen: Sequence[str], counts: str, rows: Sequence[Any], where: str, stamp: str) -> Any:
    """The whole page.

    Parameters
    ----------
    folder
        Of the store.
    chosen
        The runs that are drawn at first.
    counts
        How many runs there are.
    rows, where, stamp
        The first page of the table, its place in the list, and its stamp.
    """
    stores = [dcc.Store(id=name, data=value) for name, value in _STORES.items()]
    stores += [dcc.Store(id=f"{name}-figure") for name in PANELS]
    stores += [dcc.Store(id=f"stamp-{name}", data=stamp if name == "rows" else "") for name in _STAMPS]
    return html.Div(
        [
            html.A("Skip to the curves", href="#chosen-heading", className="skip"),
            *stores,
            dcc.Store(id="chosen", data=list(chosen)),
            dcc.Interval(id="interval", interval=_INTERVAL_MS),
            _header(folder, counts),
            html.P(id="trouble", role="alert", className="trouble"),
            html.Main([_running(), _chooser(rows, where), _chosen_curves()]),
        ],
        id="board",
    )


def _header(folder: str, counts: str) -> Any:
    return html.Header(
        [
            html.H1("fedstale board"),
            html.Span(folder, className="folder", title=folder),
            html.Span(counts, id="counts", className="muted", role="status"),
            html.Button(
                "Dark", id="theme", className="plain", **{"aria-pressed": "false", "aria-label": "Dark colours"}
            ),
        ]
    )


def _running() -> Any:
    return html.Section(
        [html.H2("Running", id="running-heading"), html.Ul(id="running")],
        className="card activity",
        **{"aria-labelledby": "running-heading"},
    )


def _chooser(rows: Sequence[Any], where: str) -> Any:
    view = _segments("view", "Choose by", {"runs": "Runs", "sweep": "Heat map"}, "runs")
    return html.Section(
        [
            html.Div([html.H2("Choose", id="choose-heading"), view], className="bar"),
            html.Div(_table(rows, where), id="view-runs"),
            html.Div(_heat(), id="view-sweep", hidden=True),
        ],
        className="card chooser",
        **{"aria-labelledby": "choose-heading"},
    )


def _table(rows: Sequence[Any], where: str) -> list[Any]:
    every = html.Button(
        id="all", className="tick", role="checkbox", title="All that the filter keeps", **{"aria-label": "Choose all"}
    )
    heads = [html.Th(every, scope="col", className="narrow")]
    heads += [
        html.Th(
            html.Button(text, className="sort", **{"data-sort": key}),
            scope="col",
            className="" if key in ("run", "status") else "num",
            **{"data-column": key, "aria-sort": "none"},
        )
        for key, text in COLUMNS.items()
    ]
    help_text = "Words, or conditions such as p_min=0.1, accuracy>0.9, status=running"
    return [
        html.Div(
            [
                html.Label("Filter", htmlFor="filter"),
                dcc.Input(
                    id="filter",
                    type="search",
                    placeholder="p_min=0.1 accuracy>0.9 digits",
                    autoComplete="off",
                ),
                html.Span(help_text, id="filter-help", className="hidden"),
            ],
            className="bar filter",
        ),
        html.Div(
            html.Table(
                [
                    html.Caption("Runs of the store; choose what is drawn in the first column", className="hidden"),
                    html.Thead(html.Tr(heads)),
                    html.Tbody(list(rows), id="rows"),
                ],
                className="runs",
            ),
            className="scroll table-box",
            tabIndex="0",
            role="region",
            **{"aria-label": "Table of runs"},
        ),
        html.Div(
            [
                html.Button("Previous", className="plain", **{"data-step": "-1"}),
                html.Span(where, id="page-text", role="status", className="muted"),
                html.Button("Next", className="plain", **{"data-step": "1"}),
            ],
            className="bar pager",
        ),
    ]


def _heat() -> list[Any]:
    return [
        html.Div(
            [
                html.Div(id="sweep-box", className="field"),
                html.Div(id="map-box", className="field wide"),
                html.Div(id="shown-box", className="field"),
            ],
            className="bar",
        ),
        html.Div(id="heat", className="scroll heat-box"),
        html.P(id="heat-note", className="note"),
    ]


def _chosen_curves() -> Any:
    smooth = {"1": "not", **{str(n): f"{n} points" for n in WINDOWS}}
    scale = {"auto": "auto", "linear": "linear", "log": "log"}
    controls = [
        html.Div(id="metric-box", className="field"),
        html.Div(select("scale", "y axis", scale, "auto"), className="field"),
        html.Div(select("smooth", "Smooth", smooth, "1"), className="field"),
        html.Div(axes(dict.fromkeys(AXES, True)), id="axis-box", className="field"),
    ]
    which = _segments("settings", "Settings", {"differ": "Differences", "all": "All"}, "differ")
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Chosen", id="chosen-heading", tabIndex="-1"),
                    html.Span(id="chosen-text", className="muted", role="status"),
                    html.Button("Add their other seeds", id="seeds", className="plain"),
                    html.Button("Clear", id="clear", className="plain"),
                ],
                className="bar",
            ),
            html.Ul(id="legend", className="legend", **{"aria-label": "Curves"}),
            html.Div([html.H3("Settings"), which], className="bar"),
            html.Div(
                id="settings-box",
                className="scroll settings-box",
                tabIndex="0",
                role="region",
                **{"aria-label": "Settings of the chosen runs"},
            ),
            panel("curve", controls, tall=True),
            html.Div([panel("beta"), panel("groups")], className="pair"),
            html.Div([html.H2("One run"), html.Div(id="inspect-box", className="field wide")], className="bar one"),
            panel("raster"),
            html.Div([panel("staleness"), panel("probability")], className="pair"),
        ],
        className="card chosen",
        **{"aria-labelledby": "chosen-heading"},
    )


def panel(name: str, controls: Sequence[Any] = (), *, tall: bool = False) -> Any:
    """A figure with its heading, its text for those who do not see it, and the line that stands in for it."""
    return html.Figure(
        [
            html.Div([html.H3(PANELS[name], id=f"{name}-heading"), *controls], className="bar"),
            html.Div(
                [
                    html.Div(
                        dcc.Graph(id=f"{name}-graph", figure=BLANK, config=_GRAPH, className="graph", responsive=True),
                        role="img",
                        **{"aria-labelledby": f"{name}-heading {name}-alt"},
                    ),
                    html.P(id=f"{name}-empty", className="instead"),
                ],
                id=f"{name}-plot",
                className="plot waiting",
            ),
            html.Figcaption(
                [html.Span(id=f"{name}-note", className="note"), html.Span(id=f"{name}-alt", className="hidden")]
            ),
        ],
        className="panel tall" if tall else "panel",
    )


def axes(known: dict[str, bool]) -> list[Any]:
    """What curves can be drawn against; what no chosen run recorded is pale and says so."""
    absent = [name for name, there in known.items() if not there]
    # Which one is pressed is the browser's to say: an answer may come after the next click.
    return [html.Span("x"), _segments("axis", "x", {name: AXES[name].label for name in known}, ROUND, absent)]


def _segments(store: str, label: str, options: dict[str, str], value: str, absent: Sequence[str] = ()) -> Any:
    """A row of buttons of which one is pressed; those that are `absent` are pale."""
    marks = {
        key: {"data-store": store, "data-value": key, "aria-pressed": str(key == value).lower()} for key in options
    }
    pale = {key: {"className": "absent", "title": "not recorded by any of the chosen runs"} for key in absent}
    buttons = [html.Button(text, **marks[key], **pale.get(key, {})) for key, text in options.items()]
    return html.Div(buttons, className="segments", role="group", **{"aria-label": label})


def select(store: str, label: str, options: dict[str, str], value: str) -> list[Any]:
    """A list to choose from, with its label."""
    name = f"{store}-select"
    marks = {"data-store": store, "data-chosen": value}
    listed = [html.Option(text, value=key) for key, text in options.items()]
    return [html.Label(label, htmlFor=name), html.Select(listed, id=name, **marks)]
