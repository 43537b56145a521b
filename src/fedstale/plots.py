"""Plots for a notebook or a script: a metric over the rounds on Matplotlib axes that the caller may go on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from .analysis import Curve, Estimate, Style, style, styles
from .analysis.axes import AXES, ROUND, VIRTUAL, unit
from .analysis.metrics import is_share, metric_title
from .analysis.palette import BROWN, GREEN, GREY, INDIGO, RED, SKY, blend
from .checks import InvalidInput
from .extras import missing

if TYPE_CHECKING:
    from .simulation.timeline import Timeline

_MOST_STEPS = 200
"""More steps of a server than these are not drawn: their lines would be a grey area."""


@contextmanager
def _axes(ax: Any) -> Iterator[Any]:
    """Draw on the given axes, or on new ones in the house style; the caller's own settings of Matplotlib stay."""
    if find_spec("matplotlib") is None:
        raise InvalidInput(missing("matplotlib"))
    from .figures import house_style

    with house_style() as plt:
        yield plt.subplots(figsize=(6.4, 4.0), layout="constrained")[1] if ax is None else ax


def plot_curves(curves: Mapping[str, Curve], metric: str, ax: Any = None, x: str = ROUND) -> Any:
    """Draw a metric of several methods over an axis, with bands of one standard error; return Matplotlib's axes."""
    drawn = {label: curve for label, curve in curves.items() if len(curve.x) or x == ROUND}
    if not drawn:
        raise InvalidInput(f"no run recorded {' or '.join(AXES[x].metrics)}: draw against rounds")
    with _axes(ax) as axis:
        size, title = unit(x, max(float(curve.x[-1]) if len(curve.x) else 0.0 for curve in drawn.values()))
        for (label, curve), look in zip(drawn.items(), styles(list(drawn)), strict=True):
            draw_curve(axis, label, replace(curve, x=curve.x / size), look)
        axis.set(xlabel=title, ylabel=metric_title(metric))
        if metric in ("excess_loss", "objective"):
            axis.set_yscale("log")
        if is_share(metric):
            from matplotlib.ticker import PercentFormatter

            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.legend(loc="best", fontsize=8)
    return axis


def plot_bars(gaps: Mapping[str, Estimate], ax: Any = None) -> Any:
    """Draw the share of the gap that each method closes; return the axes."""
    if not gaps:
        raise InvalidInput('"gap closed" needs U-FedAvg and "everybody" among the methods, and a task with data')
    with _axes(ax) as axis:
        draw_bars(axis, gaps)
    return axis


def plot_timeline(timeline: Timeline, ax: Any = None) -> Any:
    """Draw the presence and the work of each device on a line of its own; thin lines are the server's steps."""
    looks = {
        "there": (blend(("#ffffff", GREY), 0.35), "there, idle"),
        "used": (GREEN, "work that was used"),
        "late": (SKY, "late, remembered"),
        "lost": (RED, "lost: the device left"),
        "discarded": (BROWN, "discarded"),
        "under way": (blend(("#ffffff", INDIGO), 0.5), "still under way"),
    }
    with _axes(ax) as axis:
        size, title = unit(VIRTUAL, max((one.end for one in timeline.stretches), default=1.0))
        if len(timeline.steps) <= _MOST_STEPS:
            top = timeline.num_devices - 0.5
            axis.vlines([step / size for step in timeline.steps], -0.5, top, GREY, linewidth=0.4, zorder=0)
        for what, (colour, label) in looks.items():
            mine = [one for one in timeline.stretches if one.what == what]
            if mine:
                low, high = (0.3, 0.6) if what == "there" else (0.4, 0.8)
                axis.barh(
                    [one.device for one in mine],
                    [(one.end - one.begin) / size for one in mine],
                    left=[one.begin / size for one in mine],
                    height=high,
                    color=colour,
                    label=label,
                    edgecolor="white" if what != "there" else "none",
                    linewidth=low,
                )
        axis.set(xlabel=title, ylabel="device", ylim=(-0.5, timeline.num_devices - 0.5), xlim=(0, None))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3, frameon=False, fontsize="small")
    return axis


def draw_bars(axis: Any, gaps: Mapping[str, Estimate]) -> None:
    """Bars of the gap closed, with errors; one that loses far more than there is to gain is cut and says so."""
    from matplotlib.ticker import PercentFormatter

    low = -0.5
    for place, (label, gap) in enumerate(gaps.items()):
        colour = style(label).colour
        shown = max(gap.mean, low)
        axis.barh(place, shown, color=colour, height=0.7)
        if gap.mean >= low and gap.error > 0:
            axis.errorbar(shown, place, xerr=gap.error, color="black", capsize=3, linewidth=1)
        text = f"{gap.mean:.0%}" + (f" ± {gap.error:.0%}" if gap.error > 0 else "")
        inside = shown < 0 or shown > 0.55
        end = (max(shown, 0.0) if not inside else 0.0) + (gap.error if not inside and np.isfinite(gap.error) else 0.0)
        axis.text(end + 0.02, place, text, va="center", fontsize=9, color="white" if inside and shown > 0 else "black")
    axis.axvline(0, color="#555555", linewidth=1)
    axis.axvline(1, color="#555555", linewidth=1, linestyle="--")
    axis.set(xlim=(low, 1.08), yticks=range(len(gaps)), yticklabels=list(gaps))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_title("gap closed: what absence costs, won back\n0 % = U-FedAvg, 100 % = everybody always")


def draw_curve(axis: Any, label: str, curve: Curve, look: Style) -> None:
    """Draw a curve with its error; one that ends because runs diverged ends with a cross and says so."""
    x, mean, error = curve.x, curve.mean, curve.error
    label = f"{label}: {curve.ending}" if curve.diverged else label
    axis.plot(x, mean, label=label, linewidth=1.6, **line_style(look))
    if curve.diverged and len(x):  # where the curve ends, not where it converged
        axis.plot(x[-1], mean[-1], color=look.colour, marker="X", markersize=8, zorder=3)
    axis.fill_between(x, mean - error, mean + error, color=look.colour, alpha=0.15, linewidth=0)


def line_style(look: Style) -> dict[str, Any]:
    """A style as Matplotlib takes it; dashes are in pixels of the screen, of which a line here is about 1.6 wide."""
    dashes = tuple(length / 1.6 for length in look.dashes)
    return {"color": look.colour, "linestyle": (0, dashes) if dashes else "-"}
