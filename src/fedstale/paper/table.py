"""The heat map's numbers: for each cell and β the tuned accuracy, β_opt, and the gains Δ₀ and Δ₁ (Figure 2)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..analysis import Estimate
from ..durable import replacing
from ..spreadsheet import CsvWriter
from ..sweeps import Cell, Measured, tuned
from ..tasks.label_swap import swap_text
from .grids import BETAS

Place = tuple[float, float]
"""p_min and swap."""


class Table:
    """Tuned cells by (p_min, swap) and β.

    Parameters
    ----------
    cells
        Tuned cells of one task with one source of probabilities.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells: dict[Place, dict[float | str, Cell]] = {}
        for cell in cells:
            one = cell.runs[0].settings
            if isinstance(one.beta, (int, float, str)):  # a schedule has no place on the axis
                self.cells.setdefault((one.p_min, one.swap), {})[one.beta] = cell

    @classmethod
    def of(cls, runs: Iterable[Measured]) -> Table:
        """Tune finished runs."""
        return cls(tuned(runs))

    @property
    def p_min(self) -> list[float]:
        """The columns, most homogeneous participation first."""
        return sorted({p for p, _ in self.cells}, reverse=True)

    @property
    def swaps(self) -> list[float]:
        """The rows."""
        return sorted({swap for _, swap in self.cells})

    def swapped(self, swap: float) -> tuple[float, float]:
        """The shares of labels that were really swapped in training and in test, means over the runs; or NaN."""
        every = (cell for (_, at), cells in self.cells.items() if at == swap for cell in cells.values())
        runs = [run.metrics for cell in every for run in cell.runs]
        train, test = (
            Estimate.of(run[name] for run in runs if name in run).mean for name in ("swap_train", "swap_test")
        )
        return train, test

    def swap_text(self, swap: float, *, lines: bool = False) -> str:
        """What a swap is called on an axis: as asked for, and the shares that it came to."""
        return swap_text(swap, *self.swapped(swap), lines=lines)

    def fixed(self, place: Place) -> dict[float, Cell]:
        """The cells of the fixed β at a place."""
        return {beta: cell for beta, cell in self.cells.get(place, {}).items() if isinstance(beta, float)}

    def complete(self, place: Place) -> bool:
        """Whether every β of the paper was run there."""
        return set(BETAS) <= set(self.fixed(place))

    def best(self, place: Place) -> float | None:
        """β_opt: the fixed β with the highest mean, the smallest of equals; None without FedAvg and FedVARP."""
        fixed = {beta: cell.mean for beta, cell in self.fixed(place).items() if np.isfinite(cell.mean)}
        if not {0.0, 1.0} <= set(self.fixed(place)) or not fixed:
            return None
        return max(sorted(fixed), key=lambda beta: fixed[beta])

    def at_edge(self, place: Place) -> list[float | str]:
        """The β at a place whose best learning rate stands at the edge of its grid."""
        return [beta for beta, cell in self.cells.get(place, {}).items() if cell.at_edge is not None]

    def diverged(self, places: Iterable[Place] | None = None) -> list[str]:
        """Say which β diverged at every rate, where and when; at all places, or at some."""
        return [
            f"β={beta} at p_min {place[0]:g}, swap {place[1]:g} {cell.estimate:.1%}"
            for place in (self.cells if places is None else places)
            for beta, cell in self.cells.get(place, {}).items()
            if cell.estimate.diverged
        ]

    def gain(self, place: Place, one: float | str, other: float | str) -> Estimate:
        """How much more accurate one β is than another: differences seed by seed, which share their draws."""
        cells = self.cells.get(place, {})
        if one not in cells or other not in cells:
            return Estimate.of([])
        return paired(cells[one], cells[other])

    def behind_best(self, place: Place, beta: float | str) -> Estimate:
        """How far a β is above (or, negative, below) the best fixed β."""
        best = self.best(place)
        return Estimate.of([]) if best is None else self.gain(place, beta, best)

    def write(self, path: Path) -> None:
        """Write one line per cell and method."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as whole, open(whole, "w", newline="", encoding="utf-8") as file:
            writer = CsvWriter(file)
            writer.writerow(
                ["p_min", "p_avg/p_min", "swap", "swap_train", "swap_test", "beta", "lr", "at_edge", "accuracy",
                 "standard_error", "seeds", "diverged_in", "beta_opt", "minus_fedavg", "minus_fedvarp", "minus_best",
                 "minus_best_error"]
            )  # fmt: skip
            for p in self.p_min:
                for swap in self.swaps:
                    self._lines(writer, (p, swap))

    def _lines(self, writer: object, place: Place) -> None:
        for beta, cell in self.cells.get(place, {}).items():
            away = self.behind_best(place, beta)
            gains = (self.gain(place, beta, 0.0).mean, self.gain(place, beta, 1.0).mean, away.mean, away.error)
            shares = map(_short, self.swapped(place[1]))
            line: list[object] = [place[0], f"{ratio(place[0]):.4g}", place[1], *shares, beta, f"{cell.lr or 0:.4g}"]
            line += [cell.at_edge or ""]
            own = cell.estimate
            line += [_short(own.mean), _short(own.error), len(cell.runs), " ".join(map(str, own.diverged))]
            line += [self.best(place), *map(_short, gains)]
            writer.writerow(line)  # type: ignore[attr-defined]


def paired(one: Cell, other: Cell) -> Estimate:
    """How much more accurate one cell is than another, seed by seed; one that diverged in either has no difference."""
    a, b = ({run.settings.seed: run for run in cell.runs} for cell in (one, other))
    seeds = sorted(a.keys() & b.keys())
    ended = [[run.diverged_in for run in (a[seed], b[seed]) if run.diverged_in is not None] for seed in seeds]
    gains = [a[seed].accuracy - b[seed].accuracy for seed in seeds]
    return Estimate.of(gains, [min(rounds, default=None) for rounds in ended])


def ratio(p_min: float) -> float:
    """p_avg/p_min of the two groups of equal size."""
    return (1.0 + p_min) / 2.0 / p_min


def _short(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}"
