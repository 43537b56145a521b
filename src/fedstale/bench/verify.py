"""Results checked: each line follows from its seeds, and a sample of the runs comes out the same here.

With the same code (`code_version`) on the same kind of machine (`machine_kind`: processor, system, versions) a run has
the same bits, and the smallest change of a number is found. Elsewhere sums are rounded in another order, and rounds
amplify that: between two orders on one machine (42 runs in lock-step and alone: four settings, five rules and two
seeds, and two runs of a fifth setting) the objective differed by 3e-7 at most where training is stable, by 4 % at the
large rates that two groups like, and by as much as between seeds at one rate that may be too large. So elsewhere a
number must lie within `_ROUNDING`, or within `_SPREADS` standard deviations of its line's seeds: that finds invented
numbers, not a changed digit. The noise of the update differed by up to 14 % between two states of the code (32 first
seeds of four settings), its bias by 7 %, bytes not at all: `_MEASURED`.

The gap of a line is measured by the runs of U-FedAvg and everybody: their objectives, which every line repeats, must be
those of their own lines; where the tables have no such line, it is made anew, rates included (`ends_again`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..checks import InvalidInput
from ..simulation.methods import EVERYBODY, PLAIN, Method, methods
from ..store import Store
from ..sweeps import RunOutcome, run_batch
from . import suite as suites
from .cells import BY_SEED, ENDS, SECONDS
from .machine import code_version, machine_kind
from .results import MEASURED, ResultRow, Series, config_hash, derived, measured, method_name, read, seconds_to
from .run import BenchRun, why_not
from .standings import by_setting
from .suite import BenchSetting

_ROUNDING = {"objective": 0.01, "accuracy": 0.01, "accuracy_worst_decile": 0.05}
"""Elsewhere: how far the objective may be off as a share of it, and accuracies in absolute terms."""
_SPREADS = 3.0
"""The same, in standard deviations over the seeds of the line."""
_MEASURED = {"update_noise": 0.5, "update_bias": 0.5, "bytes_per_round": 0.01, "server_bytes": 0.01}
"""Elsewhere: how far what is measured in the first seed may be off, as a share of it."""
_NOTHING = 1e-6
"""Noise and bias below this are rounding."""
_GAP = {"": math.nan, "False": 0.0, "True": 1.0}
_ENDS = dict(zip(ENDS, map(method_name, (PLAIN, EVERYBODY)), strict=True))


@dataclass(frozen=True)
class Check:
    """One number, looked at.

    Attributes
    ----------
    where
        Setting, rule and seed.
    what
        Which number.
    stated, found
        As the file has it, and as it is.
    allowed
        By how much they may differ.
    """

    where: str
    what: str
    stated: float
    found: float
    allowed: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it is what it should be; two numbers that are not there are equal."""
        if math.isnan(self.stated) or math.isnan(self.found):
            return math.isnan(self.stated) and math.isnan(self.found)
        return abs(self.stated - self.found) <= self.allowed


def sound(lines: Sequence[ResultRow], suite: Sequence[BenchSetting] | None = None) -> None:
    """Refuse lines that no run of this suite can have written: another setting, rule, configuration or other seeds."""
    known = {one.name: one for one in (suites.SUITE if suite is None else suite)}
    for line in lines:
        if line.setting not in known:
            raise line.refused("setting", f"must be a setting of the suite: {', '.join(known)}")
        method = _method(line)
        if not line.ran:
            continue
        if config_hash(known[line.setting], method) != line.row["config"]:
            raise line.refused(
                "config",
                f"the setting of version {line.row['version']} is not the one of this version (hash differs)",
            )
        seeds = {"the whole": known[line.setting].seeds.judging, "--quick": suites.QUICK.judging}
        if tuple(line.seeds) not in seeds.values():
            allowed = " or ".join(f"{' '.join(map(str, own))} ({how})" for how, own in seeds.items())
            raise line.refused("seeds", f"must be the seeds of the setting, {allowed}")


