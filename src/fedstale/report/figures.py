"""The figures of a study: learning curves, β, participation, staleness under some conditions; the map of β_opt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis import Cell, Curve, HeatMap, Square, Style, styles
from ..analysis.axes import VIRTUAL, unit
from ..analysis.heatmap import BEST, ratio
from ..analysis.metrics import TITLES, is_share
from ..analysis.palette import BROWN, GREEN, SKY
from .charts import Line, legend_of, line_chart
from .markup import Markup, tag, text
from .study import Study


def curves(study: Study) -> list[Markup]:
    """For each shown condition its charts, under one legend."""
    looks = dict(zip(study.methods, styles(study.methods), strict=True))
    names = Markup(legend_of([Line(name, np.empty(0), np.empty(0), style=style) for name, style in looks.items()]))
    parts = [names]
    for name, cells in study.shown().items():
        if name:
            parts.append(tag("h4", name))
        ended = [f"{cell.method}: {cell.estimate:.1%}" for cell in cells if cell.estimate.diverged]
        if ended:
            parts.append(tag("p", "; ".join(ended), ". A cross marks the end of such a curve.", class_="message"))
        parts.append(tag("div", _condition_charts(cells, looks, study.metric), class_="charts"))
    return parts


def _condition_charts(cells: Sequence[Cell], looks: dict[str, Style], judged: str) -> list[Markup]:
    """Learning curves of every method under one condition, β, and who came (which is the same for all methods)."""

    def lines(metric: str) -> list[Line]:
        return [_line(cell.method, cell.curve(metric), looks[cell.method]) for cell in cells]

    made = []
    if judged == "excess_loss":
        made.append(line_chart(TITLES[judged], lines(judged), log=True))
    else:
        for metric, who in ((judged, "all"), (f"{judged}_group0", "frequent"), (f"{judged}_group1", "rare")):
            if any(cell.has(metric) for cell in cells):
                made.append(line_chart(f"{TITLES[judged]}, {who} clients", lines(metric), percent=is_share(judged)))
    made += _over_time(cells, looks, judged)
    betas = [line for line in lines("beta") if len(line.x)]
    if betas:
        made.append(line_chart("β", betas, limits=(-0.03, 1.03)))
    return [*made, *_attendance(cells[0])]


def _over_time(cells: Sequence[Cell], looks: dict[str, Style], metric: str) -> list[Markup]:
    """The same against virtual time, where a clock was recorded."""
    timed = [cell for cell in cells if cell.has(VIRTUAL)]
    found = [_line(cell.method, cell.curve(metric, VIRTUAL), looks[cell.method]) for cell in timed]
    size, title = unit(VIRTUAL, max((float(line.x[-1]) for line in found if len(line.x)), default=0.0))
    lines = [replace(line, x=line.x / size) for line in found]
    name, share = TITLES[metric], is_share(metric)
    return (
        [line_chart(f"{name} over virtual time", lines, x_label=title, percent=share, log=not share)] if lines else []
    )


def _line(label: str, curve: Curve, style: Style) -> Line:
    return Line(label, curve.x, curve.mean, curve.error, style, curve.ending)


def _attendance(cell: Cell) -> list[Markup]:
    """How many came, and how old the remembered updates are: mean over seeds of one method, since all see the same."""
    charts = {
        "Clients that came": {"participants": ("clients", Style(SKY))},
        "Age of the remembered updates, in rounds": {
            "staleness_max": ("oldest", Style(BROWN)),
            "staleness_mean": ("mean", Style(GREEN)),
        },
    }
    made = []
    for title, metrics in charts.items():
        found = [_line(name, cell.curve(metric), style) for metric, (name, style) in metrics.items()]
        drawn = [line for line in found if len(line.x)]
        if drawn:
            everyone = float(cell.settings.num_clients)
            limits = (0.0, everyone) if "participants" in metrics else None
            made.append(line_chart(title, drawn, legend=len(drawn) > 1, limits=limits))
    return made


def heat_maps(study: Study) -> list[Markup]:
    """β_opt over p_min and swap, one map for each value of everything else that varies."""
    parts = study.by_condition("p_min", "swap")
    made = []
    for where, cells in sorted(parts.items(), key=lambda part: -len(part[1])):
        heat = HeatMap(cell for cell in cells if cell.settings.rule == "fedstale")
        if sum(heat.best(point) is not None for point in heat.cells) < 2:
            continue
        title = ["The β with the best test accuracy", f" ({where})" if where else "", ". ", tag("span", _GAINS)]
        made.append(_map(text(title), heat, BEST))
        for beta in heat.adaptive:
            title = [f"β = “{beta}” minus the best fixed β, percentage points of test accuracy"]
            if any(heat.minus_best(point, beta).count for point in heat.cells):
                made.append(_map(text(title, f" ({where})" if where else ""), heat, beta))
    return made


_GAINS = (
    "Δ₀ and Δ₁: its gain over β = 0 (FedAvg) and over β = 1 (FedVARP) in percentage points. "
    "± standard error over seeds; pale where β_opt is not ahead of both by two of them: nothing is decided. "
    "A star: the best learning rate of some β is at the edge of its grid. Under each p_min: p_avg/p_min."
)


def _map(title: Markup, heat: HeatMap, shown: str) -> Markup:
    squares = heat.squares(shown)
    top = tag(
        "tr",
        tag("th", "p_min →", tag("br"), "swap ↓", scope="col"),
        [tag("th", f"{p:g}", tag("small", f"{ratio(p):.3g}"), scope="col") for p in heat.p_min],
    )
    body = [
        tag("tr", tag("th", heat.swap_text(swap), scope="row"), [_cell(squares.get((p, swap))) for p in heat.p_min])
        for swap in reversed(heat.swaps)
    ]
    made = tag("table", tag("caption", title), tag("thead", top), tag("tbody", body), class_="map")
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="heat map")


def _cell(square: Square | None) -> Markup:
    if square is None:
        return tag("td", "–")
    look = f" c{square.colour[1:]} {'on-dark' if square.on_dark else 'on-light'}" if square.colour else ""
    notes = [tag("small", note) for note in square.notes]
    return tag("td", tag("b", square.text), notes, class_=f"heat{look}", title=square.description)
