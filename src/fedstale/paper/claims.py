"""The claims of Section 5, measured: held, not held or not decided. Nothing here is assumed, and nothing tuned away.

Methods are compared on differences seed by seed (they share participants and batches), averaged over the cells a claim
speaks of. Whether a difference counts is found by flipping the signs of whole seeds (`analysis.evidence`), which
assumes nothing of how cells and β depend on each other; the p-values of one table are adjusted for their number by
Holm's method, and 0.05 decides. Three seeds, as the paper has, decide nothing by themselves: `--fresh-seeds 10` does.

No difference is called decided while the best learning rate of a method it is made of stands at the edge of its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis import Estimate
from ..analysis.evidence import LEVEL, NONE, Evidence, all_positive, any_of, by_flips, holm, signs
from ..checks import Float
from .fig1 import LR, METHODS
from .grids import AUTOS, BETAS, FIG3_P_MIN, FIG4_SWAP, P_MIN, SWAPS
from .table import Place, Table, ratio

HELD, NOT_HELD, NOT_DECIDED = "held", "not held", "not decided"
AT_EDGE = "not decided: best rate at the edge of its grid"
MIDDLE = (0.2, 0.5, 0.8)
MARGIN = 0.005
"""How far `auto` may be below the best fixed β, by this library's own claim."""
SUFFERS = "FedVARP suffers most from estimated probabilities"
LOWER = "β_opt is lower with estimated probabilities"
HEADINGS = ("claim", "measured here", "p", "p (Holm)", "verdict")

BySeed = dict[int, float]
_NOTHING = 1e-12


@dataclass(frozen=True)
class Finding:
    """What was measured of one claim.

    Attributes
    ----------
    claim, measured
        What is said, and what was seen.
    evidence
        For and against.
    edges
        How many of the methods and settings that it rests on have their best rate at the edge of its grid.
    """

    claim: str
    measured: str
    evidence: Evidence = NONE
    edges: int = 0


@dataclass(frozen=True)
class Claim:
    """One row of the table.

    Attributes
    ----------
    claim, measured, verdict
        What is said, what was seen, and what follows.
    p, adjusted
        Two-sided p-value, and the same by Holm's method; NaN where runs are missing.
    """

    claim: str
    measured: str
    p: float
    adjusted: float
    verdict: str

    def cells(self) -> tuple[str, ...]:
        """The row as `HEADINGS` has it."""
        return self.claim, self.measured, _p(self.p), _p(self.adjusted), self.verdict


def judged(findings: Sequence[Finding]) -> list[Claim]:
    """Judge the claims of one table, with its number of claims in mind."""
    p = [finding.evidence.p for finding in findings]
    rows = []
    for finding, own, adjusted in zip(findings, p, holm(p), strict=True):
        verdict = NOT_DECIDED
        if finding.edges:
            verdict = AT_EDGE
        elif adjusted <= LEVEL:
            verdict = HELD if finding.evidence.in_favour < finding.evidence.against else NOT_HELD
        edges = f"; best rate at the edge of its grid in {finding.edges} cells" if finding.edges else ""
        rows.append(Claim(finding.claim, finding.measured + edges, own, adjusted, verdict))
    return rows


def stacked(parts: Iterable[BySeed]) -> Float:
    """Lay quantities side by side, shape (S, K), for the seeds that all of them have."""
    columns = list(parts)
    seeds = sorted(set.intersection(*map(set, columns))) if columns else []
    return np.array([[column[seed] for column in columns] for seed in seeds], dtype=np.float64)


def averaged(parts: Iterable[BySeed]) -> BySeed:
    """Mean of several quantities by seed; nothing where one of them has no runs."""
    columns = list(parts)
    seeds = sorted(set.intersection(*map(set, columns))) if columns else []
    return {seed: float(np.mean([column[seed] for column in columns])) for seed in seeds}


