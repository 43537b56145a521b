"""The numbers of Figure 2: tuned accuracy by p_min, swap and β; β_opt; the gains Δ₀ over FedAvg and Δ₁ over FedVARP.

`HeatMap.squares` prepares what is drawn, with its texts and colours: Matplotlib, the report and the board only draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..spreadsheet import write_table
from ..tasks.label_swap import swap_text
from .estimate import Estimate
from .palette import DIVERGING, SEQUENTIAL, blend
from .table import Cell, MeasuredRun
from .tuning import tuned

Point = tuple[float, float]
"""p_min and swap."""
Beta = float | str

BEST = "best"
"""What `squares` shows unless a β is named."""
FULL_COLOUR = 1.0
"""Percentage points at which the colours of a difference end."""
_PALE = 0.75
"""The share of white in the colour of a square in which nothing is decided."""


@dataclass(frozen=True)
class Square:
    """One square of a heat map, ready to be drawn.

    Attributes
    ----------
    text, notes
        What stands in it: a number, and small lines below.
    description
        The same in words, and what else there is to know.
    colour
        Of the background; None where there is no number.
    on_dark
        Whether the text must be light.
    decided
        Whether the runs decide what stands in it; where they do not, the colour is pale.
    """

    text: str
    notes: tuple[str, ...]
    description: str
    colour: str | None = None
    on_dark: bool = False
    decided: bool = False


class HeatMap:
    """Tuned cells by (p_min, swap) and β.

    Parameters
    ----------
    cells
        Tuned cells of one task with one source of probabilities.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells: dict[Point, dict[Beta, Cell]] = {}
        for cell in cells:
            settings = cell.settings
            if isinstance(settings.beta, (int, float, str)):  # a schedule has no place on the axis
                self.cells.setdefault((settings.p_min, settings.swap), {})[settings.beta] = cell

    @classmethod
    def of(cls, runs: Iterable[MeasuredRun]) -> HeatMap:
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

    @property
    def betas(self) -> list[float]:
        """The fixed β that were run anywhere."""
        return sorted({beta for point in self.cells for beta in self.fixed(point)})

    @property
    def adaptive(self) -> list[str]:
        """The β that choose themselves, such as "auto"."""
        return sorted({beta for cells in self.cells.values() for beta in cells if isinstance(beta, str)})

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

    def fixed(self, point: Point) -> dict[float, Cell]:
        """The cells of the fixed β at a point."""
        return {beta: cell for beta, cell in self.cells.get(point, {}).items() if isinstance(beta, float)}

    def complete(self, point: Point, betas: Iterable[float] | None = None) -> bool:
        """Whether these fixed β were all run there; by default those that were run anywhere."""
        return set(self.betas if betas is None else betas) <= set(self.fixed(point))

    def best(self, point: Point) -> float | None:
        """β_opt: the fixed β with the highest mean, the smallest of equals; None without FedAvg and FedVARP."""
        fixed = {beta: cell.mean for beta, cell in self.fixed(point).items() if np.isfinite(cell.mean)}
        if not {0.0, 1.0} <= set(self.fixed(point)) or not fixed:
            return None
        return max(sorted(fixed), key=lambda beta: fixed[beta])

    def at_edge(self, point: Point) -> list[Beta]:
        """The β at a point whose best learning rate is at the edge of its grid."""
        return [beta for beta, cell in self.cells.get(point, {}).items() if cell.at_edge is not None]

    def starred(self, point: Point) -> bool:
        """Whether a square gets a star for that; not where no learning rate was asked for, so that there is no grid."""
        return any(self.cells[point][beta].lr is not None for beta in self.at_edge(point))

    def diverged(self, points: Iterable[Point] | None = None) -> list[str]:
        """Say which β diverged at every rate, where and when; at all points, or at some."""
        return [
            f"β={beta} at p_min {point[0]:g}, swap {point[1]:g} {cell.estimate:.1%}"
            for point in (self.cells if points is None else points)
            for beta, cell in self.cells.get(point, {}).items()
            if cell.estimate.diverged
        ]

    def gain(self, point: Point, beta: Beta, reference: Beta) -> Estimate:
        """How much more accurate a β is than another: differences seed by seed, which share their draws."""
        cells = self.cells.get(point, {})
        if beta not in cells or reference not in cells:
            return Estimate.of([])
        return cells[beta].gain(cells[reference])

    def minus_best(self, point: Point, beta: Beta) -> Estimate:
        """How far a β is above (or, negative, below) the best fixed β."""
        best = self.best(point)
        return Estimate.of([]) if best is None else self.gain(point, beta, best)

    def decided(self, point: Point) -> bool:
        """Whether β_opt is ahead of each end of the range, β = 0 and β = 1, by more than two standard errors."""
        best = self.best(point)
        return best is not None and all(self.gain(point, best, end).decided for end in (0.0, 1.0) if end != best)

    def squares(self, shown: str = BEST) -> dict[Point, Square]:
        """Prepare what is drawn: β_opt with its gains, or the difference between an adaptive β and the best fixed one.

        A star at β_opt marks a cell in which the best learning rate of some β is at the edge of its grid. Where the
        runs do not decide what is shown, the square is pale.
        """
        draw = self._optimum if shown == BEST else lambda point: self._difference(point, shown)
        return {point: draw(point) for point in self.cells}

    def _optimum(self, point: Point) -> Square:
        best = self.best(point)
        if best is None:
            text = "diverged" if self.diverged([point]) else "–"
            return Square(text, (), self._describe(point, "no β_opt, β = 0 and β = 1 are not both there"))
        gains = [self.gain(point, best, end).short() for end in (0.0, 1.0)]
        words = self._describe(point, f"β_opt {best:g}, Δ₀ {gains[0]}, Δ₁ {gains[1]} percentage points")
        text, notes = f"{best:g}{'*' * self.starred(point)}", (f"Δ₀ {gains[0]}", f"Δ₁ {gains[1]}")
        return _coloured(text, notes, words, blend(SEQUENTIAL, best), on_dark=best > 0.6, decided=self.decided(point))

    def _difference(self, point: Point, beta: str) -> Square:
        difference = self.minus_best(point, beta)
        text = difference.short(sign=True)
        words = self._describe(point, f"β = {beta} minus the best fixed β: {text} percentage points")
        if np.isnan(difference.mean):
            return Square(text, (), words)
        share = float(np.clip(100 * difference.mean / FULL_COLOUR, -1.0, 1.0))
        colour = blend(DIVERGING, (share + 1) / 2)
        return _coloured(text, (), words, colour, on_dark=abs(share) > 0.7, decided=difference.decided)

    def _describe(self, point: Point, finding: str) -> str:
        words = [f"p_avg/p_min {ratio(point[0]):.3g}, swap {point[1]:g}: {finding}"]
        if ended := self.diverged([point]):
            words.append(f"no result, because seeds diverged at every rate: {'; '.join(ended)}")
        if self.starred(point):
            words.append("the best learning rate of some β is at the edge of its grid")
        if not self.complete(point):
            words.append("some β that were run elsewhere are missing")
        return "; ".join(words)

    def write(self, path: Path) -> None:
        """Write one line per cell and β."""
        headings = ["p_min", "p_avg/p_min", "swap", "swap_train", "swap_test", "beta", "lr", "at_edge", "accuracy",
                    "standard_error", "seeds", "diverged_in", "beta_opt", "minus_fedavg", "minus_fedvarp", "minus_best",
                    "minus_best_error"]  # fmt: skip
        points = [(p, swap) for p in self.p_min for swap in self.swaps]
        write_table(path, headings, (line for point in points for line in self._lines(point)))

    def _lines(self, point: Point) -> Iterator[list[object]]:
        shares = [_short(share) for share in self.swapped(point[1])]
        for beta, cell in self.cells.get(point, {}).items():
            away, own = self.minus_best(point, beta), cell.estimate
            gains = (self.gain(point, beta, 0.0).mean, self.gain(point, beta, 1.0).mean, away.mean, away.error)
            yield [
                *(point[0], f"{ratio(point[0]):.4g}", point[1], *shares, beta, f"{cell.lr or 0:.4g}"),
                *(cell.at_edge or "", _short(own.mean), _short(own.error), len(cell.runs)),
                *(" ".join(map(str, own.diverged)), self.best(point), *map(_short, gains)),
            ]


def _coloured(text: str, notes: tuple[str, ...], words: str, colour: str, *, on_dark: bool, decided: bool) -> Square:
    """A square with a number: in its colour, or pale where nothing is decided."""
    if decided:
        return Square(text, notes, words, colour, on_dark, decided)
    return Square(text, notes, f"{words}; not decided by these seeds", blend((colour, "#ffffff"), _PALE))


def ratio(p_min: float) -> float:
    """p_avg/p_min of the two groups of equal size."""
    return (1.0 + p_min) / 2.0 / p_min


def _short(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}"
