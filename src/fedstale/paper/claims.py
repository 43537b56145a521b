"""The claims of Section 5, measured: held, not held or not decided. Nothing here is assumed, and nothing tuned away.

Methods are compared on differences seed by seed (they share participants and batches), averaged over the cells a claim
speaks of. Whether a difference counts is found by flipping the signs of whole seeds (`analysis.evidence`), which
assumes nothing of how cells and β depend on each other; the p-values of one table are adjusted for their number by
Holm's method, and 0.05 decides (`analysis.verdicts`). Three seeds, as the paper has, decide nothing by themselves:
`--fresh-seeds 10` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis import Estimate, HeatMap
from ..analysis.evidence import NONE, Evidence, all_positive, any_of, averaged, by_flips, signs, stacked
from ..analysis.heatmap import Point, ratio
from ..analysis.verdicts import Claim, Finding, judged
from ..checks import Float
from ..simulation.settings import Settings
from ..store import Store
from ..sweeps import results
from . import fig1
from .auto_claims import auto_findings
from .differences import difference, edges, estimate, trend
from .grids import AUTOS, BETAS, FIG3_P_MIN, FIG4_SWAP, P_MIN, SEEDS, SWAPS, Extent

_MIDDLE = (0.2, 0.5, 0.8)
_SUFFERS = "FedVARP suffers most from estimated probabilities"
_LOWER = "β_opt is lower with estimated probabilities"
_NOTHING = 1e-12


def fig2_findings(table: HeatMap) -> list[Finding]:
    """The claims about the heat map."""
    every = [(p, swap) for p in P_MIN for swap in SWAPS]
    here = [point for point in every if table.complete(point, BETAS)]
    rows = [_prevails(table, here, len(every))]
    homogeneous = [point for point in here if point[0] == 0.5 and point[1] >= 0.2]
    claim = "FedVARP is best for σ̂²_g ≥ 0.2 when p_min ≈ p_avg (p_min = 0.5)"
    rows.append(_zone(claim, table, homogeneous, 5, 1.0))
    rare = [point for point in here if ratio(point[0]) >= 25 and point[1] <= 0.2]
    rows.append(_zone("FedAvg is best for σ̂²_g ≤ 0.2 when p_avg ≥ 25 p_min", table, rare, 8, 0.0))
    rows.append(_between(table, [point for point in here if 2.99 < ratio(point[0]) < 25]))
    seen = edges(table, here, (0.0, 1.0))
    grows, span, evidence = trend(table, here, 0, lambda point: point[1], 1.0)
    text = f"accuracy of β=1 minus β=0 changes by {grows.points()} points from σ̂²_g = 0 to 1 (slope, mean over p_min; "
    text += f"{span} with one p_min or σ̂²_g left out)"
    rows.append(Finding("guideline A: stale updates are worth more as data heterogeneity grows", text, evidence, seen))
    falls, span, evidence = trend(table, here, 1, lambda point: float(np.log10(ratio(point[0]))), -1.0)
    text = f"accuracy of β=1 minus β=0 changes by {falls.points()} points per decade of p_avg/p_min "
    text += f"({span} with one p_min or σ̂²_g left out)"
    rows.append(Finding("guideline B: stale updates are worth less as participation gets uneven", text, evidence, seen))
    return rows


def _prevails(table: HeatMap, here: Sequence[Point], wanted: int) -> Finding:
    winners = [table.best(point) for point in here]
    share = {
        name: sum(beta in betas for beta in winners)
        for name, betas in (("FedStale", _MIDDLE), ("FedVARP", (1.0,)), ("FedAvg", (0.0,)))
    }
    counted = ", ".join(f"{name} {count} ({count / max(len(here), 1):.0%})" for name, count in share.items())
    text = f"{len(here)} of {wanted} cells run: {counted}"
    profiles = _deviations(table, here)
    evidence, usual = _prevailing(profiles)
    if evidence:
        lead = float(_lead(profiles.mean(axis=0)))
        text += (
            f"; chance alone gives FedStale {_wins_by_chance(profiles):.0%}. Its best β is ahead of the better of the "
        )
        text += f"ends by {100 * lead:+.2f} points on average, {100 * usual:+.2f} by chance"
    return Finding(
        "FedStale prevails in 72 % of the 48 cells, FedVARP in 18 %, FedAvg in 10 %",
        text,
        evidence if len(here) == wanted else NONE,
        edges(table, here, BETAS),
    )


def _deviations(table: HeatMap, points: Sequence[Point]) -> Float:
    """Accuracies of the five β minus their mean, by seed and cell: shape (S, cells, 5)."""
    accuracy = stacked(table.cells[point][beta].values for point in points for beta in BETAS)
    profiles = accuracy.reshape(len(accuracy), len(points), len(BETAS))
    return np.asarray(profiles - profiles.mean(axis=2, keepdims=True) if profiles.size else profiles)


def _wins_by_chance(profiles: Float) -> float:
    """Return the share of cells that FedStale would win if the β did not differ, given how the seeds scatter.

    What all seeds have in common is taken away; what is left of each seed, in all its cells at once, gets either sign.
    It is not three fifths: the ends scatter more than the β between them, and β that are neighbours scatter together.
    """
    scatter = profiles - profiles.mean(axis=0)
    means = np.tensordot(signs(len(profiles)), scatter, axes=1)
    means = means[np.abs(means).max(axis=(1, 2)) > _NOTHING]  # all signs alike leave nothing to win by
    middle = [BETAS.index(beta) for beta in _MIDDLE]
    return float(np.isin(means.argmax(axis=2), middle).mean()) if len(means) else float("nan")


def _prevailing(profiles: Float) -> tuple[Evidence, float]:
    """Judge that the best intermediate β is ahead of the better end by more than chance, and return what chance gives.

    The statistic is a lead in accuracy and not a count of cells, because a count forgets by how much: three seeds of
    ten that pull the other way leave it as it is. The best of three against the better of two is ahead by chance alone,
    and so it is in the flipped data. Where one end is far behind, half of the flips put it far ahead and say nothing
    about the other, so that the one-sided p-value is half of what it should be; the two-sided one makes up for that.
    """
    if not profiles.size:
        return NONE, float("nan")
    return by_flips(len(profiles), lambda flips: _lead(np.tensordot(flips, profiles, axes=1) / len(profiles)))


def _lead(means: Float) -> Float:
    """Best intermediate β minus the better end, mean over cells; means has shape (…, cells, 5)."""
    middle = [BETAS.index(beta) for beta in _MIDDLE]
    ends = [BETAS.index(beta) for beta in (0.0, 1.0)]
    return np.asarray((means[..., middle].max(axis=-1) - means[..., ends].max(axis=-1)).mean(axis=-1))


def _zone(claim: str, table: HeatMap, points: Sequence[Point], wanted: int, beta: float) -> Finding:
    """Judge the claim that one fixed β is the best in some cells."""
    if len(points) < wanted:
        return Finding(claim, f"{len(points)} of {wanted} cells run")
    others = {other: difference(table, points, beta, other) for other in BETAS if other != beta}
    wins = sum(table.best(point) == beta for point in points)
    shown = ", ".join(f"{estimate(values).points()} over β={other:g}" for other, values in others.items())
    text = f"best in {wins} of {len(points)} cells; {shown} points"
    return Finding(claim, text, all_positive(stacked(others.values())), edges(table, points, BETAS))


def _between(table: HeatMap, points: Sequence[Point]) -> Finding:
    claim = "in between (3 p_min ≤ p_avg ≤ 25 p_min) an intermediate β is best"
    if len(points) < 18:
        return Finding(claim, f"{len(points)} of 18 cells run")
    wins = sum(table.best(point) in _MIDDLE for point in points)
    gains = {beta: [difference(table, points, beta, end) for end in (0.0, 1.0)] for beta in _MIDDLE}
    best = max(gains, key=lambda beta: min(estimate(values).mean for values in gains[beta]))
    over = [estimate(values).points() for values in gains[best]]
    text = f"intermediate β best in {wins} of {len(points)} cells; over all of them β={best:g} gains "
    text += f"{over[0]} points on FedAvg and {over[1]} on FedVARP"
    evidence = any_of(all_positive(stacked(values)) for values in gains.values())
    return Finding(claim, text, evidence, edges(table, points, BETAS))


def fig34_findings(table: HeatMap) -> list[Finding]:
    """The claims about Figures 3 and 4."""
    column = [(FIG3_P_MIN, swap) for swap in SWAPS]
    varp = difference(table, column, 0.5, 1.0)
    avg = difference(table, column[1:], 0.5, 0.0)
    rows = [
        Finding(
            "Figure 3: at p_avg/p_min ≈ 10, FedStale(0.5) beats FedVARP, and FedAvg from σ̂²_g = 0.2 on",
            f"{estimate(varp).points()} points over FedVARP, {estimate(avg).points()} over FedAvg (mean over σ̂²_g)",
            all_positive(stacked([varp, avg])),
            edges(table, column, (0.0, 0.5, 1.0)),
        )
    ]
    even = difference(table, [(0.5, FIG4_SWAP)], 1.0, 0.0)
    uneven = [(p, FIG4_SWAP) for p in P_MIN if ratio(p) >= 25]
    odd = difference(table, uneven, 0.0, 1.0)
    text = f"FedVARP − FedAvg: {estimate(even).points()} points at p_min = 0.5; FedAvg − FedVARP: "
    rows.append(
        Finding(
            "Figure 4: FedVARP is ahead of FedAvg when participation is homogeneous, and behind when p_avg ≥ 25 p_min",
            text + f"{estimate(odd).points()} in the others",
            all_positive(stacked([even, odd])),
            edges(table, [(0.5, FIG4_SWAP), *uneven], (0.0, 1.0)),
        )
    )
    return rows


def fig5_findings(known: HeatMap, estimated: HeatMap) -> list[Finding]:
    """The claims about estimated probabilities."""
    columns = [
        p for p in known.p_min if estimated.complete((p, FIG4_SWAP), BETAS) and known.complete((p, FIG4_SWAP), BETAS)
    ]
    if not columns:
        nothing = "no complete runs with estimated probabilities"
        return [Finding(claim, nothing) for claim in (_SUFFERS, _LOWER)]
    points = [(p, FIG4_SWAP) for p in columns]
    seen = sum(edges(table, points, BETAS) for table in (known, estimated))
    change = {
        beta: averaged(estimated.cells[point][beta].minus(known.cells[point][beta]) for point in points)
        for beta in BETAS
    }
    shown = ", ".join(f"β={beta:g} {estimate(values).points()}" for beta, values in change.items())
    table = stacked(change.values())
    extra = table[:, :-1] - table[:, -1:] if table.size else table  # how much more FedVARP, the last, loses
    text = f"change of accuracy with FedAU, mean over {len(columns)} p_min: {shown} points"
    evidence, drop = _lower(known, estimated, points)
    best = [[table.best(point) for point in points] for table in (known, estimated)]
    means = [np.mean([beta for beta in row if beta is not None] or [np.nan]) for row in best]
    lower = f"mean β_opt {means[0]:.2f} with exact, {means[1]:.2f} with estimated p, over {len(columns)} p_min"
    lower += f": lower by {drop:.2f}" if evidence else ""
    return [Finding(_SUFFERS, text, all_positive(extra), seen), Finding(_LOWER, lower, evidence, seen)]


def _lower(known: HeatMap, estimated: HeatMap, points: Sequence[Point]) -> tuple[Evidence, float]:
    """Judge that β_opt falls: a seed's runs with exact and with estimated p change points, all of them together."""
    both = stacked(
        table.cells[point][beta].values for table in (known, estimated) for point in points for beta in BETAS
    )
    if not np.isfinite(both).all() or not both.size:
        return NONE, float("nan")
    exact, found = both.reshape(len(both), 2, len(points), len(BETAS)).transpose(1, 0, 2, 3)
    middle, half = (exact + found) / 2.0, (exact - found) / 2.0  # a flip of the half difference exchanges the two

    def optimum(means: Float) -> Float:
        return np.asarray(np.array(BETAS)[means.round(12).argmax(axis=-1)].mean(axis=-1), dtype=np.float64)

    def drop(flips: Float) -> Float:
        moved, rest = np.tensordot(flips, half, axes=1) / len(half), middle.mean(axis=0)
        return optimum(rest + moved) - optimum(rest - moved)

    return by_flips(len(both), drop)[0], float(drop(np.ones((1, len(both))))[0])