def quick(lines: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the lines of `--quick`: too few seeds for the leaderboard."""
    return [line for line in lines if line.ran and tuple(line.seeds) == suites.QUICK.judging]


def _method(line: ResultRow) -> Method:
    """The method of a line."""
    try:
        found = methods(line.rule)
    except InvalidInput as error:
        raise line.refused("rule", str(error)) from None
    if len(found) != 1 or method_name(found[0]) != line.rule:
        raise line.refused("rule", "must be one rule, as the benchmark writes it")
    return found[0]


def following(lines: Sequence[ResultRow]) -> list[Check]:
    """Compare every number that follows from the seeds of its own line with what follows."""
    checks = []
    for line in (one for one in lines if one.ran):
        where = f"{line.setting}, {line.rule}"
        follows = derived({name: line.by_seed(name) for name in (*BY_SEED, SECONDS)}, line.gap)
        gap = _GAP[line.row["has_gap"]], _GAP[follows.pop("has_gap")]
        checks += [Check(where, name, line.number(name), float(text or "nan")) for name, text in follows.items()]
        lost = float(np.isnan(line.by_seed("objective")).sum())
        checks += [Check(where, "has_gap", *gap), Check(where, "diverged", line.number("diverged"), lost)]
    return checks


def inconsistent(lines: Sequence[ResultRow]) -> list[Check]:
    """Return the numbers that do not follow from the seeds of their own line."""
    return [check for check in following(lines) if not check.holds]


def gap_ends(lines: Sequence[ResultRow], ends: Sequence[ResultRow]) -> list[Check]:
    """Compare the objectives between which the gap of each line lies with the lines of U-FedAvg and everybody."""
    table, checks = by_setting(ends), []
    for line in (one for one in lines if one.ran):
        for name, rule in _ENDS.items():
            end = table.get(line.setting, {}).get(rule)
            if end is None or end.seeds != line.seeds:
                continue
            stated, found = line.by_seed(name), end.by_seed("objective")
            for k, seed in enumerate(line.seeds):
                value = float(stated[k]) if len(stated) else math.nan
                allowed = 0.0 if _same_bits(line, end) else _allowed(end, "objective", float(found[k]))
                where = f"{line.setting}, {line.rule}, seed {seed}"
                checks.append(Check(where, f"{name}_by_seed", value, float(found[k]), allowed))
    return checks


def without_ends(lines: Sequence[ResultRow], ends: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the lines with a gap that `gap_ends` cannot look at: a line of U-FedAvg or everybody is not there."""
    there = {(one.setting, one.rule, tuple(one.seeds)) for one in ends if one.ran}
    return [
        line
        for line in lines
        if line.gap is not None and not {(line.setting, rule, tuple(line.seeds)) for rule in _ENDS.values()} <= there
    ]


def ends_again(line: ResultRow, suite: Sequence[BenchSetting] | None = None) -> list[ResultRow]:
    """Make the lines of U-FedAvg and everybody in the setting of a line: rates chosen, all its seeds judged."""
    with TemporaryDirectory(prefix="fedstale-") as folder, Store.open(Path(folder) / "store") as store:
        out = Path(folder) / "ends.csv"
        seeds = suites.QUICK if quick([line]) else None
        work = BenchRun([runnable(line, suite)], (PLAIN, EVERYBODY), store, out, seeds=seeds)
        return read([out]) if list(work.run()) else []


def runnable(line: ResultRow, suite: Sequence[BenchSetting] | None = None) -> BenchSetting:
    """Return the setting of a line; refused where it cannot be run here."""
    sound([line], suite)
    (setting,) = (one for one in (suites.SUITE if suite is None else suite) if one.name == line.setting)
    if reason := why_not(setting):
        raise InvalidInput(f"{setting.name} cannot be run again: {reason}")
    return setting


def _same_bits(line: ResultRow, other: ResultRow) -> bool:
    """Whether two lines were made by the same code (old versions have no hash of it) on the same kind of machine."""
    return "+" in line.row["version"] and all(line.row[name] == other.row[name] for name in ("version", "machine"))


def sampled(lines: Sequence[ResultRow], count: int, seed: int) -> list[tuple[ResultRow, int]]:
    """Draw runs to do again: lines, and the position of a seed in each; of each line the first seed as well."""
    every = [(line, k) for line in lines if line.ran for k in range(len(line.seeds))]
    chosen = set(np.random.default_rng(seed).permutation(len(every))[:count].tolist())
    own = {id(every[k][0]) for k in chosen}
    return [(line, p) for k, (line, p) in enumerate(every) if k in chosen or (p == 0 and id(line) in own)]


def rerun(line: ResultRow, position: int, suite: Sequence[BenchSetting] | None = None) -> list[Check]:
    """Do one run of a line again, and compare what it gives; the first seed's also has noise, bytes and memory."""
    from ..sweeps.lockstep import eligible  # torch is loaded by those who run, not by those who look

    setting, method = runnable(line, suite), _method(line)
    where = f"{line.setting}, {line.rule}, seed {line.seeds[position]}"
    settings = setting.settings(method, line.number("lr"), line.seeds[position], noise=position == 0)
    (outcome,) = run_batch([settings.record()], eligible(settings))
    if outcome.failed:
        raise InvalidInput(f"{where}: {outcome.reason}")
    here, series = difference(line) is None, _series(outcome)
    last = outcome.rows[-1][1] if outcome.rows else {}
    checks = []
    for name in BY_SEED:
        stated = float(line.by_seed(name)[position])
        found = outcome.tail(settings.total_rounds, name) if name == "objective" else last.get(name, math.nan)
        checks.append(Check(where, name, stated, float(found), 0.0 if here else _allowed(line, name, stated)))
    timed, gap = line.by_seed(SECONDS), line.gap
    if here and len(timed) and gap is not None:  # elsewhere a target may be reached an evaluation earlier or later
        reached = seconds_to(gap.plain[position], series)
        found = reached if outcome.diverged_in is None else math.nan
        checks.append(Check(where, SECONDS, float(timed[position]), found))
    if position == 0:
        seen = measured(series, setting.rounds, last)
        for name in MEASURED:
            found = float(seen[name])
            allowed = _MEASURED[name] * abs(found) + _NOTHING
            checks.append(Check(where, name, line.number(name), found, 0.0 if here else allowed))
    return checks


def _series(outcome: RunOutcome) -> Series:
    def series(name: str) -> tuple[list[int], list[float]]:
        there = [(t, row[name]) for t, row in outcome.rows if name in row]
        return [t for t, _ in there], [value for _, value in there]

    return series


def difference(line: ResultRow) -> str | None:
    """Say what differs between where a line was made and here, so that bits may differ too; None where nothing does."""
    if line.row["machine"] != machine_kind():
        return "another kind of machine"
    return None if line.row["version"] == code_version() else "another state of the code"


def _allowed(line: ResultRow, name: str, stated: float) -> float:
    """By how much a number may be off elsewhere."""
    spread = float(np.std(line.by_seed(name), ddof=1)) if len(line.seeds) > 1 else 0.0
    return max(_ROUNDING[name] * (abs(stated) if name == "objective" else 1.0), _SPREADS * spread)
