"""What the results say of each rule over all settings: ranks, gap closed, differences to the first, and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..analysis import Ahead, ClosedOverCells, Estimate, ahead, closed_over_cells, mean_ranks
from ..analysis.evidence import holm
from ..simulation.methods import EVERYBODY, PLAIN
from .results import ResultRow, method_name

_LIMIT, _PLAIN = method_name(EVERYBODY), method_name(PLAIN)


@dataclass(frozen=True)
class Standing:
    """A rule over the settings in which it was run.

    Attributes
    ----------
    rule, label
        As it is asked for, and what it is called.
    rank
        Mean over settings with the error over settings; 1 is the least objective. Where it cannot run, it is last.
    ran
        Settings in which it ran.
    closed
        Of the gap, over the settings that have one; None where there is none.
    accuracy, worst
        How much more accurate than U-FedAvg, of all clients and of the worst tenth, over the settings.
    noise, bytes, memory, seconds
        Of the update (relative), on the wire as a multiple of U-FedAvg's, of the server, of a round's combination:
        medians over the settings.
    diverged
        Settings in which a seed diverged at the best rate.
    behind
        By how much it is behind the first, in shares of the gap; None for the first itself.
    adjusted
        The p-value of that, adjusted for the number of rules.
    """

    rule: str
    label: str
    rank: Estimate
    ran: int
    closed: ClosedOverCells | None
    accuracy: Estimate
    worst: Estimate
    noise: float
    bytes: float
    memory: float
    seconds: float
    diverged: int
    behind: Ahead | None = None
    adjusted: float = float("nan")


def by_setting(lines: Sequence[ResultRow]) -> dict[str, dict[str, ResultRow]]:
    """The lines that ran, by setting and rule."""
    found: dict[str, dict[str, ResultRow]] = {}
    for line in lines:
        if line.ran:
            found.setdefault(line.setting, {})[line.rule] = line
    return found


def standings(lines: Sequence[ResultRow]) -> list[Standing]:
    """Rank the rules: those with results for most settings first, then by mean rank.

    A rule that is refused in a setting is last there, like one that diverged; of a rule that was refused everywhere
    nothing can be said.
    """
    table = by_setting(lines)
    known = {rule for own in table.values() for rule in own} - {_LIMIT}
    losses: dict[str, dict[str, float]] = {setting: {} for setting in table}
    for line in lines:
        if line.rule in known and line.setting in table:
            losses[line.setting][line.rule] = line.number("objective") if line.ran else np.nan
    ranked = mean_ranks(losses)
    most = max((rank.count for rank in ranked.values()), default=0)
    order = sorted(ranked, key=lambda rule: (ranked[rule].count < most, ranked[rule].mean))
    found = [_standing(rule, table, ranked[rule]) for rule in order]
    if not found:
        return []
    first = found[0].rule
    behind = {one.rule: ahead(_differences(table, first, one.rule)) for one in found[1:]}
    adjusted = dict(zip(behind, holm([one.p for one in behind.values()]), strict=True))
    more = ({} if one.rule == first else {"behind": behind[one.rule], "adjusted": adjusted[one.rule]} for one in found)
    return [Standing(**{**vars(one), **extra}) for one, extra in zip(found, more, strict=True)]


def _standing(rule: str, table: dict[str, dict[str, ResultRow]], rank: Estimate) -> Standing:
    own = [(lines[rule], lines.get(_PLAIN)) for lines in table.values() if rule in lines]
    gaps = [(line.gap, line.by_seed("objective")) for line, _ in own if line.row["has_gap"] == "True"]
    there = [(gap, objective) for gap, objective in gaps if gap is not None]
    closed = closed_over_cells([gap for gap, _ in there], [objective for _, objective in there]) if there else None

    def gain(name: str) -> Estimate:
        return Estimate.of(line.number(name) - plain.number(name) for line, plain in own if plain is not None)

    def middle(read: Callable[[ResultRow], float]) -> float:
        values = [value for line, _ in own if not np.isnan(value := read(line))]
        return float(median(values)) if values else float("nan")

    ratios = [line.number("bytes_per_round") / plain.number("bytes_per_round") for line, plain in own if plain]
    return Standing(
        rule,
        own[0][0].row["label"],
        rank,
        len(own),
        closed,
        gain("accuracy"),
        gain("accuracy_worst_decile"),
        middle(lambda line: line.number("update_noise")),
        float(median(ratios)) if ratios else float("nan"),
        middle(lambda line: line.number("server_bytes")),
        middle(lambda line: line.number("seconds_per_round")),
        sum(line.number("diverged") > 0 for line, _ in own),
    )


def _differences(table: dict[str, dict[str, ResultRow]], first: str, rule: str) -> dict[str, Estimate]:
    """How far a rule is behind the first, in shares of the gap, by setting; seed by seed, where both have the same."""
    found = {}
    for setting, lines in table.items():
        if first in lines and rule in lines and lines[first].row["has_gap"] == "True":
            own, best, gap = lines[rule], lines[first], lines[first].gap
            if gap is not None and own.seeds == best.seeds:
                away = own.by_seed("objective") - best.by_seed("objective")
                if np.isfinite(away).all():  # one that diverged has no difference
                    found[setting] = Estimate.of(away / gap.size.mean)
    return found
