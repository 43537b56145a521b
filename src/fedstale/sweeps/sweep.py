"""A sweep: what is missing in the store is run, and every run is stored as it ends.

A sweep that was killed goes on where it stopped: a run whose settings are in the store as finished is never repeated,
whichever sweep or command made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..checks import InvalidInput, fail
from ..interrupts import postponed
from ..simulation.identity import finished, identity
from ..simulation.settings import Settings
from ..store import Store
from .batches import Batch, plan
from .executors import Executor, in_process
from .outcome import RunOutcome


@dataclass
class SweepProgress:
    """How a sweep stands.

    Attributes
    ----------
    total, stored, done
        Runs of the sweep, those that the store had already, those done now (failed ones included).
    work, worked
        Rounds of what was missing, and of what is done of it.
    failures
        The runs that failed and why.
    """

    total: int
    stored: int = 0
    done: int = 0
    work: int = 0
    worked: int = 0
    failures: list[tuple[Settings, str]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every run is in the store."""
        return self.stored + self.done - len(self.failures) == self.total


def missing(store: Store, runs: Iterable[Settings]) -> list[Settings]:
    """Return the runs that the store has not finished."""
    stored = finished(store)
    return [settings for settings in runs if identity(settings.record()) not in stored]


def sweep(
    runs: Sequence[Settings],
    store: Store,
    *,
    name: str,
    executor: Executor = in_process,
    report: Callable[[SweepProgress], None] = lambda progress: None,
) -> SweepProgress:
    """Run what is missing.

    Parameters
    ----------
    runs
        The settings of every run of the sweep.
    store
        Where the results go.
    name
        The sweep's name in the store.
    executor
        Where the work is done: `in_process`, `processes(n)` or `ray(address)`.
    report
        Called at the start and whenever runs have ended.
    """
    if not runs:
        raise InvalidInput("the sweep has no runs")
    for settings in runs:
        for name, what in settings.unwritten.items():
            allowed = "cannot be stored, so a sweep cannot recognise its runs: use simulate instead"
            raise fail(name, what, allowed)
    left = missing(store, runs)
    absent = set(map(repr, left))
    # Batches are cut from the whole sweep, so that they do not depend on where it was interrupted.
    batches = [
        batch.without(settings for settings in batch.runs if repr(settings) not in absent) for batch in plan(runs)
    ]
    batches = [batch for batch in batches if batch.runs]
    progress = SweepProgress(len(runs), len(runs) - len(left), work=sum(batch.work for batch in batches))
    report(progress)
    for batch, outcomes in executor(batches):
        with postponed("batch"):  # it is stored whole
            _keep(store, name, batch, outcomes, progress)
        progress.worked += batch.work
        report(progress)
    return progress


def _keep(store: Store, name: str, batch: Batch, outcomes: list[RunOutcome], progress: SweepProgress) -> None:
    for settings, outcome in zip(batch.runs, outcomes, strict=True):
        config = settings.record()
        for old in ("failed", "interrupted"):
            earlier = store.find(config, status=old)
            if earlier is not None and earlier.info().sweep == name:
                store.delete(earlier.id)
        run = store.start(config, name=settings.label, sweep=name, rounds_total=settings.total_rounds)
        for number, (t, metrics) in enumerate(outcome.rows):
            run.record(t, metrics | (_judged(outcome, settings) if number == len(outcome.rows) - 1 else {}))
        progress.done += 1
        if outcome.failed:
            progress.failures.append((settings, outcome.reason))
            run.finish("failed", outcome.reason)
        else:
            run.finish("finished" if outcome.diverged_in is None else "diverged", diverged_in=outcome.diverged_in)


def _judged(outcome: RunOutcome, settings: Settings) -> dict[str, float]:
    """What runs are compared by, kept with the last round: accuracy, objective, excess or test loss."""
    judged = ("accuracy", "objective", "excess_loss", "test_loss")
    known = {f"{metric}_tail": outcome.tail(settings.total_rounds, metric) for metric in judged}
    return {name: value for name, value in known.items() if not math.isnan(value)}