def gain(table: Table, place: Place, one: float | str, other: float | str) -> BySeed:
    """How much more accurate one β is than another in a cell, by seed."""
    cells = table.cells.get(place, {})
    if one not in cells or other not in cells:
        return {}
    a, b = cells[one].values, cells[other].values
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def difference(table: Table, places: Sequence[Place], one: float | str, other: float | str) -> BySeed:
    """Mean over places of the difference between two β, by seed."""
    return averaged(gain(table, place, one, other) for place in places)


def estimate(values: BySeed) -> Estimate:
    """Mean and standard error over the seeds."""
    return Estimate.of(values.values())


def edges(table: Table, places: Iterable[Place], betas: Iterable[float | str]) -> int:
    """Count the cells among these whose best rate stands at the edge of its grid."""
    wanted = set(betas)
    return sum(len(wanted & set(table.at_edge(place))) for place in places)


def slope(table: Table, lines: Sequence[Sequence[Place]], axis: Callable[[Place], float]) -> BySeed:
    """Slope of (accuracy of β=1 − accuracy of β=0) along an axis, mean over lines, by seed."""
    by_line = []
    for places in lines:
        gains = stacked(gain(table, place, 1.0, 0.0) for place in places)
        if len(places) < 2 or not gains.size:
            continue
        seeds = sorted(set.intersection(*(set(gain(table, place, 1.0, 0.0)) for place in places)))
        fitted = np.polyfit([axis(place) for place in places], gains.T, 1)[0]
        by_line.append(dict(zip(seeds, map(float, fitted), strict=True)))
    return averaged(by_line)


def trend(
    table: Table, places: Sequence[Place], line: int, axis: Callable[[Place], float], sign: float
) -> tuple[Estimate, str, Evidence]:
    """Judge that stale updates are worth more (sign 1) or less (−1) along an axis, whichever row or column is left out.

    Parameters
    ----------
    table, places
        The heat map, and its cells that were run.
    line
        What the places of one line have in common: 0, p_min, or 1, swap.
    axis
        Where a place stands on the axis.
    sign
        The direction that is claimed.

    Returns
    -------
    The slope, its range with one p_min or one swap left out, and the evidence that it has the sign in all of these.
    """

    def fitted(kept: Sequence[Place]) -> BySeed:
        return slope(table, [[p for p in kept if p[line] == one] for one in sorted({p[line] for p in kept})], axis)

    without = [[p for p in places if p[k] != left] for k in (0, 1) for left in sorted({p[k] for p in places})]
    every = [fitted(places), *map(fitted, without)]
    means = [estimate(values).mean for values in every[1:] if values]
    span = f"{100 * min(means):+.2f} to {100 * max(means):+.2f}" if means else "–"
    return estimate(every[0]), span, all_positive(sign * stacked(every))


def fig2_findings(table: Table) -> list[Finding]:
    """The claims about the heat map."""
    every = [(p, swap) for p in P_MIN for swap in SWAPS]
    here = [place for place in every if table.complete(place)]
    rows = [_prevails(table, here, len(every))]
    homogeneous = [place for place in here if place[0] == 0.5 and place[1] >= 0.2]
    claim = "FedVARP is best for σ̂²_g ≥ 0.2 when p_min ≈ p_avg (p_min = 0.5)"
    rows.append(_zone(claim, table, homogeneous, 5, 1.0))
    rare = [place for place in here if ratio(place[0]) >= 25 and place[1] <= 0.2]
    rows.append(_zone("FedAvg is best for σ̂²_g ≤ 0.2 when p_avg ≥ 25 p_min", table, rare, 8, 0.0))
    rows.append(_between(table, [place for place in here if 2.99 < ratio(place[0]) < 25]))
    seen = edges(table, here, (0.0, 1.0))
    grows, span, evidence = trend(table, here, 0, lambda place: place[1], 1.0)
    text = f"accuracy of β=1 minus β=0 changes by {grows.points()} points from σ̂²_g = 0 to 1 (slope, mean over p_min; "
    text += f"{span} with one p_min or σ̂²_g left out)"
    rows.append(Finding("guideline A: stale updates are worth more as data heterogeneity grows", text, evidence, seen))
    falls, span, evidence = trend(table, here, 1, lambda place: float(np.log10(ratio(place[0]))), -1.0)
    text = f"accuracy of β=1 minus β=0 changes by {falls.points()} points per decade of p_avg/p_min "
    text += f"({span} with one p_min or σ̂²_g left out)"
    rows.append(Finding("guideline B: stale updates are worth less as participation gets uneven", text, evidence, seen))
    return rows


