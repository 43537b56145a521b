"""The page docs/leaderboard.md, written from tables of results: nothing on it is typed in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..analysis import Estimate, ranks
from ..simulation.methods import EVERYBODY
from .cells import SECONDS
from .results import ResultRow, method_name, read
from .standings import Standing, by_setting, standings
from .suite import SUITE, WHOLE, BenchSetting, Seeds
from .verify import quick

_LIMIT = method_name(EVERYBODY)
_CLOCK = (
    "This setting has a clock ([Time](time.md)): *virtual s* is how long it takes until the objective is as small as\n"
    "U-FedAvg's at the end of its run, in the same seed; a dash where a seed does not get there."
)
_COMMAND = "fedstale bench table --out docs/leaderboard.md"


def result_files(folder: Path) -> list[Path]:
    """The tables in a folder, in the order in which they count."""
    return sorted(folder.glob("*.csv"))


def page(paths: Sequence[Path], suite: Sequence[BenchSetting] = SUITE) -> str:
    """Write the page of these tables of results; lines of `--quick` are refused."""
    lines = read(paths)
    for line in quick(lines):
        raise line.refused("seeds", "the page takes no lines of --quick: they are for a first look")
    found = standings(lines)
    parts = [_head(lines, paths), _overall(found), _behind(found)]
    seeds = {setting.name: setting.seeds for setting in suite}
    parts += [_setting(name, own, seeds.get(name, WHOLE)) for name, own in by_setting(lines).items()]
    parts += [_left_out(lines, suite), _made(lines)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _head(lines: Sequence[ResultRow], paths: Sequence[Path]) -> str:
    settings, rules = ({getattr(line, name) for line in lines} - {_LIMIT} for name in ("setting", "rule"))
    gaps = {line.setting for line in lines if line.row["has_gap"] == "True"}
    files = ", ".join(f"`{path.name}`" for path in paths)
    (first, second), (third, *_, last) = WHOLE.choosing, WHOLE.yardstick
    return f"""
# Leaderboard

<!-- Written by `{_COMMAND}` from docs/results/bench: do not edit. -->

How rules cope with clients that show up unevenly: {len(rules)} rules in {len(settings)} settings. In each setting
every rule runs at its own best rate, chosen on the seeds {first} and {second} (half decades, widened
until the best is not at the edge) and judged on other seeds. Rules are ranked by the objective Σ α_i F_i over all
clients' training data. **Gap closed**: 0 % is U-FedAvg, which corrects for absence and remembers nothing; 100 % is
everybody in every round at its own best rate, chosen on the seeds {third} to {last} as well, because
every gap is measured by it (a rule may do better than that). Where runs take minutes there are fewer seeds, named
there. {len(gaps)} of the {len(settings)}
settings have a gap of more than twice its error ({", ".join(sorted(gaps)) or "none"}): only those count for it. Where
U-FedAvg's noise is very large, its best rate is a poor one, and gaps are wide and uncertain.

`fedstale bench run` makes such a table, `fedstale bench verify FILE` checks somebody else's, and
[add a method](howto/add-a-method.md) says how a rule gets onto this page. Results: {files} in `docs/results/bench`.
"""


def _overall(found: Sequence[Standing]) -> str:
    headings = ("", "rule", "mean rank", "settings", "gap closed, %", "pooled, %", "least, %", "accuracy")
    more = ("worst tenth", "noise", "bytes", "server, kB", "ms", "diverged")
    rows = []
    for place, one in enumerate(found, 1):
        closed = one.closed
        shares = (
            ("–",) * 3 if closed is None else (_percent(closed.mean), _percent(closed.pooled), _share(closed.least))
        )
        rows.append(
            (
                *(str(place), one.label, f"{one.rank:.1f}", str(one.ran), *shares),
                *(one.accuracy.points(), one.worst.points(), _number(one.noise), f"{_number(one.bytes)} ×"),
                *(kilobytes(one.memory), _number(1000 * one.seconds), str(one.diverged or "")),
            )
        )
    return f"""
## All settings

{_table((*headings, *more), rows)}

Mean ± standard error over settings; pooled: the sum of what is gained over the sum of the gaps, ± over seeds.
Accuracy and worst tenth (the tenth of the clients with the lowest
accuracy): points more than U-FedAvg. Noise: how much the update varies with who happens to come,
E‖Δ − E[Δ]‖² / ‖Σ α_i Δ_i‖². Bytes: on the wire, up and down, as a multiple of U-FedAvg's. Server: its state without the
model. ms: of CPU, to combine a round. These four are medians over the settings in which a rule ran. Where a
rule cannot run it is last (named below); rules without a line for every setting stand last of all. Diverged: settings
in which a seed diverged at the best rate; the rule is last there, and has no means.
"""


def _behind(found: Sequence[Standing]) -> str:
    if len(found) < 2:
        return ""
    first = found[0].label
    rows = []
    for one in found[1:]:
        if one.behind is not None and one.behind.by.count:
            own = one.behind
            p = [f"{value:.2g}" if not math.isnan(value) else "–" for value in (own.p, one.adjusted)]
            rows.append((one.label, str(own.by.count), _percent(own.by), str(own.wins), str(own.losses), *p))
    headings = ("rule", "settings", f"behind {first}, % of the gap", f"{first} ahead", "behind", "p", "p (Holm)")
    return f"""
