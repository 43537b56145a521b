"""The runs behind Figures 2–5 (Section 5): one grid of settings, of which every figure is a part.

N = 24 clients; half of them always take part, the others with p_min; T = 10/p_min rounds; K = 5; η_s = 1; η_c is tuned
on the task's five rates, and on further ones where the best of them is at the edge. All this is what `Settings` has as
defaults. FedAvg is β = 0, FedVARP β = 1 (both in their unbiased form, as in the paper's comparison).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..checks import fail
from ..simulation.settings import Settings
from ..sweeps import Grid, lr_grid

P_MIN = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
SWAPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
BETAS = (0.0, 0.2, 0.5, 0.8, 1.0)
AUTOS = ("auto", "auto-per-client")
SEEDS = (0, 1, 2)
FIG3_P_MIN = 0.05
"""p_avg/p_min = 10.5, the closest to the paper's 10."""
FIG4_SWAP = 0.6


@dataclass(frozen=True)
class Extent:
    """How much of the paper's grid is run.

    Attributes
    ----------
    task
        What is learned.
    p_min, swaps, betas, seeds
        The values that are run.
    rates
        The learning rates that every cell begins with; those whose best one is at the edge get further ones.
    changed
        Settings of every run that differ from the paper's, such as a smaller batch.
    """

    task: str
    p_min: tuple[float, ...] = P_MIN
    swaps: tuple[float, ...] = SWAPS
    betas: tuple[float | str, ...] = (*BETAS, *AUTOS)
    seeds: tuple[int, ...] = SEEDS
    rates: tuple[float, ...] = ()
    changed: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def full(cls, task: str) -> Extent:
        """The paper's grid, with `auto` beside it."""
        return cls(task, rates=lr_grid(task))

    @classmethod
    def quick(cls, task: str) -> Extent:
        """A part of it that takes a minute or two on the digits."""
        return cls(task, P_MIN[:5], (0.0, 0.2, 0.6, 1.0), (*BETAS, "auto"), SEEDS[:2], lr_grid(task)[1:4])

    def replace(self, **changes: Any) -> Extent:
        """Return the same extent with some axes changed; None leaves an axis as it is."""
        given: dict[str, Any] = {name: tuple(values) for name, values in changes.items() if values is not None}
        for name, values in given.items():
            if not values:
                raise fail(name, values, "must hold at least one value")
        return replace(self, **given)

    def left_out(self) -> list[str]:
        """Say what the paper's grid has and this extent has not."""
        whole = Extent.full(self.task)
        missing = []
        for name, label in (("p_min", "p_min"), ("swaps", "swap"), ("betas", "β"), ("rates", "learning rate")):
            gone = [value for value in getattr(whole, name) if value not in getattr(self, name)]
            if gone:
                shown = ", ".join(value if isinstance(value, str) else f"{value:.3g}" for value in gone)
                reached = " unless the grid was widened to it" if name == "rates" else ""
                missing.append(f"{label} {shown}{reached}")
        if len(self.seeds) < len(SEEDS):
            missing.append(f"{len(SEEDS) - len(self.seeds)} of {len(SEEDS)} seeds")
        return [*missing, *(f"{name} is {value}, not the paper's" for name, value in self.changed)]

    def fig2(self, probabilities: str = "known") -> list[Settings]:
        """Every cell of the heat map."""
        return self._runs("fig2", self.p_min, self.swaps, probabilities)

    def fig3(self) -> list[Settings]:
        """One column of the heat map: p_avg/p_min ≈ 10, all swaps."""
        return self._runs("fig3", (FIG3_P_MIN,), self.swaps)

    def fig4(self) -> list[Settings]:
        """One row of the heat map: swap 0.6, all p_min."""
        return self._runs("fig4", self.p_min, (FIG4_SWAP,))

    def fig5(self, probabilities: str) -> list[Settings]:
        """The row of Figure 4 with known or with estimated probabilities."""
        return self._runs("fig5", self.p_min, (FIG4_SWAP,), probabilities)

    def _runs(
        self, name: str, p_min: tuple[float, ...], swaps: tuple[float, ...], probabilities: str = "known"
    ) -> list[Settings]:
        axes = {"p_min": p_min, "seed": self.seeds, "swap": swaps, "beta": self.betas, "lr": self.rates}
        common = {"task": self.task, "rule": "fedstale", "probabilities": probabilities, **dict(self.changed)}
        return Grid(name, common, axes).runs()