def fig1_finding(curves: dict[str, tuple[Float, Float]]) -> Finding:
    """FedStale(0.8) against both ends on the quadratics: excess loss, mean over all evaluations of a run."""
    average, varp, stale = list(fig1.METHODS)[:3]
    text = "Figure 1: FedStale(0.8) converges faster than FedAvg and FedVARP"
    if not {average, varp, stale} <= curves.keys():
        return Finding(text, "not run")
    whole = {label: losses.mean(axis=1) for label, (_, losses) in curves.items()}
    end = {label: float(losses[:, -(losses.shape[1] // 10) :].mean()) for label, (_, losses) in curves.items()}
    shown = ", ".join(
        f"{label} {Estimate.of(values).mean:.3g} ± {Estimate.of(values).error:.2g} (last tenth {end[label]:.2g})"
        for label, values in whole.items()
    )
    gains = np.stack([whole[other] - whole[stale] for other in (average, varp)], axis=1)
    return Finding(text, f"excess loss at η_c = {fig1.LR:g}, mean over all rounds: {shown}", all_positive(gains))


def claims_of_store(store: Store, task: str, runs: Sequence[Settings]) -> list[Claim]:
    """Measure the claims by the runs of a store; none where it has no whole cell of the paper's grid.

    Parameters
    ----------
    store, task
        Where the runs are, and what they learned.
    runs
        The settings of the runs of this task that the store has: their learning rates are those that count.
    """
    if task == "quadratic":
        curves = fig1.curves(store, fig1.RUNS)
        return judged([fig1_finding(curves)]) if curves else []
    grid = [
        settings for settings in runs if settings.p_min in P_MIN and settings.swap in SWAPS and settings.beta in BETAS
    ]
    rates = tuple(dict.fromkeys(settings.lr for settings in grid if settings.lr is not None))
    if not rates:
        return []
    extent = Extent(task, P_MIN, SWAPS, (*BETAS, *AUTOS), SEEDS, rates)
    known, estimated = (HeatMap.of(results(store, part)) for part in (extent.fig2(), extent.fig5("fedau")))
    if not any(known.complete(point, BETAS) for point in known.cells):
        return []
    findings = [*fig2_findings(known), *fig34_findings(known), *fig5_findings(known, estimated), *auto_findings(known)]
    return judged(findings)
