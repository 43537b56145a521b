"""The claims of Section 5, measured: held, not held or not decided. Nothing here is assumed, and nothing tuned away.

Methods are compared on differences seed by seed (they share participants and batches), averaged over the cells a claim
speaks of. A difference counts when its 95 % confidence interval (Student's t over the seeds: 4.3 standard errors for
three of them) leaves out zero; with fewer than two seeds, or where runs are missing, nothing is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis import Estimate
from ..checks import Float
from ..sweeps import Cell
from .fig1 import METHODS
from .grids import BETAS, FIG3_P_MIN, FIG4_SWAP, P_MIN, SWAPS
from .table import Place, Table, ratio

HELD, NOT_HELD, NOT_DECIDED = "held", "not held", "not decided"
MIDDLE = (0.2, 0.5, 0.8)
SUFFERS = "FedVARP suffers most from estimated probabilities"
LOWER = "β_opt is lower with estimated probabilities"
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""The 97.5 % points of Student's t for 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Claim:
    """One row of the table."""

    claim: str
    measured: str
    verdict: str


def decide(estimate: Estimate) -> str:
    """Judge the claim that a difference is positive."""
    if estimate.count < 2 or not np.isfinite([estimate.mean, estimate.error]).all():
        return NOT_DECIDED
    freedom = estimate.count - 1
    margin = estimate.error * (STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96 + 2.7 / freedom)
    if abs(estimate.mean) <= margin:
        return NOT_DECIDED
    return HELD if estimate.mean > 0 else NOT_HELD


def all_of(verdicts: Iterable[str]) -> str:
    """Judge a claim that needs several things: one that fails is enough against it, all are needed for it."""
    found = list(verdicts)
    if NOT_HELD in found:
        return NOT_HELD
    return HELD if found and all(verdict == HELD for verdict in found) else NOT_DECIDED


def more_than_chance(wins: int, cells: int, chance: float = len(MIDDLE) / len(BETAS)) -> str:
    """Judge the claim that a share of wins is more than chance gives: a binomial count, two standard deviations."""
    spread = 1.96 * float(np.sqrt(cells * chance * (1.0 - chance)))
    if abs(wins - cells * chance) <= spread:
        return NOT_DECIDED
    return HELD if wins > cells * chance else NOT_HELD


def difference(table: Table, places: Sequence[Place], one: float | str, other: float | str) -> Estimate:
    """Mean over places of the difference between two β, with the standard error over seeds."""
    by_place = []
    for place in places:
        cells = table.cells.get(place, {})
        if one not in cells or other not in cells:
            return Estimate.of([])
        a, b = cells[one].values, cells[other].values
        by_place.append({seed: a[seed] - b[seed] for seed in a.keys() & b.keys()})
    if not by_place:
        return Estimate.of([])
    seeds = set.intersection(*(set(found) for found in by_place))
    return Estimate.of(float(np.mean([found[seed] for found in by_place])) for seed in sorted(seeds))


def best_in(table: Table, places: Sequence[Place], beta: float) -> tuple[str, str]:
    """Judge the claim that one fixed β is the best in some cells: (what was measured, verdict)."""
    others = {other: difference(table, places, beta, other) for other in BETAS if other != beta}
    wins = sum(table.best(place) == beta for place in places)
    shown = ", ".join(f"{gain.points()} over β={other:g}" for other, gain in others.items())
    return f"best in {wins} of {len(places)} cells; {shown} points", all_of(map(decide, others.values()))


def slope(table: Table, lines: Sequence[Sequence[Place]], axis: Callable[[Place], float]) -> Estimate:
    """Slope of (accuracy of β=1 − accuracy of β=0) along an axis, mean over lines, standard error over seeds."""
    by_line = []
    for places in lines:
        known = [table.cells.get(place, {}) for place in places]
        if len(known) < 2 or any(not {0.0, 1.0} <= cells.keys() for cells in known):
            continue
        x = np.array([axis(place) for place in places])
        seeds = set.intersection(*(set(cells[beta].values) for cells in known for beta in (0.0, 1.0)))
        by_line.append({seed: _slope(x, known, seed) for seed in seeds})
    if not by_line:
        return Estimate.of([])
    common = set.intersection(*(set(found) for found in by_line))
    return Estimate.of(float(np.mean([found[seed] for found in by_line])) for seed in sorted(common))


def _slope(x: Float, known: Sequence[dict[float | str, Cell]], seed: int) -> float:
    y = [cells[1.0].values[seed] - cells[0.0].values[seed] for cells in known]
    return float(np.polyfit(x, y, 1)[0])


def fig2_claims(table: Table) -> list[Claim]:
    """The claims about the heat map."""
    every = [(p, swap) for p in P_MIN for swap in SWAPS]
    here = [place for place in every if table.complete(place)]
    winners = [table.best(place) for place in here]
    share = {
        name: sum(beta in betas for beta in winners)
        for name, betas in (("FedStale", MIDDLE), ("FedVARP", (1.0,)), ("FedAvg", (0.0,)))
    }
    clear = sum(
        all(decide(table.gain(place, beta, end)) == HELD for end in (0.0, 1.0)) for place, beta in _middle(table, here)
    )
    counted = ", ".join(f"{name} {count} ({count / max(len(here), 1):.0%})" for name, count in share.items())
    verdict = HELD if clear > len(here) / 2 else more_than_chance(share["FedStale"], len(here))
    if len(here) < len(every):
        verdict = NOT_DECIDED
    rows = [
        Claim(
            "FedStale prevails in 72 % of the 48 cells, FedVARP in 18 %, FedAvg in 10 %",
            f"{len(here)} of 48 cells run: {counted}; three of the five β are FedStale's: chance alone gives it 60 %; "
            f"it is ahead of both beyond doubt (95 %) in {clear}",
            verdict,
        )
    ]
    homogeneous = [place for place in here if place[0] == 0.5 and place[1] >= 0.2]
    rows.append(
        Claim("FedVARP is best for σ̂²_g ≥ 0.2 when p_min ≈ p_avg (p_min = 0.5)", *_zone(table, homogeneous, 5, 1.0))
    )
    rare = [place for place in here if ratio(place[0]) >= 25 and place[1] <= 0.2]
    rows.append(Claim("FedAvg is best for σ̂²_g ≤ 0.2 when p_avg ≥ 25 p_min", *_zone(table, rare, 8, 0.0)))
    between = [place for place in here if 2.99 < ratio(place[0]) < 25]
    rows.append(Claim("in between (3 p_min ≤ p_avg ≤ 25 p_min) an intermediate β is best", *_between(table, between)))
    grows = slope(table, [[(p, swap) for swap in SWAPS if (p, swap) in here] for p in P_MIN], lambda place: place[1])
    measured = (
        f"accuracy of β=1 minus β=0 changes by {grows.points()} points from σ̂²_g = 0 to 1 (slope, mean over p_min)"
    )
    rows.append(Claim("guideline A: stale updates are worth more as data heterogeneity grows", measured, decide(grows)))
    lines = [[(p, swap) for p in P_MIN if (p, swap) in here] for swap in SWAPS]
    falls = slope(table, lines, lambda place: float(np.log10(ratio(place[0]))))
    measured = f"accuracy of β=1 minus β=0 changes by {falls.points()} points per decade of p_avg/p_min"
    verdict = decide(Estimate(-falls.mean, falls.error, falls.count))
    rows.append(Claim("guideline B: stale updates are worth less as participation gets uneven", measured, verdict))
    return rows


def _middle(table: Table, places: Sequence[Place]) -> list[tuple[Place, float]]:
    found = ((place, table.best(place)) for place in places)
    return [(place, beta) for place, beta in found if beta in MIDDLE and beta is not None]


def _zone(table: Table, places: Sequence[Place], wanted: int, beta: float) -> tuple[str, str]:
    if len(places) < wanted:
        return f"{len(places)} of {wanted} cells run", NOT_DECIDED
    return best_in(table, places, beta)


def _between(table: Table, places: Sequence[Place]) -> tuple[str, str]:
    if len(places) < 18:
        return f"{len(places)} of 18 cells run", NOT_DECIDED
    wins = len(_middle(table, places))
    gains = {beta: [difference(table, places, beta, end) for end in (0.0, 1.0)] for beta in MIDDLE}
    best = max(gains, key=lambda beta: min(gain.mean for gain in gains[beta]))
    over = gains[best]
    text = f"intermediate β best in {wins} of {len(places)} cells; over all of them β={best:g} gains "
    text += f"{over[0].points()} points on FedAvg and {over[1].points()} on FedVARP"
    return text, all_of(map(decide, over))


def fig34_claims(table: Table) -> list[Claim]:
    """The claims about Figures 3 and 4."""
    column = [(FIG3_P_MIN, swap) for swap in SWAPS]
    varp = difference(table, column, 0.5, 1.0)
    avg = difference(table, column[1:], 0.5, 0.0)
    rows = [
        Claim(
            "Figure 3: at p_avg/p_min ≈ 10, FedStale(0.5) beats FedVARP, and FedAvg from σ̂²_g = 0.2 on",
            f"{varp.points()} points over FedVARP, {avg.points()} over FedAvg (mean over σ̂²_g)",
            all_of([decide(varp), decide(avg)]),
        )
    ]
    even = difference(table, [(0.5, FIG4_SWAP)], 1.0, 0.0)
    uneven = [(p, FIG4_SWAP) for p in P_MIN if ratio(p) >= 25]
    odd = difference(table, uneven, 0.0, 1.0)
    rows.append(
        Claim(
            "Figure 4: FedVARP is ahead of FedAvg when participation is homogeneous, and behind when p_avg ≥ 25 p_min",
            f"FedVARP − FedAvg: {even.points()} points at p_min = 0.5; FedAvg − FedVARP: {odd.points()} in the others",
            all_of([decide(even), decide(odd)]),
        )
    )
    return rows


def fig5_claims(known: Table, estimated: Table) -> list[Claim]:
    """The claims about estimated probabilities."""
    columns = [p for p in known.p_min if estimated.complete((p, FIG4_SWAP)) and known.complete((p, FIG4_SWAP))]
    if not columns:
        nothing = "no complete runs with estimated probabilities"
        return [Claim(claim, nothing, NOT_DECIDED) for claim in (SUFFERS, LOWER)]
    places = [(p, FIG4_SWAP) for p in columns]
    losses = {beta: _mean_cost(known, estimated, columns, beta) for beta in BETAS}
    shown = ", ".join(f"β={beta:g} {loss.points()}" for beta, loss in losses.items())
    extra = {beta: _extra_cost(known, estimated, columns, beta) for beta in BETAS if beta != 1.0}
    rows = [
        Claim(
            SUFFERS,
            f"change of accuracy with FedAU, mean over {len(columns)} p_min: {shown} points",
            all_of(map(decide, extra.values())),
        )
    ]
    both = [(known.best(place), estimated.best(place)) for place in places]
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    exact, found = (float(np.mean([pair[k] for pair in pairs])) if pairs else float("nan") for k in (0, 1))
    drop = Estimate.of(a - b for a, b in pairs)
    text = (
        f"mean β_opt {exact:.2f} with exact, {found:.2f} with estimated p: lower by {drop.mean:.2f} ± {drop.error:.2f} "
    )
    text += f"(standard error over {len(pairs)} p_min)"
    verdict = decide(drop)
    rows.append(Claim(LOWER, text, verdict))
    return rows


def _mean_cost(known: Table, estimated: Table, columns: Sequence[float], beta: float) -> Estimate:
    return Estimate.of(_cost_by_seed(known, estimated, columns, beta).values())


def _extra_cost(known: Table, estimated: Table, columns: Sequence[float], beta: float) -> Estimate:
    """How much more FedVARP loses than another β."""
    one, other = (_cost_by_seed(known, estimated, columns, b) for b in (1.0, beta))
    return Estimate.of(other[seed] - one[seed] for seed in sorted(one.keys() & other.keys()))


def _cost_by_seed(known: Table, estimated: Table, columns: Sequence[float], beta: float) -> dict[int, float]:
    found = []
    for p in columns:
        a, b = (table.cells[p, FIG4_SWAP][beta].values for table in (estimated, known))
        found.append({seed: a[seed] - b[seed] for seed in a.keys() & b.keys()})
    seeds = set.intersection(*map(set, found)) if found else set()
    return {seed: float(np.mean([one[seed] for one in found])) for seed in seeds}


def auto_claims(table: Table) -> list[Claim]:
    """What this library claims of its own β (spec: never more than 0.5 points below the best fixed one)."""
    rows = []
    for beta in ("auto", "auto-per-client"):
        places = [place for place, cells in table.cells.items() if beta in cells and table.complete(place)]
        if not places:
            continue
        away = {place: table.behind_best(place, beta).mean for place in places}
        below = {place: gap for place, gap in away.items() if gap < -0.005}
        worst = min(away, key=lambda place: away[place])
        text = f"{len(places)} cells: mean {100 * np.mean(list(away.values())):+.2f} points, worst "
        text += (
            f"{100 * away[worst]:+.2f} at p_min {worst[0]:g}, swap {worst[1]:g}; more than 0.5 below in {len(below)}"
        )
        verdict = NOT_HELD if below else HELD if len(places) == len(P_MIN) * len(SWAPS) else NOT_DECIDED
        rows.append(Claim(f'here: β="{beta}" is never more than 0.5 points below the best fixed β', text, verdict))
        ends = {place: [table.gain(place, beta, end) for end in (0.0, 1.0)] for place in places}
        lost = {place: gains for place, gains in ends.items() if max(gain.mean for gain in gains) < -1e-9}
        text = f"below both in {len(lost)} of {len(places)} cells"
        if lost:
            most = min(max(gain.mean for gain in gains) for gains in lost.values())
            doubtless = sum(all(decide(gain) == NOT_HELD for gain in gains) for gains in lost.values())
            text += f", by {-100 * most:.2f} points at most; beyond doubt (95 %) in {doubtless}"
        verdict = NOT_HELD if lost else HELD if len(places) == len(P_MIN) * len(SWAPS) else NOT_DECIDED
        rows.append(Claim(f'here: β="{beta}" is above the worse of FedAvg and FedVARP in every cell', text, verdict))
    return rows


def fresh_claims(fresh: Table, chosen: Table) -> list[Claim]:
    """`auto` against the β that tuning would have picked, on seeds that had no part in the choice.

    The best of five noisy means is flattered by its noise; the β that was best on other seeds is not.
    """
    rows = []
    for beta in ("auto", "auto-per-client"):
        best = {place: chosen.best(place) for place, cells in fresh.cells.items() if beta in cells}
        gains = {place: fresh.gain(place, beta, picked) for place, picked in best.items() if picked is not None}
        gains = {place: gain for place, gain in gains.items() if gain.count}
        if not gains:
            continue
        seeds = {place: _by_seed(fresh, place, beta, best[place]) for place in gains}
        common = set.intersection(*map(set, seeds.values()))
        mean = Estimate.of(float(np.mean([found[seed] for found in seeds.values()])) for seed in sorted(common))
        worst = min(gains, key=lambda place: gains[place].mean)
        text = f"{len(gains)} cells: mean {mean.points()} points, worst {gains[worst].points()} at p_min {worst[0]:g}, "
        text += f"swap {worst[1]:g}"
        claim = f'here: β="{beta}" is at least as good as the β that was best on the seeds that chose the rate'
        rows.append(Claim(claim, text, decide(mean)))
    return rows


def _by_seed(table: Table, place: Place, one: float | str, other: float | str | None) -> dict[int, float]:
    cells = table.cells[place]
    if other is None or other not in cells:
        return {}
    a, b = cells[one].values, cells[other].values
    return {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}


def fig1_claim(curves: dict[str, tuple[Float, Float]]) -> Claim:
    """FedStale(0.8) against both ends on the quadratics: excess loss, mean over all evaluations of a run."""
    average, varp, stale = list(METHODS)[:3]
    text = "Figure 1: FedStale(0.8) converges faster than FedAvg and FedVARP"
    if not {average, varp, stale} <= curves.keys():
        return Claim(text, "not run", NOT_DECIDED)
    whole = {label: losses.mean(axis=1) for label, (_, losses) in curves.items()}
    end = {label: float(losses[:, -(losses.shape[1] // 10) :].mean()) for label, (_, losses) in curves.items()}
    shown = ", ".join(
        f"{label} {Estimate.of(values).mean:.3g} ± {Estimate.of(values).error:.2g} (last tenth {end[label]:.2g})"
        for label, values in whole.items()
    )
    gains = [Estimate.of(whole[other] - whole[stale]) for other in (average, varp)]
    return Claim(text, f"excess loss, mean over all rounds: {shown}", all_of(map(decide, gains)))


def markdown(rows: Sequence[Claim]) -> str:
    """The table."""
    lines = ["| claim | measured here | verdict |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.claim} | {row.measured} | **{row.verdict}** |" for row in rows)]) + "\n"
