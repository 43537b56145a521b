"""Runs grouped into units of work, and the function that does one: what every executor calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..analysis.metrics import main_metric
from ..configs import Config
from ..simulation.history import Record
from ..simulation.interfaces import Callback
from ..simulation.loop import Simulation
from ..simulation.settings import Settings, make_settings
from ..tasks.defaults import full_name
from .outcome import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .perceptron import SharedBatchPerceptron


@dataclass(frozen=True)
class Batch:
    """Runs that are done together, in lock-step or (a single one) alone."""

    runs: tuple[Settings, ...]
    lockstep: bool

    @property
    def work(self) -> int:
        """Rounds of all its runs: what the estimate of the remaining time goes by."""
        return sum(settings.total_rounds for settings in self.runs)

    def without(self, done: Iterable[Settings]) -> Batch:
        """Return what is still to be done."""
        finished = set(map(repr, done))
        return Batch(tuple(settings for settings in self.runs if repr(settings) not in finished), self.lockstep)


@cache
def _by_name(task: str) -> SharedBatchPerceptron | None:
    from ..tasks.catalogue import TASKS
    from .perceptron import SharedBatchPerceptron

    recipe = TASKS.get(full_name(task))
    if recipe is None or not recipe.plain:  # lock-step is SGD on cross-entropy
        return None
    return SharedBatchPerceptron.of(recipe.model())


def _perceptron_of(task: Config) -> SharedBatchPerceptron | None:
    """Return the perceptron of a task by name, without loading its data; None for any other model or task."""
    return _by_name(task) if isinstance(task, str) else None


def plan(runs: Iterable[Settings]) -> list[Batch]:
    """Group runs into batches, in the order in which they were listed."""
    from .lockstep import eligible, shared, width  # torch is loaded by those who run, not by those who look

    groups: dict[object, list[Settings]] = {}
    for settings in runs:
        together = eligible(settings) and _perceptron_of(settings.task) is not None
        groups.setdefault(shared(settings) if together else repr(settings), []).append(settings)
    batches = []
    for members in groups.values():
        model = _perceptron_of(members[0].task) if eligible(members[0]) else None
        most = 1 if model is None else width(model)
        size = -(-len(members) // -(-len(members) // most))  # of equal size: workers end together
        cuts = range(0, len(members), size)
        batches += [Batch(tuple(members[cut : cut + size]), model is not None) for cut in cuts]
    return batches


def run_batch(configs: Sequence[dict[str, Any]], lockstep: bool) -> list[RunOutcome]:
    """Do a batch; an error is the outcome of the run that had it, and of no other."""
    runs = [make_settings(**config) for config in configs]
    with _one_thread():
        if lockstep:
            model = _perceptron_of(runs[0].task)
            if model is not None:
                from .lockstep import Lockstep

                try:
                    return Lockstep(runs, model).run()
                except Exception:  # which of them it was is found out by running each alone
                    if len(runs) > 1:
                        return [run_batch([config], lockstep)[0] for config in configs]
        return [_run_alone(settings) for settings in runs]


def _run_alone(settings: Settings) -> RunOutcome:
    """Do a single run with the round loop."""
    from ..simulation.build import build

    outcome = RunOutcome(settings.record())
    try:
        with TemporaryDirectory(prefix="fedstale-") as folder:  # for memory="disk": rows that end with the run
            simulation = build(
                settings, callbacks=[_Evaluated(outcome)], folder=Path(folder), progress=False, keep_records=False
            )
            try:
                reason = simulation.run()
            finally:
                simulation.state.close()
    except Exception as error:  # a failed run does not stop the sweep
        return RunOutcome(settings.record(), reason=f"{type(error).__name__}: {error}", failed=True)
    outcome.reason = reason
    outcome.diverged_in = simulation.state.round + 1 if reason == "diverged" else None
    return outcome


@dataclass
class _Evaluated(Callback):
    """Keep the rounds that were evaluated: a sweep wants no others."""

    outcome: RunOutcome

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Take the metrics without the wall-clock."""
        if main_metric(record.metrics) is not None:
            metrics = {name: value for name, value in record.metrics.items() if name != "seconds"}
            self.outcome.rows.append((record.round, metrics))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch on one core: batches run side by side in processes, and the bits do not depend on the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
