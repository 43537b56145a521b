"""Figure 1: FedAvg, FedVARP and FedStale(0.8) on two quadratics in the plane, p_1/p_2 = 100, T = 4000, K = 5.

(a) the clients' objectives and the optima, (b) the paths of FedAvg and FedVARP and (c) of FedVARP and FedStale(0.8),
all with the same participation draws from w_1 = (−10, −10), (d) the excess loss over 10 runs. The paper does not give
its matrices nor its rate: those of `Quadratic.figure1` and η_c = 0.002 are used. FedAvg and FedVARP are the unbiased
ones (β = 0 and 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import Estimate, method_label, style
from ..analysis.palette import INDIGO, RED
from ..checks import Float
from ..figures import pyplot, save
from ..plots import line_style
from ..simulation import Callback, Record, Settings, Simulation, build, make_settings
from ..simulation.identity import finished, identity
from ..spreadsheet import write_table
from ..store import Store
from ..tasks.quadratic import Quadratic

METHODS: dict[str, float | str] = {method_label("fedstale", beta): beta for beta in (0.0, 1.0, 0.8, "auto")}
RUNS = 10
LR = 0.002
"""The largest of .0003, .0005, .0007, .001, .0014, .002 and .003 at which every β converges (.003: β = 1 does not)."""


def runs(seeds: int = RUNS) -> list[Settings]:
    """Return the runs of panel (d)."""
    return [
        make_settings(
            task="quadratic", num_clients=2, p_min=0.01, rounds=4000, lr=LR, local_steps=5, rule="fedstale", beta=beta,
            seed=seed, evaluate_every=20,
        )
        for seed in range(seeds)
        for beta in METHODS.values()
    ]  # fmt: skip


@dataclass
class _Path2D(Callback):
    """Keep every model of a run."""

    points: list[Float] = field(default_factory=list)

    def on_start(self, simulation: Simulation) -> None:
        """Keep the first one."""
        self.points.append(simulation.model.copy())

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Keep the new one."""
        self.points.append(simulation.model.copy())


def path(beta: float | str, seed: int = 0) -> Float:
    """Return the models w_1 … w_{T+1} of a run, shape (T+1, 2)."""
    kept = _Path2D()
    build(runs(1)[0].replace(beta=beta, seed=seed), callbacks=[kept]).run()
    return np.array(kept.points)


def curves(store: Store, seeds: int) -> dict[str, tuple[Float, Float]]:
    """Return, for each method, the rounds and the excess losses, shape (runs, rounds), that the store has."""
    found = finished(store)
    result = {}
    for label, beta in METHODS.items():
        losses, rounds = [], np.empty(0)
        for settings in runs(seeds):
            info = found.get(identity(settings.record()))
            if settings.beta == beta and info is not None:
                columns = store.run(info.id).metrics(["excess_loss"])
                rounds = max(rounds, columns["round"] + 1.0, key=len)
                losses.append(columns["excess_loss"])
        if losses:  # NaN behind the round in which a run diverged: there is no mean from there on
            whole = [np.pad(loss, (0, len(rounds) - len(loss)), constant_values=np.nan) for loss in losses]
            result[label] = rounds, np.array(whole)
    return result


def draw(store: Store, folder: Path, seeds: int = RUNS) -> list[Path]:
    """Draw the figure as PNG and SVG, and write the curves as CSV."""
    plt = pyplot()
    problem = Quadratic.figure1()
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 8.2), layout="constrained")
    paths = {label: path(beta) for label, beta in METHODS.items() if beta != "auto"}
    _contours(axes[0, 0], problem)
    axes[0, 0].set_title("(a) client objectives and optima")
    average, varp, stale = paths
    for axis, title, shown in (
        (axes[0, 1], "(b) FedAvg and FedVARP, the same draws", (average, varp)),
        (axes[1, 0], "(c) FedVARP and FedStale(0.8), the same draws", (varp, stale)),
    ):
        _contours(axis, problem, faint=True)
        for label in shown:
            axis.plot(*paths[label].T, linewidth=0.9, **line_style(style(label)), alpha=0.85, label=label)
        axis.set_title(title)
        axis.legend(loc="upper left", fontsize=8)
    measured = curves(store, seeds)
    _losses(axes[1, 1], measured)
    axes[1, 1].set_title(f"(d) excess loss, mean of {seeds} runs ± standard error")
    written = save(figure, folder / "fig1")
    table = folder / "fig1.csv"
    _write(table, measured)
    return [*written, table]


def _contours(axis: Any, problem: Quadratic, *, faint: bool = False) -> None:
    x, y = np.meshgrid(np.linspace(-12, 12, 160), np.linspace(-12, 12, 160))
    points = np.stack([x, y], axis=-1)
    levels = (1, 4, 12, 30, 60, 110)
    for client, shade in enumerate((INDIGO, RED)):
        strength = 0.18 if faint else 0.6
        axis.contour(
            x, y, problem.client_loss(client, points), levels=levels, colors=shade, linewidths=0.7, alpha=strength
        )
        name = f"$w_{client + 1}^*$" + ("  (always here)" if client == 0 else "  (p = 0.01)")
        axis.plot(*problem.optima[client], "o", color=shade, markersize=5, label=None if faint else name, zorder=5)
    axis.plot(*problem.optimum, "*", color="black", markersize=11, label=None if faint else "$w^*$  (global)", zorder=6)
    axis.plot(
        *np.asarray(problem.start),
        "s",
        color="black",
        markersize=5,
        label=None if faint else "$w_1$  (start)",
        zorder=6,
    )
    if not faint:
        axis.legend(loc="upper left", fontsize=8)
    axis.set(xlim=(-12, 12), ylim=(-12, 12), aspect="equal")
    axis.grid(visible=False)


def _losses(axis: Any, measured: dict[str, tuple[Float, Float]]) -> None:
    for label, (rounds, losses) in measured.items():
        found = [Estimate.of(column) for column in losses.T]
        mean, error = (np.array([getattr(one, part) for one in found]) for part in ("mean", "error"))
        error = np.nan_to_num(error)
        axis.plot(rounds, mean, linewidth=1.3, label=label, **line_style(style(label)))
        low = np.maximum(mean - error, mean / 10)
        axis.fill_between(rounds, low, mean + error, color=style(label).colour, alpha=0.15, linewidth=0)
    axis.set(yscale="log", xlabel="round", ylabel="F(w) − F(w*)")
    axis.legend(loc="lower left", fontsize=8)


def _write(path: Path, measured: dict[str, tuple[Float, Float]]) -> None:
    lines = [
        [label, int(t), repr(mean.mean), repr(mean.error), len(losses)]
        for label, (rounds, losses) in measured.items()
        for t, mean in zip(rounds, map(Estimate.of, losses.T), strict=True)
    ]
    write_table(path, ["method", "round", "excess_loss", "standard_error", "runs"], lines)
