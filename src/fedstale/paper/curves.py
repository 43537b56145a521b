"""Figures 3 and 4: test accuracy against data heterogeneity, and against participation heterogeneity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import Cell, HeatMap, method_label, style
from ..analysis.heatmap import Point, ratio
from ..figures import footnote, pyplot, save
from ..plots import line_style
from ..spreadsheet import write_table
from .grids import FIG3_P_MIN, FIG4_SWAP

MARKERS: dict[float | str, str] = {0.0: "o", 0.5: "s", 1.0: "^", "auto": "D"}
"""The β that are drawn."""


def fig3(table: HeatMap, folder: Path, task: str, note: str = "") -> list[Path]:
    """Accuracy against σ̂_g² at p_avg/p_min ≈ 10."""
    points = [(FIG3_P_MIN, swap) for swap in table.swaps if (FIG3_P_MIN, swap) in table.cells]
    x = [swap for _, swap in points]
    title = f"{task}: p_avg/p_min = {ratio(FIG3_P_MIN):.3g}"
    names = [table.swap_text(swap, lines=True) for swap in x]
    return _draw(table, points, x, "data heterogeneity  σ̂²_g", title, folder / f"fig3-{task}", note, names)


def fig4(table: HeatMap, folder: Path, task: str, note: str = "") -> list[Path]:
    """Accuracy against p_avg/p_min at σ̂_g² = 0.6."""
    points = [(p, FIG4_SWAP) for p in table.p_min if (p, FIG4_SWAP) in table.cells]
    x = [ratio(p) for p, _ in points]
    names = [f"{value:.3g}" for value in x]
    label = "participation heterogeneity  p_avg / p_min"
    title = f"{task}: σ̂²_g = {table.swap_text(FIG4_SWAP)}"
    return _draw(table, points, x, label, title, folder / f"fig4-{task}", note, names, log=True)


def _draw(
    table: HeatMap,
    points: list[Point],
    x: list[float],
    label: str,
    title: str,
    stem: Path,
    note: str,
    names: list[str],
    *,
    log: bool = False,
) -> list[Path]:
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5.4, 3.9), layout="constrained")
    lines: list[list[Any]] = []
    shares = {swap: table.swapped(swap) for _, swap in points}
    for k, (beta, marker) in enumerate(MARKERS.items()):
        name = method_label("fedstale", beta)
        cells = [table.cells[point].get(beta) for point in points]
        mean = np.array([np.nan if cell is None else 100 * cell.mean for cell in cells])
        error = np.array([np.nan if cell is None else 100 * cell.error for cell in cells])
        if all(cell is None for cell in cells):
            continue
        if any(cell is not None and cell.estimate.diverged for cell in cells):
            name += ", where it did not diverge"
        # A little apart, so that error bars do not hide each other.
        at = np.array(x) * 1.02 ** (k - 1.5) if log else np.array(x) + 0.008 * (k - 1.5)
        axis.errorbar(
            at,
            mean,
            np.nan_to_num(error),
            **line_style(style(method_label("fedstale", beta))),
            marker=marker,
            markersize=4.5,
            capsize=2.5,
            linewidth=1.5,
            elinewidth=0.8,
            label=name,
        )
        lines += [
            [name, at, value / 100, spread / 100, _ended(cell), *_rate(cell), swap, *shares[swap]]
            for at, value, spread, cell, (_, swap) in zip(x, mean, error, cells, points, strict=True)
        ]
    if log:
        axis.set_xscale("log")
    axis.set_xticks(x, names)
    axis.minorticks_off()
    axis.set(xlabel=label, ylabel="test accuracy (%)", title=title)
    axis.legend(fontsize=8)
    footnote(figure, note)
    written = save(figure, stem)
    path = stem.with_suffix(".csv")
    headings = ["method", "x", "accuracy", "standard_error", "diverged_in", "lr", "at_edge", "swap"]
    write_table(path, [*headings, "swap_train", "swap_test"], lines)
    return [*written, path]


def _ended(cell: Cell | None) -> str:
    return "" if cell is None else " ".join(map(str, cell.estimate.diverged))


def _rate(cell: Cell | None) -> tuple[str, str]:
    return ("", "") if cell is None or cell.lr is None else (f"{cell.lr:.4g}", cell.at_edge or "")