## Behind the first

{_table(headings, rows)}

Differences in the same setting and seed, mean ± standard error over the settings that have a gap. Ahead and behind:
settings in which the difference is more than twice its error over seeds. p: two-sided, by flipping the signs of whole
settings, and adjusted for the number of rules. Settings of one task share data, so that they are not quite independent.
"""


def _setting(name: str, lines: dict[str, ResultRow], own_seeds: Seeds) -> str:
    limit = [line for rule, line in lines.items() if rule == _LIMIT]
    rank = ranks({rule: line.number("objective") for rule, line in lines.items() if rule != _LIMIT})
    ordered = [
        *sorted((line for rule, line in lines.items() if rule != _LIMIT), key=lambda line: rank[line.rule]),
        *limit,
    ]
    seeds = ordered[0].row["seeds"].replace(" ", ", ")
    if own_seeds != WHOLE:
        more = "".join(f", of everybody on {seed} as well" for seed in own_seeds.yardstick)
        seeds += f"; rates chosen on {', '.join(map(str, own_seeds.choosing))}{more}"
    gap = ordered[0].row["has_gap"]
    timed = any(line.row.get(SECONDS) for line in ordered)
    rows = [
        (
            *(line.row["label"], f"{line.number('lr'):.3g}{'*' if line.row['at_edge'] else ''}"),
            *(_objective(line), _percent(line.estimate("gap_closed")) if gap == "True" else "–"),
            *(f"{line.estimate(name):.1%}" for name in ("accuracy", "accuracy_worst_decile")),
            *(_number(line.number("update_noise")), kilobytes(line.number("bytes_per_round"))),
            *(kilobytes(line.number("server_bytes")), _number(1000 * line.number("seconds_per_round"))),
            *((f"{line.estimate(SECONDS):.1f}",) if timed else ()),
        )
        for line in ordered
    ]
    headings = (
        "rule",
        "rate",
        "objective",
        "gap closed, %",
        "accuracy",
        "worst tenth",
        "noise",
        "kB a round",
        "server, kB",
    )
    note = "" if gap == "True" else " There is no gap to close here: U-FedAvg is within twice the error of everybody."
    if timed:
        note += f" {_CLOCK}"
    return f"""
## {name}

Seeds {seeds}.{note}

{_table((*headings, "ms", *(["virtual s"] if timed else [])), rows)}
"""


def _left_out(lines: Sequence[ResultRow], suite: Sequence[BenchSetting]) -> str:
    table = by_setting(lines)
    every = dict.fromkeys(line.rule for line in lines)
    said = []
    if missing := [setting.name for setting in suite if setting.name not in table]:
        said.append(f"- Settings that were not run: {', '.join(missing)}.")
    for setting, own in table.items():
        refused = {line.rule for line in lines if line.setting == setting and not line.ran}
        if absent := [rule for rule in every if rule not in own and rule not in refused]:
            said.append(f"- {setting}: not run: {', '.join(absent)}.")
    said += [
        f"- {line.setting}: {line.row['label']} cannot run: {line.row['cannot']}" for line in lines if not line.ran
    ]
    edges = [line for line in lines if line.ran and line.row["at_edge"]]
    said += [
        f"- {line.setting}: the best rate of {line.row['label']} ({line.number('lr'):.3g}) is at the "
        f"{line.row['at_edge']} edge of what was tried (* in the table)."
        for line in edges
    ]
    return "## What was left out\n\n" + (
        "\n".join(said) or "Nothing: every rule ran in every setting, at interior rates."
    )


def _made(lines: Sequence[ResultRow]) -> str:
    kinds = dict.fromkeys((line.row["version"], line.row["machine"]) for line in lines)
    said = "\n".join(f"- fedstale {version}; {machine}" for version, machine in kinds)
    return f"## Made with\n\n{said}\n\nTimes (ms) were taken on a machine that did other work as well."


def _objective(line: ResultRow) -> str:
    own = line.estimate("objective")
    return f"{own:.4f}" if not math.isnan(own.mean) else f"diverged ({line.row['diverged']} of {len(line.seeds)} seeds)"


def _percent(estimate: Estimate) -> str:
    """A share in percent with its error."""
    return f"{Estimate(100 * estimate.mean, 100 * estimate.error, estimate.count):.1f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"


def kilobytes(value: float) -> str:
    """Bytes in thousands."""
    return "–" if math.isnan(value) else f"{value / 1e3:,.{0 if value >= 1e4 else 1}f}"


def _table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    names = list(headings)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