def _prevails(table: Table, here: Sequence[Place], wanted: int) -> Finding:
    winners = [table.best(place) for place in here]
    share = {
        name: sum(beta in betas for beta in winners)
        for name, betas in (("FedStale", MIDDLE), ("FedVARP", (1.0,)), ("FedAvg", (0.0,)))
    }
    counted = ", ".join(f"{name} {count} ({count / max(len(here), 1):.0%})" for name, count in share.items())
    text = f"{len(here)} of {wanted} cells run: {counted}"
    profiles = deviations(table, here)
    evidence, usual = prevailing(profiles)
    if evidence:
        lead = float(_lead(profiles.mean(axis=0)))
        text += (
            f"; chance alone gives FedStale {wins_by_chance(profiles):.0%}. Its best β is ahead of the better of the "
        )
        text += f"ends by {100 * lead:+.2f} points on average, {100 * usual:+.2f} by chance"
    return Finding(
        "FedStale prevails in 72 % of the 48 cells, FedVARP in 18 %, FedAvg in 10 %",
        text,
        evidence if len(here) == wanted else NONE,
        edges(table, here, BETAS),
    )


def deviations(table: Table, places: Sequence[Place]) -> Float:
    """Accuracies of the five β minus their mean, by seed and cell: shape (S, cells, 5)."""
    accuracy = stacked(table.cells[place][beta].values for place in places for beta in BETAS)
    profiles = accuracy.reshape(len(accuracy), len(places), len(BETAS))
    return np.asarray(profiles - profiles.mean(axis=2, keepdims=True) if profiles.size else profiles)


def wins_by_chance(profiles: Float) -> float:
    """Return the share of cells that FedStale would win if the β did not differ, given how the seeds scatter.

    What all seeds have in common is taken away; what is left of each seed, in all its cells at once, gets either sign.
    It is not three fifths: the ends scatter more than the β between them, and β that are neighbours scatter together.
    """
    scatter = profiles - profiles.mean(axis=0)
    means = np.tensordot(signs(len(profiles)), scatter, axes=1)
    means = means[np.abs(means).max(axis=(1, 2)) > _NOTHING]  # all signs alike leave nothing to win by
    middle = [BETAS.index(beta) for beta in MIDDLE]
    return float(np.isin(means.argmax(axis=2), middle).mean()) if len(means) else float("nan")


def prevailing(profiles: Float) -> tuple[Evidence, float]:
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
    middle = [BETAS.index(beta) for beta in MIDDLE]
    ends = [BETAS.index(beta) for beta in (0.0, 1.0)]
    return np.asarray((means[..., middle].max(axis=-1) - means[..., ends].max(axis=-1)).mean(axis=-1))


def _zone(claim: str, table: Table, places: Sequence[Place], wanted: int, beta: float) -> Finding:
    """Judge the claim that one fixed β is the best in some cells."""
    if len(places) < wanted:
        return Finding(claim, f"{len(places)} of {wanted} cells run")
    others = {other: difference(table, places, beta, other) for other in BETAS if other != beta}
    wins = sum(table.best(place) == beta for place in places)
    shown = ", ".join(f"{estimate(values).points()} over β={other:g}" for other, values in others.items())
    text = f"best in {wins} of {len(places)} cells; {shown} points"
    return Finding(claim, text, all_positive(stacked(others.values())), edges(table, places, BETAS))


