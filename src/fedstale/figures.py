"""The picture of a comparison: curves, who came, and how old the memory is. Matplotlib, no window."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .analysis import raster, styles
from .analysis.axes import ROUND, VIRTUAL, unit
from .analysis.curve import late_range
from .analysis.metrics import TITLES, is_share
from .analysis.palette import INDIGO, RED
from .checks import counted
from .plots import draw_bars, draw_curve
from .simulation.settings import ROUNDS

if TYPE_CHECKING:
    from .simulation import Comparison


def pyplot() -> Any:
    """Matplotlib with the house style; without a window, unless it was chosen before how figures are shown."""
    import matplotlib

    if "MPLBACKEND" not in os.environ and "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 120,
            "savefig.dpi": 150,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "svg.hashsalt": "fedstale",
        }
    )
    return plt


@contextmanager
def house_style() -> Iterator[Any]:
    """Matplotlib with the house style for a while; then the caller's own settings are back.

    But for one of them: whether figures are shown, which a notebook turns on when it draws its first.
    """
    from matplotlib import interactive, rc_context

    with rc_context():
        plt = pyplot()
        yield plt
        shown = plt.isinteractive()
    interactive(shown)


def footnote(figure: Any, text: str) -> None:
    """Write what a reader must know below the picture, in lines no longer than the picture is wide."""
    if text:
        lines = textwrap.fill(text, int(18 * figure.get_figwidth()), break_on_hyphens=False)
        figure.supxlabel(lines, fontsize=7, color="#555555")


def save(figure: Any, stem: Path) -> list[Path]:
    """Write PNG and SVG, without the date: the same run gives the same file."""
    from .durable import replacing

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind, nothing in (("png", "Software"), ("svg", "Date")):
        paths.append(stem.with_suffix(f".{kind}"))
        with replacing(paths[-1]) as whole:
            figure.savefig(whole, format=kind, bbox_inches="tight", metadata={nothing: None})
    pyplot().close(figure)
    return paths


def comparison_picture(comparison: Comparison, stem: Path) -> list[Path]:
    """Gap closed, learning curves over all clients and over the rare group, participation raster, staleness."""
    from matplotlib.ticker import PercentFormatter

    with house_style() as plt:
        figure = _picture(comparison, plt, PercentFormatter(1.0, decimals=0))
        return save(figure, stem)


def _picture(comparison: Comparison, plt: Any, percent: Any) -> Any:
    metric = comparison.metric
    grouped, name = metric != "excess_loss", TITLES[metric].lower()
    gaps = {method.label: gap for method in comparison.results if (gap := comparison.gap_closed(method)) is not None}
    left = "gap" if gaps else "all"
    figure, axes = plt.subplot_mosaic(
        [[left, "all", "rare" if grouped else "all"], ["raster", "raster", "age"]]
        if gaps
        else [["all", "rare" if grouped else "all"], ["raster", "age"]],
        figsize=(13.0 if gaps else 10.5, 6.4),
        height_ratios=[1.5, 1],
        layout="constrained",
    )
    if gaps:
        draw_bars(axes["gap"], gaps)
    _curves(axes["all"], comparison, "objective" if gaps else metric)
    if grouped:
        if gaps:
            axes["all"].set(title="objective: training loss over all clients", yscale="log")
        else:
            axes["all"].set_title(f"{name}, all clients")
            axes["rare"].sharey(axes["all"])
        if is_share(metric):
            axes["rare" if gaps else "all"].yaxis.set_major_formatter(percent)
        _curves(axes["rare"], comparison, f"{metric}_group1")
        axes["rare"].set_title(f"{name}, rare clients")
        if gaps and (frame := _late(comparison, f"{metric}_group1")):
            axes["rare"].set_ylim(*frame)
    else:
        axes["all"].set(title="excess loss F(w) − F(w*)", yscale="log")
    first_seed = [next(iter(runs.values())) for runs in comparison.results.values()]
    first = max(first_seed, key=lambda run: len(run.participants))  # all see the same, but one that diverged sees less
    _raster(axes["raster"], first.participants, comparison.settings.num_clients)
    _ages(axes["age"], first.metrics)
    if len(comparison.results) <= 8:
        axes["all"].legend(loc="best", fontsize=8)
    else:  # too many for a corner of the plot
        figure.legend(*axes["all"].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=7)
    settings, seeds = comparison.settings, len(comparison.seeds)
    who = comparison.participation_text.replace("p_min", "rare half comes with p =")
    about = [f"{settings.task_name}: {counted(settings.num_clients, 'client')}", who]
    about += [f"label swap {comparison.swap_text}"] if settings.swap else []
    about += [f"{seeds} seeds (mean ± standard error)" if seeds > 1 else "1 seed"]
    figure.suptitle(", ".join(about), fontsize=10)
    return figure


def _late(comparison: Comparison, metric: str) -> tuple[float, float] | None:
    """The range in which the methods differ, without the steep beginning."""
    curves = [comparison.cell(method).curve(metric) for method in comparison.results]
    return late_range((curve.x, curve.mean, curve.error) for curve in curves)


def _curves(axis: Any, comparison: Comparison, metric: str) -> None:
    """Over rounds; over virtual time where there is a clock, because steps of a server then last differently long."""
    x = VIRTUAL if comparison.settings.server != ROUNDS else ROUND
    drawn = {}
    for method, runs in comparison.results.items():
        curve = comparison.cell(method).curve(metric, x)
        if any(metric in run.metrics for run in runs.values()) or curve.diverged:
            drawn[method.label] = curve
    ends = [float(curve.x[-1]) for curve in drawn.values() if len(curve.x)]
    size, title = unit(x, max(ends, default=1.0))
    looks = dict(zip(labels := [method.label for method in comparison.results], styles(labels), strict=True))
    for label, curve in drawn.items():
        draw_curve(axis, label, replace(curve, x=curve.x / size), looks[label])
    axis.set_xlabel(title)
    if x == ROUND:
        axis.set_xlim(0, 1.03 * comparison.settings.total_rounds)  # also of those that a run did not come to


def _raster(axis: Any, participants: Sequence[Any], num_clients: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    if participants:
        found = raster(dict(enumerate(participants)), num_clients, rows=200, columns=500)
        end = len(found.clients) * found.bin_clients, len(found.rounds) * found.bin_rounds
        shades = LinearSegmentedColormap.from_list("came", ["#ffffff", INDIGO])
        axis.imshow(
            found.share, cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="nearest",
            extent=(0.5, end[1] + 0.5, end[0] - 0.5, -0.5),
        )  # fmt: skip
    axis.set(title="who came (first seed)", xlabel="round", ylabel="client", ylim=(num_clients - 0.5, -0.5))
    axis.grid(visible=False)


def _ages(axis: Any, metrics: dict[str, Any]) -> None:
    oldest, mean = (metrics.get(f"staleness_{name}", np.empty(0)) for name in ("max", "mean"))
    rounds = np.arange(1, len(oldest) + 1)
    axis.fill_between(rounds, oldest, color=RED, alpha=0.25, linewidth=0, label="oldest")
    axis.plot(rounds, mean, color=RED, linewidth=1.2, label="mean")
    axis.set(title="age of the remembered updates (first seed)", xlabel="round", ylabel="rounds")
    axis.legend(loc="best", fontsize=8)
