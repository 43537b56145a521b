"""Figures 2 and 5: β_opt over the heterogeneity settings, and how far `beta="auto"` is from it.

Each cell has β_opt and, in percentage points, Δ₀ (gain over FedAvg, β = 0) and Δ₁ (gain over FedVARP, β = 1). A star
marks a cell in which the best learning rate of some method stands at the edge of its grid: a gain may be the grid's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import Estimate, method_label, style
from ..checks import Float
from ..figures import footnote, pyplot, save
from .curves import MARKERS
from .grids import AUTOS, FIG4_SWAP
from .table import Table, paired, ratio

MAP = "YlGnBu"
AWAY = 1.0
"""Points at which the colours of the companion end."""


def fig2(table: Table, folder: Path, task: str, note: str = "") -> list[Path]:
    """Draw the heat map with its companion, as PNG and SVG; the numbers as CSV."""
    plt = pyplot()
    columns, rows = len(table.p_min), len(table.swaps)
    autos = [beta for beta in AUTOS if any(beta in cells for cells in table.cells.values())]
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


def _optimum(axis: Any, table: Table) -> None:
    best = _matrix(table, lambda place: table.best(place))
    picture = axis.imshow(best, cmap=MAP, vmin=0, vmax=1, aspect="auto", origin="lower")
    for i, swap in enumerate(table.swaps):
        for j, p in enumerate(table.p_min):
            beta = table.best((p, swap))
            if beta is None:
                axis.text(j, i, "diverged" if table.diverged([(p, swap)]) else "", ha="center", va="center", fontsize=7)
                continue
            colour = "white" if beta > 0.6 else "black"
            shown = f"{beta:g}{_mark(table, p, swap)}"
            axis.text(j, i + 0.24, shown, ha="center", va="center", color=colour, fontweight="bold", fontsize=10)
            gains = [table.gain((p, swap), beta, other) for other in (0.0, 1.0)]
            for shift, name, gain in ((-0.05, "Δ₀", gains[0]), (-0.30, "Δ₁", gains[1])):
                text = f"{name} {gain.short()}"
                axis.text(j, i + shift, text, ha="center", va="center", color=colour, fontsize=7)
    _frame(axis, table)
    axis.figure.colorbar(picture, ax=axis, label="β_opt", ticks=[0, 0.2, 0.5, 0.8, 1], pad=0.01)


def _companion(axis: Any, table: Table, beta: str) -> None:
    away = np.round(100 * _matrix(table, lambda place: table.behind_best(place, beta).mean), 2) + 0.0  # no −0.00
    picture = axis.imshow(away, cmap="RdBu", vmin=-AWAY, vmax=AWAY, aspect="auto", origin="lower")
    for i, j in np.ndindex(*away.shape):
        if np.isfinite(away[i, j]):
            colour = "white" if abs(away[i, j]) > 0.7 * AWAY else "black"
            axis.text(j, i, f"{away[i, j]:+.2f}", ha="center", va="center", fontsize=8, color=colour)
        elif table.behind_best((table.p_min[j], table.swaps[i]), beta).diverged:
            axis.text(j, i, "diverged", ha="center", va="center", fontsize=7)
    _frame(axis, table)
    axis.set_ylabel("σ̂²_g")
    axis.set_title(f'β = "{beta}" minus the best fixed β, percentage points')
    axis.figure.colorbar(picture, ax=axis, label="points", pad=0.01, extend="both")


def fig5(known: Table, estimated: Table, folder: Path, task: str, note: str = "") -> list[Path]:
    """Draw β_opt with exact above that with estimated probabilities, and what the estimate costs each β."""
    plt = pyplot()
    figure, axes = plt.subplots(
        2, 1, figsize=(1.1 + 0.95 * max(len(known.p_min), 4), 5.6), layout="constrained", height_ratios=[1, 1.25]
    )
    strips = {"exact p": known, "estimated p (FedAU)": estimated}
    values = [[_number(table.best((p, FIG4_SWAP))) for p in known.p_min] for table in strips.values()]
    picture = axes[0].imshow(np.array(values), cmap=MAP, vmin=0, vmax=1, aspect="auto")
    for i, table in enumerate(strips.values()):
        for j, p in enumerate(known.p_min):
            beta = table.best((p, FIG4_SWAP))
            if beta is None:
                continue
            gains = [table.gain((p, FIG4_SWAP), beta, other).short() for other in (0.0, 1.0)]
            text = f"{beta:g}{_mark(table, p, FIG4_SWAP)}\nΔ₀ {gains[0]}\nΔ₁ {gains[1]}"
            axes[0].text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if beta > 0.6 else "black")
    axes[0].set_xticks(range(len(known.p_min)), [f"{ratio(p):.3g}" for p in known.p_min])
    axes[0].set_yticks(range(2), ["exact p", "estimated p\n(FedAU)"])
    axes[0].set_title(f"{task}: β_opt at label swap {known.swap_text(FIG4_SWAP)}")
    axes[0].grid(visible=False)
    axes[0].spines[:].set_visible(False)
    figure.colorbar(picture, ax=axes[0], label="β_opt", ticks=[0, 0.5, 1], pad=0.01)
    _cost(axes[1], known, estimated)
    footnote(figure, note)
    written = save(figure, folder / f"fig5-{task}")
    path = folder / f"fig5-{task}-estimated.csv"
    estimated.write(path)
    return [*written, path]


def _cost(axis: Any, known: Table, estimated: Table) -> None:
    place = np.arange(len(known.p_min))
    for k, (beta, marker) in enumerate(MARKERS.items()):
        label = method_label("fedstale", beta)
        losses = [cost(known, estimated, p, beta) for p in known.p_min]
        mean = np.array([100 * loss.mean for loss in losses])
        if not np.isfinite(mean).any():
            continue
        error = np.nan_to_num(np.array([100 * loss.error for loss in losses]))
        axis.errorbar(
            place + 0.06 * (k - 1.5),
            mean,
            error,
            color=style(label).colour,
            label=label,
            marker=marker,
            markersize=4,
            capsize=2,
        )
    axis.axhline(0, color="black", linewidth=0.7)
    axis.set_xticks(place, [f"{ratio(p):.3g}" for p in known.p_min])
    axis.set(xlabel="p_avg / p_min", ylabel="points", title="accuracy with estimated p minus accuracy with exact p")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, ncols=2)


def cost(known: Table, estimated: Table, p_min: float, beta: float | str) -> Estimate:
    """Accuracy with estimated minus accuracy with known probabilities, seed by seed."""
    place = (p_min, FIG4_SWAP)
    if beta not in known.cells.get(place, {}) or beta not in estimated.cells.get(place, {}):
        return Estimate.of([])
    return paired(estimated.cells[place][beta], known.cells[place][beta])


def _frame(axis: Any, table: Table) -> None:
    axis.set_xticks(range(len(table.p_min)), [f"{ratio(p):.3g}" for p in table.p_min])
    axis.set_yticks(range(len(table.swaps)), [table.swap_text(swap, lines=True) for swap in table.swaps], fontsize=8)
    axis.set(xlabel="participation heterogeneity  p_avg / p_min", ylabel="data heterogeneity  σ̂²_g")
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def _matrix(table: Table, value: Any) -> Float:
    rows = [[_number(value((p, swap))) for p in table.p_min] for swap in table.swaps]
    return np.array(rows, dtype=np.float64)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _mark(table: Table, p_min: float, swap: float) -> str:
    return "*" if table.at_edge((p_min, swap)) else ""