def _between(table: Table, places: Sequence[Place]) -> Finding:
    claim = "in between (3 p_min ≤ p_avg ≤ 25 p_min) an intermediate β is best"
    if len(places) < 18:
        return Finding(claim, f"{len(places)} of 18 cells run")
    wins = sum(table.best(place) in MIDDLE for place in places)
    gains = {beta: [difference(table, places, beta, end) for end in (0.0, 1.0)] for beta in MIDDLE}
    best = max(gains, key=lambda beta: min(estimate(values).mean for values in gains[beta]))
    over = [estimate(values).points() for values in gains[best]]
    text = f"intermediate β best in {wins} of {len(places)} cells; over all of them β={best:g} gains "
    text += f"{over[0]} points on FedAvg and {over[1]} on FedVARP"
    evidence = any_of(all_positive(stacked(values)) for values in gains.values())
    return Finding(claim, text, evidence, edges(table, places, BETAS))


def fig34_findings(table: Table) -> list[Finding]:
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


def fig5_findings(known: Table, estimated: Table) -> list[Finding]:
    """The claims about estimated probabilities."""
    columns = [p for p in known.p_min if estimated.complete((p, FIG4_SWAP)) and known.complete((p, FIG4_SWAP))]
    if not columns:
        nothing = "no complete runs with estimated probabilities"
        return [Finding(claim, nothing) for claim in (SUFFERS, LOWER)]
    places = [(p, FIG4_SWAP) for p in columns]
    seen = sum(edges(table, places, BETAS) for table in (known, estimated))
    change = {beta: averaged(_change(known, estimated, place, beta) for place in places) for beta in BETAS}
    shown = ", ".join(f"β={beta:g} {estimate(values).points()}" for beta, values in change.items())
    table = stacked(change.values())
    extra = table[:, :-1] - table[:, -1:] if table.size else table  # how much more FedVARP, the last, loses
    text = f"change of accuracy with FedAU, mean over {len(columns)} p_min: {shown} points"
    evidence, drop = _lower(known, estimated, places)
    best = [[table.best(place) for place in places] for table in (known, estimated)]
    means = [np.mean([beta for beta in row if beta is not None] or [np.nan]) for row in best]
    lower = f"mean β_opt {means[0]:.2f} with exact, {means[1]:.2f} with estimated p, over {len(columns)} p_min"
    lower += f": lower by {drop:.2f}" if evidence else ""
    return [Finding(SUFFERS, text, all_positive(extra), seen), Finding(LOWER, lower, evidence, seen)]


def _change(known: Table, estimated: Table, place: Place, beta: float) -> BySeed:
    a, b = (table.cells[place][beta].values for table in (estimated, known))
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def _lower(known: Table, estimated: Table, places: Sequence[Place]) -> tuple[Evidence, float]:
    """Judge that β_opt falls: a seed's runs with exact and with estimated p change places, all of them together."""
    both = stacked(
        table.cells[place][beta].values for table in (known, estimated) for place in places for beta in BETAS
    )
    if not np.isfinite(both).all() or not both.size:
        return NONE, float("nan")
    exact, found = both.reshape(len(both), 2, len(places), len(BETAS)).transpose(1, 0, 2, 3)
    middle, half = (exact + found) / 2.0, (exact - found) / 2.0  # a flip of the half difference exchanges the two

    def optimum(means: Float) -> Float:
        return np.asarray(np.array(BETAS)[means.round(12).argmax(axis=-1)].mean(axis=-1), dtype=np.float64)

    def drop(flips: Float) -> Float:
        moved, rest = np.tensordot(flips, half, axes=1) / len(half), middle.mean(axis=0)
        return optimum(rest + moved) - optimum(rest - moved)

    return by_flips(len(both), drop)[0], float(drop(np.ones((1, len(both))))[0])


