"""The part of a report that shows one run: its last numbers, its curves, who came, its clients."""

from __future__ import annotations

import numpy as np

from ..analysis import Style
from ..analysis.attendance import number_of_clients
from ..analysis.metrics import TITLES, group_name
from ..analysis.palette import BROWN, GREEN, INDIGO, RED
from ..checks import Float
from ..store import Run, RunInfo
from .charts import Line, line_chart, raster_chart
from .markup import Markup, table, tag

_GROUPS = {"accuracy": "all clients", **{f"accuracy_group{k}": group_name(k) for k in (0, 1)}}
_GROUPS["accuracy_worst_decile"] = "worst tenth of the clients"
_STALENESS = {"staleness_mean": "mean age", "staleness_max": "oldest"}
_UNSEEN = (
    "bytes_up",
    "bytes_down",
    "server_bytes",
    "seconds",
    "virtual_seconds",
    "accuracy_tail",
    "excess_loss_tail",
    "known",
    "swap_train",
    "swap_test",
)
_OTHERS = 12
"""So many metrics that have no place of their own are drawn."""
_CLIENT_TITLES = {
    "accuracy": "Test accuracy by client",
    "probability": "Estimated probability by client",
    "staleness": "Age of the remembered update by client, in rounds",
}


def figures(run: Run, info: RunInfo) -> list[Markup]:
    """Every curve that the run recorded."""
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in run.metrics().items()}
    x = columns.pop("round") + 1.0
    ending = info.reason if info.diverged_in is not None else ""
    made = []
    if "accuracy" in columns:
        made.append(_together(TITLES["accuracy"], _GROUPS, x, columns, ending, percent=True))
    losses = ("excess_loss", "test_loss", "train_loss", "beta")
    made += [_alone(name, x, columns, ending) for name in losses if name in columns]
    who = run.participants()
    if any(map(len, who.values())):
        made.append(raster_chart("Who came", who, number_of_clients(info.config, who)))
    elif "participants" in columns:
        made.append(_alone("participants", x, columns, ending))
    if "staleness_mean" in columns:
        made.append(_together("Age of the remembered updates, in rounds", _STALENESS, x, columns, ending))
    sizes = [
        name
        for name in ("update_norm", "p_error", "memory_error")
        if name in columns and np.nan_to_num(columns[name]).any()
    ]
    made += [_alone(name, x, columns, ending) for name in sizes]
    drawn = {*_GROUPS, *_STALENESS, *TITLES, *_UNSEEN}
    others = [name for name in columns if name not in drawn]
    made += [_alone(name, x, columns, ending) for name in others[:_OTHERS] if np.isfinite(columns[name]).any()]
    return [*made, *_clients_charts(run)]


def last_numbers(info: RunInfo) -> Markup:
    """The last value of every metric."""
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", f"{value:.6g}" if np.isfinite(value) else "–", class_="n"))
        for name, value in info.summary.items()
    ]
    caption = "The last value of every metric" + ("" if info.diverged_in is None else f" before it {info.reason}")
    return table(caption, ("metric", "value"), rows, ("value",), class_="narrow")


def _alone(name: str, x: Float, columns: dict[str, Float], ending: str) -> Markup:
    log = name == "excess_loss"
    limits = (-0.03, 1.03) if name == "beta" else None
    return line_chart(TITLES.get(name, name), [Line(name, x, columns[name], ending=ending)], log=log, limits=limits)


def _together(
    title: str, names: dict[str, str], x: Float, columns: dict[str, Float], ending: str, *, percent: bool = False
) -> Markup:
    styles = (Style(RED), Style(INDIGO), Style(GREEN), Style(BROWN))
    lines = [
        Line(label, x, columns[name], None, style, ending)
        for (name, label), style in zip(names.items(), styles, strict=False)
        if name in columns
    ]
    return line_chart(title, lines, percent=percent, legend=len(lines) > 1)


def _clients_charts(run: Run) -> list[Markup]:
    made = []
    for name in run.client_metric_names()[:_OTHERS]:
        rounds, values = run.client_metrics(name)
        last = np.sort(values[-1][np.isfinite(values[-1])])
        if not last.size:
            continue
        title = f"{_CLIENT_TITLES.get(name, f'{name} by client')}, round {rounds[-1] + 1:,}"
        line = Line(name, np.arange(1.0, len(last) + 1), last, None, Style(INDIGO))
        percent = name in ("accuracy", "probability")
        made.append(line_chart(title, [line], x_label="clients, in order of the value", percent=percent))
    return made
