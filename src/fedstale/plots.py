"""Plots for a notebook or a script: a metric over the rounds on Matplotlib axes that the caller may go on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .analysis import Curve, Style, styles
from .analysis.metrics import TITLES, group_name, is_share
from .checks import InvalidInput
from .extras import missing


@contextmanager
def _axes(ax: Any) -> Iterator[Any]:
    """Draw on the given axes, or on new ones in the house style; the caller's own settings of Matplotlib stay."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise InvalidInput(missing("matplotlib")) from None
    from .figures import pyplot

    with rc_context():
        plt = pyplot()
        yield plt.subplots(figsize=(6.4, 4.0), layout="constrained")[1] if ax is None else ax


def plot_curves(curves: Mapping[str, Curve], metric: str, ax: Any = None) -> Any:
    """Draw a metric of several methods over the rounds, with bands of one standard error; return the axes."""
    with _axes(ax) as axis:
        for (label, curve), look in zip(curves.items(), styles(list(curves)), strict=True):
            draw_curve(axis, label, curve, look)
        axis.set(xlabel="round", ylabel=_metric_title(metric))
        if metric in ("excess_loss", "objective"):
            axis.set_yscale("log")
        if is_share(metric):
            from matplotlib.ticker import PercentFormatter

            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.legend(loc="best", fontsize=8)
    return axis


def draw_curve(axis: Any, label: str, curve: Curve, look: Style) -> None:
    """Draw a curve with its error; one that ends because runs diverged ends with a cross and says so."""
    rounds, mean, error = curve.rounds, curve.mean, curve.error
    label = f"{label}: {curve.ending}" if curve.diverged else label
    axis.plot(rounds, mean, label=label, linewidth=1.6, **line_style(look))
    if curve.diverged and len(rounds):  # where the curve ends, not where it converged
        axis.plot(rounds[-1], mean[-1], color=look.colour, marker="X", markersize=8, zorder=3)
    axis.fill_between(rounds, mean - error, mean + error, color=look.colour, alpha=0.15, linewidth=0)


def line_style(style: Style) -> dict[str, Any]:
    """A style as Matplotlib takes it; dashes are in pixels of the screen, of which a line here is about 1.6 wide."""
    dashes = tuple(length / 1.6 for length in style.dashes)
    return {"color": style.colour, "linestyle": (0, dashes) if dashes else "-"}


def _metric_title(metric: str) -> str:
    """What a metric is called on an axis."""
    name, group, number = metric.partition("_group")
    if group and number.isdigit():
        return f"{TITLES.get(name, name)}, {group_name(int(number))}"
    return TITLES.get(metric, metric)
