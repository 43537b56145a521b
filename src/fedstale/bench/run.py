"""The benchmark run: setting by setting, rates chosen, rules judged, a line for each written as soon as it is known."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..checks import InvalidInput
from ..rules import RULES, OutsideCoverage
from ..simulation.build import make_participation
from ..simulation.methods import EVERYBODY, PLAIN, Method, methods
from ..simulation.settings import Settings
from ..store import Store
from ..sweeps import SweepProgress, in_process, sweep
from ..sweeps.executors import Executor
from ..tasks.data import DataUnavailable, available
from .contest import Entry, choose_rates, judge
from .results import line, method_name, refusal, save
from .suite import BenchSetting, Seeds

Report = Callable[[str, SweepProgress], None]
"""Told what is being done, and how it stands."""


def bench_methods(asked: str | None = None) -> tuple[Method, ...]:
    """Return the rules to compare, and the two that the gap lies between; by default every rule of the library."""
    found = tuple(Method(name) for name in RULES) if asked is None else methods(asked)
    return (*found, *(end for end in (PLAIN, EVERYBODY) if end not in found))


@dataclass
class BenchRun:
    """Settings and rules to be run.

    Parameters
    ----------
    settings, methods
        What is run; U-FedAvg and everybody must be among the methods, else nothing has a gap.
    store
        Where runs are kept: what is there is not run again.
    out
        The table.
    executor
        Where the work is done.
    seeds
        Of every setting; None: each setting's own.
    report
        Told of progress.
    """

    settings: Sequence[BenchSetting]
    methods: Sequence[Method]
    store: Store
    out: Path
    executor: Executor = in_process
    seeds: Seeds | None = None
    report: Report = lambda what, progress: None
    skipped: dict[str, str] = field(default_factory=dict)
    """Settings that could not be run, and why."""

    def run(self) -> Iterator[BenchSetting]:
        """Run everything; yields each setting when its lines are written."""
        for setting in self.settings:
            if reason := why_not(setting):
                self.skipped[setting.name] = reason
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", OutsideCoverage)  # every rule is tried everywhere: the page says so
                lines = self._lines(setting)
            if lines:
                save(self.out, lines)
                yield setting

    def _sweep(self, what: str, wanted: Sequence[Settings]) -> SweepProgress:
        told = partial(self.report, what)
        return sweep(wanted, self.store, name="bench", executor=self.executor, report=told)

    def _lines(self, setting: BenchSetting) -> list[dict[str, str]]:
        seeds = self.seeds or setting.seeds
        known = {method_name(method): method for method in self.methods}
        entries = [
            Entry(
                *(setting.name, name, partial(setting.settings, method), setting.learned.rates),
                more_seeds=seeds.yardstick if method.everybody else (),
            )
            for name, method in known.items()
        ]
        tuning = partial(self._sweep, f"{setting.name}: rates")
        chosen = choose_rates(entries, seeds.choosing, self.store, tuning)
        runs = {
            key: [
                setting.settings(known[key[1]], cell.lr or setting.learned.rates[0], seed, noise=not number)
                for number, seed in enumerate(seeds.judging)
            ]
            for key, cell in chosen.cells.items()
        }
        if not runs:
            self.skipped[setting.name] = next(iter(chosen.failures.values()), "no run came to its end")
            return []
        failed = dict(chosen.failures)

        def judging(wanted: Sequence[Settings]) -> SweepProgress:
            progress = self._sweep(f"{setting.name}: judging", wanted)
            which = {repr(one): key for key, own in runs.items() for one in own}
            failed.update({which[repr(one)]: reason for one, reason in progress.failures})
            return progress

        ends = {"plain": method_name(PLAIN), "everybody": method_name(EVERYBODY)}
        scores = judge(runs, chosen.cells, self.store, judging, **ends)
        written = [line(setting, known[score.key[1]], score, seeds.judging) for score in scores]
        like = written[0] if written else {}
        written += [refusal(setting, known[key[1]], reason, like) for key, reason in failed.items() if like]
        order = list(known)
        return sorted(written, key=lambda row: order.index(row["rule"]))


def why_not(setting: BenchSetting) -> str:
    """Say why a setting cannot be run here: a data set or a log is not there; "" where it can."""
    needs = setting.learned.needs
    if needs and not any(one.name == needs and one.cached for one in available()):
        return f"its data are not here: fedstale data fetch {needs}"
    try:
        make_participation(setting.settings(PLAIN, setting.learned.rates[0], 0))
    except (InvalidInput, DataUnavailable) as error:
        return str(error)
    return ""