def auto_findings(table: Table) -> list[Finding]:
    """What this library claims of its own β: never more than 0.5 points below the best fixed one.

    The best of five noisy means is flattered by its noise. In each seed `auto` is therefore compared with the β that
    the *other* seeds would have picked.
    """
    rows = []
    for beta in AUTOS:
        places = [place for place in sorted(table.cells) if beta in table.cells[place] and table.complete(place)]
        if not places:
            continue
        whole = len(places) == len(P_MIN) * len(SWAPS)
        seen = edges(table, places, (*BETAS, beta))
        away = {place: _behind_pick(table, place, beta) for place in places}
        means = {place: estimate(values).mean for place, values in away.items()}
        worst = min(means, key=lambda place: np.nan_to_num(means[place], nan=np.inf))
        text = f"{len(places)} cells: mean {100 * np.mean(list(means.values())):+.2f} points, worst "
        text += f"{estimate(away[worst]).points()} at p_min {worst[0]:g}, swap {worst[1]:g}; more than 0.5 below in "
        text += f"{sum(mean < -MARGIN for mean in means.values())}"
        evidence = all_positive(stacked(away.values()) + MARGIN)
        claim = f'here: β="{beta}" is never more than 0.5 points below the fixed β that the other seeds picked'
        rows.append(Finding(claim, text, evidence if whole else _only_against(evidence), seen))
        ends = {place: _over_worse_end(table, place, beta) for place in places}
        lost = [estimate(values).mean for values in ends.values() if estimate(values).mean < 0.0]
        text = f"below both in {len(lost)} of {len(places)} cells"
        text += f", by {-100 * min(lost):.2f} points at most" if lost else ""
        evidence = all_positive(stacked(ends.values()))
        claim = f'here: β="{beta}" is above the worse of FedAvg and FedVARP in every cell'
        rows.append(Finding(claim, text, evidence if whole else _only_against(evidence), seen))
    return rows


def _behind_pick(table: Table, place: Place, beta: str) -> BySeed:
    fixed, own = {b: cell.values for b, cell in table.fixed(place).items()}, table.cells[place][beta].values
    found = {}
    for seed in own:
        others = {b: [value for s, value in values.items() if s != seed] for b, values in fixed.items()}
        picked = max((b for b in sorted(fixed) if others[b]), key=lambda b: np.mean(others[b]), default=None)
        if picked is not None and seed in fixed[picked]:
            found[seed] = own[seed] - fixed[picked][seed]
    return found


def _over_worse_end(table: Table, place: Place, beta: str) -> BySeed:
    return max((gain(table, place, beta, end) for end in (0.0, 1.0)), key=lambda values: estimate(values).mean)


def _only_against(evidence: Evidence) -> Evidence:
    """A claim about every cell can be refuted by some of them, but not shown."""
    return Evidence(1.0, evidence.against) if evidence else NONE


def fresh_findings(fresh: Table, chosen: Table) -> list[Finding]:
    """`auto` against the β that tuning would have picked, on seeds that had no part in the choice."""
    rows = []
    for beta in AUTOS:
        best = {place: chosen.best(place) for place, cells in fresh.cells.items() if beta in cells}
        gains = {place: gain(fresh, place, beta, picked) for place, picked in best.items() if picked is not None}
        gains = {place: values for place, values in gains.items() if values}
        if not gains:
            continue
        mean = averaged(gains.values())
        worst = min(gains, key=lambda place: estimate(gains[place]).mean)
        text = f"{len(gains)} cells: mean {estimate(mean).points()} points, worst {estimate(gains[worst]).points()} at "
        text += f"p_min {worst[0]:g}, swap {worst[1]:g}"
        claim = f'here: β="{beta}" is better than the β that was best on the seeds that chose the rate'
        rows.append(Finding(claim, text, all_positive(stacked([mean])), edges(fresh, gains, (*BETAS, beta))))
    return rows


def fig1_finding(curves: dict[str, tuple[Float, Float]]) -> Finding:
    """FedStale(0.8) against both ends on the quadratics: excess loss, mean over all evaluations of a run."""
    average, varp, stale = list(METHODS)[:3]
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
    return Finding(text, f"excess loss at η_c = {LR:g}, mean over all rounds: {shown}", all_positive(gains))


def markdown(rows: Sequence[Claim]) -> str:
    """The table."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row.cells()[:-1])} | **{row.verdict}** |" for row in rows]
    return "\n".join([*lines, "", EXPLANATION]) + "\n"


EXPLANATION = (
    "p: two-sided, by flipping the signs of whole seeds; S seeds give none below 2/2^S (0.25 for 3, 0.002 for 10). "
    f"p (Holm): adjusted for the number of claims in this table; {LEVEL:g} or less decides."
)


def _p(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2g}"
