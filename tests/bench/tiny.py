"""A benchmark of seconds: two settings of four clients, and a rule that somebody adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fedstale as fs
from fedstale.bench import BenchProblem, BenchRun, BenchSetting, Seeds, bench_methods
from fedstale.bench import suite as suites
from fedstale.checks import InvalidInput
from fedstale.federation import CheckedRound
from fedstale.rules import RULES, Rule
from fedstale.spreadsheet import _read_table, write_table
from fedstale.state import State
from fedstale.store import Store
from fedstale.sweeps import Batch, in_process

SEEDS = Seeds((3,), (5, 6), (4,))
SETTINGS = tuple(BenchSetting("tiny", who, 8, quick=True, seeds=SEEDS) for who in ("two-groups", "bursts"))
TIMED = BenchSetting("tiny", "stragglers", 8, evaluations=8, seeds=SEEDS)
RULES_HERE = "half-step,tempered,scaffold,impossible"
counted: list[int] = []


@dataclass(frozen=True, kw_only=True)
class HalfStep(fs.UnbiasedFedAvg):
    """Δ/2: a made-up rule."""

    name: ClassVar[str] = "half-step"

    def update(self, state: State, round: CheckedRound) -> Any:
        return super().update(state, round) / 2


@dataclass(frozen=True, kw_only=True)
class Impossible(Rule):
    """A rule that cannot run anywhere."""

    name: ClassVar[str] = "impossible"

    def update(self, state: State, round: CheckedRound) -> Any:
        raise InvalidInput("needs clients that are never away")


def register() -> None:
    """Make the settings and the rules known, as a pull request would."""
    problem = BenchProblem(
        {"task": "digits-mlp", "share": 0.1, "batch_size": 4, "local_steps": 2}, (0.1, 1.0), clients=4
    )
    suites.PROBLEMS["tiny"] = problem
    RULES.update({rule.name: rule for rule in (HalfStep, Impossible)})


def unregister() -> None:
    """Forget them."""
    del suites.PROBLEMS["tiny"], RULES["half-step"], RULES["impossible"]


def counting(batches: Sequence[Batch]) -> Any:
    """Do batches here, and count the runs."""
    counted.append(sum(len(batch.runs) for batch in batches))
    yield from in_process(batches)


def run(folder: Path, out: Path, rules: str = RULES_HERE) -> BenchRun:
    """Run both settings."""
    with Store.open(folder) as store:
        work = BenchRun(SETTINGS, bench_methods(rules), store, out, counting)
        assert [setting.name for setting in work.run()] == [setting.name for setting in SETTINGS]
    return work


def changed(table: Path, where: Path, column: str, value: str, rule: str = "half-step") -> Path:
    """Copy a table with one number changed."""
    rows = _read_table(table)
    row = next(row for row in rows if row["rule"] == rule)
    assert row[column] != value
    row[column] = value
    write_table(where, list(row), [list(one.values()) for one in rows])
    return where


def main(folder: str, out: str) -> None:
    """Run it in a process of its own."""
    register()
    run(Path(folder), Path(out))
