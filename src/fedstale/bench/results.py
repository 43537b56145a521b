"""The results of a benchmark as a table: one line for each setting and rule, which others can check.

A line has what came out, over the seeds and for each of them, and what it came out of: version, hash of the settings,
rate, seeds, machine. The numbers of the seeds are written whole, so that whoever runs the same can compare bits;
everything else on the line follows from them, or is measured in one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from ..analysis import Estimate, Gap
from ..analysis.methods import EVERYBODY as EVERYBODY_LABEL
from ..analysis.target import cost_to_target
from ..checks import Float, InvalidInput, fail
from ..simulation.identity import identity
from ..simulation.methods import Method
from ..spreadsheet import numbered_rows, update_table
from .cells import BY_SEED, SECONDS, checked, missing_column
from .contest import Score
from .machine import code_version, machine_kind
from .suite import BenchSetting

KEY = ("setting", "rule")
MEASURED = ("update_noise", "update_bias", "bytes_per_round", "server_bytes")
"""What is measured in the first seed and is the same in every run of it."""
_SECOND_HALF = ("update_noise", "update_bias", "combine_seconds")
_HASH = 12
_STAY = 3
"""Evaluations in succession that must be at a target."""
Series = Callable[[str], tuple[ArrayLike, ArrayLike]]
"""Gives the rounds and the values of a metric."""


def method_name(method: Method) -> str:
    """What a method is called in the column `rule`: as `fedstale compare --rules` would be asked for it."""
    if method.everybody:
        return "everybody"
    beta = "" if method.beta is None else f":{method.beta}"
    return f"{method.rule}{beta}" + (f"@{method.memory}" if method.memory else "")


def config_hash(setting: BenchSetting, method: Method) -> str:
    """A hash of everything that a run is made of but rate and seed; it changes when the setting does."""
    return identity(setting.settings(method, 1.0, 0).record())[:_HASH]


def line(setting: BenchSetting, method: Method, score: Score, seeds: Sequence[int]) -> dict[str, str]:
    """Write a judged method."""
    values = {name: [run.metrics.get(name, math.nan) for run in score.runs] for name in BY_SEED}
    values["objective"] = score.by_seed.tolist()
    gap = score.gap
    values[SECONDS] = []
    if setting.timed and gap is not None and not method.everybody:
        ends = zip(score.runs, gap.plain.tolist(), strict=True)
        values[SECONDS] = [
            seconds_to(end, run.run.series) if run.run is not None and not run.diverged else math.nan
            for run, end in ends
        ]
    by_seed = {f"{name}_by_seed": " ".join(map(repr, map(float, own))) for name, own in values.items()}
    first = score.runs[0]
    series: Series = first.run.series if first.run is not None else lambda name: ((), ())
    return {
        **_about(setting, method),
        "lr": repr(score.cell.lr),
        "at_edge": score.cell.at_edge or "",
        "decades_within_5_percent": f"{score.decades:.2g}",
        "seeds": " ".join(map(str, seeds)),
        **derived({name: np.array(own) for name, own in values.items()}, gap),
        **measured(series, setting.rounds, first.metrics),
        "diverged": str(len(score.objective.diverged)),
        **by_seed,
        "plain_by_seed": "" if gap is None else " ".join(map(repr, map(float, gap.plain))),
        "everybody_by_seed": "" if gap is None else " ".join(map(repr, map(float, gap.everybody))),
        "cannot": "",
    }


def measured(series: Series, rounds: int, last: Mapping[str, float]) -> dict[str, str]:
    """What is measured in one seed: noise and bias of the update, bytes, memory of the server, CPU time of a round.

    Parameters
    ----------
    series
        Of the run.
    rounds
        How many it has.
    last
        The last value of every metric.
    """
    half = {name: _second_half(*series(name), rounds) for name in _SECOND_HALF}
    traffic = [_mean(series(name)[1]) for name in ("bytes_up", "bytes_down")]
    return {
        "update_noise": f"{half['update_noise']:.4g}",
        "update_bias": f"{half['update_bias']:.4g}",
        "bytes_per_round": f"{sum(traffic):.0f}",
        "server_bytes": f"{last.get('server_bytes', math.nan):.0f}",
        "seconds_per_round": f"{half['combine_seconds']:.3g}",
    }


def derived(values: Mapping[str, Float], gap: Gap | None) -> dict[str, str]:
    """What follows from the numbers of the seeds."""
    found: dict[str, str] = {}
    for name in BY_SEED:
        own = Estimate.of(values[name])
        found |= {name: f"{own.mean:.6g}", f"{name}_error": f"{own.error:.3g}"}
    seconds, known = Estimate.of(values[SECONDS]), len(values[SECONDS]) > 0
    found |= {
        SECONDS: f"{seconds.mean:.6g}" if known else "",
        f"{SECONDS}_error": f"{seconds.error:.3g}" if known else "",
    }
    closed = Estimate(math.nan, math.nan) if gap is None else gap.closed(values["objective"])
    found |= {"gap_closed": f"{closed.mean:.5g}", "gap_closed_error": f"{closed.error:.3g}"}
    return found | {"has_gap": "" if gap is None else str(gap.there)}


def seconds_to(objective: float, series: Series) -> float:
    """Virtual seconds until a run's objective is so small in three successive evaluations; NaN where it never is.

    Parameters
    ----------
    objective
        The target.
    series
        Of the run.
    """
    at, values = (np.asarray(part) for part in series("objective"))
    clock = dict(zip(*(np.asarray(part).tolist() for part in series("virtual_seconds")), strict=True))
    seconds = np.array([clock.get(t, math.nan) for t in at.tolist()])
    cost = cost_to_target({"objective": values, "virtual_seconds": seconds}, "objective", objective, _STAY)
    return math.nan if cost is None else cost.seconds


def refusal(setting: BenchSetting, method: Method, reason: str, like: Mapping[str, str]) -> dict[str, str]:
    """Write a rule that cannot run in a setting, with the columns of another line."""
    kind, _, text = reason.partition(": ")
    shown = text if kind.isidentifier() else reason
    return {**dict.fromkeys(like, ""), **_about(setting, method), "cannot": " ".join(shown.split())[:200]}


def _about(setting: BenchSetting, method: Method) -> dict[str, str]:
    label = EVERYBODY_LABEL if method.everybody else method.label
    who = {"setting": setting.name, "rule": method_name(method), "label": label}
    return who | {"version": code_version(), "config": config_hash(setting, method), "machine": machine_kind()}


def _mean(values: object) -> float:
    found = np.asarray(values, dtype=np.float64)
    return float(found.mean()) if found.size else math.nan


def _second_half(at: object, values: object, rounds: int) -> float:
    """The mean of a metric over the second half of the rounds."""
    late = np.asarray(values, dtype=np.float64)[2 * np.asarray(at) >= rounds]
    late = late[~np.isnan(late)]
    return float(late.mean()) if late.size else math.nan


@dataclass(frozen=True)
class ResultRow:
    """A line of a table of results, read.

    Attributes
    ----------
    row
        As it is in the file.
    file
        The file's name.
    number_in_file
        Of the line; the headings are line 1.
    """

    row: Mapping[str, str]
    file: str = ""
    number_in_file: int = 0

    def refused(self, column: str, allowed: str) -> InvalidInput:
        """Build the error for a cell (raise what it returns)."""
        return fail(f"{self.file}, line {self.number_in_file}, {column}", self.row[column], allowed)

    @property
    def setting(self) -> str:
        """Of the suite."""
        return self.row["setting"]

    @property
    def rule(self) -> str:
        """As it is asked for."""
        return self.row["rule"]

    @property
    def ran(self) -> bool:
        """Whether the rule could run there."""
        return not self.row["cannot"]

    @property
    def seeds(self) -> list[int]:
        """For judging."""
        return [int(seed) for seed in self.row["seeds"].split()]

    def number(self, name: str) -> float:
        """A column; NaN where there is nothing."""
        return float(self.row.get(name) or "nan")

    def by_seed(self, name: str) -> Float:
        """The numbers of the seeds, shape (seeds,); none where there is no such column."""
        return np.array((self.row.get(f"{name}_by_seed") or "").split(), dtype=np.float64)

    @property
    def gap(self) -> Gap | None:
        """Between U-FedAvg and everybody, on the seeds of the line."""
        ends = [self.by_seed(name) for name in ("plain", "everybody")]
        return Gap(*ends) if all(len(end) == len(self.seeds) for end in ends) else None

    def estimate(self, name: str) -> Estimate:
        """A column with its error."""
        return Estimate(self.number(name), self.number(f"{name}_error"), len(self.seeds))


def read(paths: Iterable[Path]) -> list[ResultRow]:
    """Read results, every cell checked; of a setting and rule that several files have, the first counts."""
    found: dict[tuple[str, str], ResultRow] = {}
    for path in paths:
        for key, one in _read(path).items():
            found.setdefault(key, one)
    return list(found.values())


def _read(path: Path) -> dict[tuple[str, str], ResultRow]:
    if not path.is_file():
        raise InvalidInput(f"{path} is a folder, not a table" if path.is_dir() else f"there is no file {path}")
    try:
        headings, rows = numbered_rows(path)
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is no text: a table of fedstale bench is comma-separated text") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read as a table of results: {error}") from None
    if headings and (missing := missing_column(headings)):
        raise InvalidInput(f"{path} is not a table of fedstale bench: it has no column {missing}")
    found: dict[tuple[str, str], ResultRow] = {}
    for number, row in rows:
        one = ResultRow(checked(f"{path.name}, line {number}", row), path.name, number)
        first = found.setdefault((one.setting, one.rule), one)
        if first is not one:
            raise one.refused("rule", f"{one.setting} has a line of this rule already, line {first.number_in_file}")
    return found


def save(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    """Put lines into a file, in place of those of the same setting and rule."""
    update_table(path, lines, KEY)
