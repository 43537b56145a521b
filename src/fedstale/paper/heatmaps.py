"""Figures 2 and 5: β_opt over the heterogeneity settings, and how far `beta="auto"` is from it.

Each cell has β_opt and, in percentage points, Δ₀ (gain over FedAvg, β = 0) and Δ₁ (gain over FedVARP, β = 1). A star
marks a cell in which the best learning rate of some method stands at the edge of its grid: a gain may be the grid's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import Estimate, HeatMap, Square, method_label, style
from ..analysis.heatmap import BEST, FULL_COLOUR, Beta, ratio
from ..analysis.palette import DIVERGING, SEQUENTIAL
from ..figures import footnote, pyplot, save
from .curves import MARKERS
from .grids import FIG4_SWAP


def fig2(table: HeatMap, folder: Path, task: str, note: str = "") -> list[Path]:
    """Draw the heat map with its companion, as PNG and SVG; the numbers as CSV."""
    plt = pyplot()
    columns, rows = len(table.p_min), len(table.swaps)
    autos = table.adaptive
    size = (1.1 + 0.92 * columns, 1.3 + 0.78 * rows * (1 + 0.62 * len(autos)))
    figure, axes = plt.subplots(
        1 + len(autos), 1, figsize=size, layout="constrained", height_ratios=[1.0, *[0.62] * len(autos)], squeeze=False
    )
    _optimum(axes[0, 0], table)
    seeds = max((len(cell.runs) for cells in table.cells.values() for cell in cells.values()), default=0)
    axes[0, 0].set_title(f"{task}: β with the best test accuracy (mean of {seeds} seeds)")
    for axis, beta in zip(axes[1:, 0], autos, strict=True):
        _companion(axis, table, beta)
    footnote(figure, note)
    written = save(figure, folder / f"fig2-{task}")
    path = folder / f"fig2-{task}.csv"
    table.write(path)
    return [*written, path]


def _optimum(axis: Any, table: HeatMap) -> None:
    _draw(axis, table, BEST)
    axis.figure.colorbar(_scale(SEQUENTIAL, 0, 1), ax=axis, label="β_opt", ticks=[0, 0.2, 0.5, 0.8, 1], pad=0.01)


def _companion(axis: Any, table: HeatMap, beta: str) -> None:
    _draw(axis, table, beta)
    axis.set_ylabel("σ̂²_g")
    axis.set_title(f'β = "{beta}" minus the best fixed β, percentage points')
    bar = _scale(DIVERGING, -FULL_COLOUR, FULL_COLOUR)
    axis.figure.colorbar(bar, ax=axis, label="points", pad=0.01, extend="both")


def _draw(axis: Any, table: HeatMap, shown: str) -> None:
    squares = table.squares(shown)
    _fill(axis, [[squares.get((p, swap)) for p in table.p_min] for swap in table.swaps])
    axis.set_ylim(-0.5, len(table.swaps) - 0.5)
    axis.set_xticks(range(len(table.p_min)), [f"{ratio(p):.3g}" for p in table.p_min])
    axis.set_yticks(range(len(table.swaps)), [table.swap_text(swap, lines=True) for swap in table.swaps], fontsize=8)
    axis.set(xlabel="participation heterogeneity  p_avg / p_min", ylabel="data heterogeneity  σ̂²_g")


def _fill(axis: Any, rows: Sequence[Sequence[Square | None]]) -> None:
    """Draw squares with their texts, the first row at 0."""
    from matplotlib.colors import to_rgb

    colours = [[to_rgb((square and square.colour) or "white") for square in row] for row in rows]
    axis.imshow(np.array(colours), aspect="auto")
    for i, row in enumerate(rows):
        for j, square in enumerate(row):
            if square is None:
                continue
            ink, small = "white" if square.on_dark else "black", square.colour is None
            style: dict[str, Any] = {"ha": "center", "xycoords": "data", "textcoords": "offset points", "color": ink}
            weight = "normal" if small else "bold"
            up = 5 * len(square.notes)  # the number above its notes, all of them in the middle
            axis.annotate(
                square.text, (j, i), (0, up), va="center", fontsize=7 if small else 10, fontweight=weight, **style
            )
            for k, note in enumerate(square.notes):
                axis.annotate(note, (j, i), (0, up - 11 - 9 * k), va="center", fontsize=7, **style)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def _scale(stops: Sequence[str], low: float, high: float) -> Any:
    """The colours of the squares, for the bar beside them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    return ScalarMappable(Normalize(low, high), LinearSegmentedColormap.from_list("stops", stops))


def fig5(known: HeatMap, estimated: HeatMap, folder: Path, task: str, note: str = "") -> list[Path]:
    """Draw β_opt with exact above that with estimated probabilities, and what the estimate costs each β."""
    plt = pyplot()
    figure, axes = plt.subplots(
        2, 1, figsize=(1.1 + 0.95 * max(len(known.p_min), 4), 5.6), layout="constrained", height_ratios=[1, 1.25]
    )
    points = [(p, FIG4_SWAP) for p in known.p_min]
    _fill(axes[0], [[squares.get(point) for point in points] for squares in (known.squares(), estimated.squares())])
    axes[0].set_xticks(range(len(known.p_min)), [f"{ratio(p):.3g}" for p in known.p_min])
    axes[0].set_yticks(range(2), ["exact p", "estimated p\n(FedAU)"])
    axes[0].set_title(f"{task}: β_opt at label swap {known.swap_text(FIG4_SWAP)}")
    figure.colorbar(_scale(SEQUENTIAL, 0, 1), ax=axes[0], label="β_opt", ticks=[0, 0.5, 1], pad=0.01)
    _cost(axes[1], known, estimated)
    footnote(figure, note)
    written = save(figure, folder / f"fig5-{task}")
    path = folder / f"fig5-{task}-estimated.csv"
    estimated.write(path)
    return [*written, path]


def _cost(axis: Any, known: HeatMap, estimated: HeatMap) -> None:
    columns = np.arange(len(known.p_min))
    for k, (beta, marker) in enumerate(MARKERS.items()):
        label = method_label("fedstale", beta)
        losses = [cost(known, estimated, p, beta) for p in known.p_min]
        mean = np.array([100 * loss.mean for loss in losses])
        if not np.isfinite(mean).any():
            continue
        error = np.nan_to_num(np.array([100 * loss.error for loss in losses]))
        axis.errorbar(
            columns + 0.06 * (k - 1.5),
            mean,
            error,
            color=style(label).colour,
            label=label,
            marker=marker,
            markersize=4,
            capsize=2,
        )
    axis.axhline(0, color="black", linewidth=0.7)
    axis.set_xticks(columns, [f"{ratio(p):.3g}" for p in known.p_min])
    axis.set(xlabel="p_avg / p_min", ylabel="points", title="accuracy with estimated p minus accuracy with exact p")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, ncols=2)


def cost(known: HeatMap, estimated: HeatMap, p_min: float, beta: Beta) -> Estimate:
    """Accuracy with estimated minus accuracy with known probabilities, seed by seed."""
    point = (p_min, FIG4_SWAP)
    if beta not in known.cells.get(point, {}) or beta not in estimated.cells.get(point, {}):
        return Estimate.of([])
    return estimated.cells[point][beta].gain(known.cells[point][beta])
