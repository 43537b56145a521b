"""Results checked: each line follows from its seeds, and a sample of the runs comes out the same here.

With the same code (`code_version`) on the same kind of machine (`machine_kind`: processor, system, versions) a run has
the same bits, and the smallest change of a number is found. Elsewhere sums are rounded in another order, and rounds
amplify that: between two orders on one machine (42 runs in lock-step and alone: four settings, five rules and two
seeds, and two runs of a fifth setting) the objective differed by 3e-7 at most where training is stable, by 4 % at the
large rates that two groups like, and by as much as between seeds at one rate that may be too large. So elsewhere a
number must lie within `_ROUNDING`, or within `_SPREADS` standard deviations of its line's seeds: that finds invented
numbers, not a changed digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..checks import InvalidInput
from ..simulation.methods import methods
from ..sweeps import run_batch
from .machine import code_version, machine_kind
from .results import BY_SEED, SECONDS, ResultRow, config_hash, derived, seconds_to
from .suite import BenchSetting, settings_named

_ROUNDING = {"objective": 0.01, "accuracy": 0.01, "accuracy_worst_decile": 0.05}
"""Elsewhere: how far the objective may be off as a share of it, and accuracies in absolute terms."""
_SPREADS = 3.0
"""The same, in standard deviations over the seeds of the line."""


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


def inconsistent(lines: Sequence[ResultRow]) -> list[Check]:
    """Return the numbers that do not follow from the seeds of their own line."""
    wrong = []
    for line in (one for one in lines if one.ran):
        follows = derived({name: line.by_seed(name) for name in (*BY_SEED, SECONDS)}, line.gap)
        for name, text in follows.items():
            stands = line.row.get(name) or ""  # a column may be younger than the table
            if text != stands and not (text == "nan" and stands == ""):
                known = name != "has_gap"
                stated, found = (float(value or "nan") if known else math.nan for value in (stands, text))
                wrong.append(Check(f"{line.setting}, {line.rule}", name, stated, found))
    return wrong


def sampled(lines: Sequence[ResultRow], count: int, seed: int) -> list[tuple[ResultRow, int]]:
    """Draw runs to do again: lines, and the position of a seed in each."""
    every = [(line, k) for line in lines if line.ran for k in range(len(line.seeds))]
    chosen = np.random.default_rng(seed).permutation(len(every))[:count]
    return [every[k] for k in sorted(chosen)]


def rerun(line: ResultRow, position: int, suite: Sequence[BenchSetting] | None = None) -> list[Check]:
    """Do one run of a line again, and compare what it gives."""
    from ..sweeps.lockstep import eligible  # torch is loaded by those who run, not by those who look

    (setting,), (method,) = settings_named(line.setting, suite), methods(line.rule)
    where = f"{line.setting}, {line.rule}, seed {line.seeds[position]}"
    if config_hash(setting, method) != line.row["config"]:
        raise InvalidInput(
            f"{where}: the setting of version {line.row['version']} is not the one of this version (hash differs)"
        )
    rate = float(line.row["lr"])
    settings = setting.settings(method, rate, line.seeds[position], noise=position == 0)
    (outcome,) = run_batch([settings.record()], eligible(settings))
    if outcome.failed:
        raise InvalidInput(f"{where}: {outcome.reason}")
    here = difference(line) is None
    checks = []
    for name in BY_SEED:
        stated = float(line.by_seed(name)[position])
        found = outcome.rows[-1][1].get(name, math.nan) if outcome.rows else math.nan
        if name == "objective":
            found = outcome.tail(settings.total_rounds, name)
        checks.append(Check(where, name, stated, float(found), 0.0 if here else _allowed(line, name, stated)))
    timed, gap = line.by_seed(SECONDS), line.gap
    if here and len(timed) and gap is not None:  # elsewhere a target may be reached an evaluation earlier or later
        at = [t for t, _ in outcome.rows]
        reached = seconds_to(gap.plain[position], lambda name: (at, [row[name] for _, row in outcome.rows]))
        found = reached if outcome.diverged_in is None else math.nan
        checks.append(Check(where, SECONDS, float(timed[position]), found))
    return checks


def difference(line: ResultRow) -> str | None:
    """Say what differs between where a line was made and here, so that bits may differ too; None where nothing does."""
    if line.row["machine"] != machine_kind():
        return "another kind of machine"
    return None if line.row["version"] == code_version() else "another state of the code"


def _allowed(line: ResultRow, name: str, stated: float) -> float:
    """By how much a number may be off elsewhere."""
    spread = float(np.std(line.by_seed(name), ddof=1)) if len(line.seeds) > 1 else 0.0
    return max(_ROUNDING[name] * (abs(stated) if name == "objective" else 1.0), _SPREADS * spread)
