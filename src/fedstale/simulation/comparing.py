"""One call for a comparison: `compare(task, rules, …)`: same participants, same batches, several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..analysis.metrics import metric_text
from ..checks import fail, positive_int
from ..interrupts import postponed
from ..participation import Participation, Process
from ..rules import Rule
from ..state import State
from ..tasks.quadratic import Quadratic
from ..terminal import Bar, make_bar, shows_progress
from .build import build, check_length, check_local, make_local_training, make_participation, make_rule, make_task
from .comparison import Comparison
from .coverage import groups_of
from .history import Record, RoundsInStore
from .identity import same_runs
from .interfaces import Callback
from .loop import Simulation
from .methods import Asked, Method, methods
from .options import RunOptions, with_options
from .run import Result, result
from .settings import DEFAULT_TASK, Settings, make_settings
from .stored import begin_run, continue_run, objects_to_pass

if TYPE_CHECKING:
    from ..store import Run, Store
    from ..tasks import Task

_SWEEP = "compare"
"""What the runs of comparisons are filed under in a store."""


@with_options
def compare(
    task: str | Task | Quadratic = DEFAULT_TASK,
    rules: Asked = None,
    participation: str | Process | Participation | None = None,
    *,
    seeds: int = 3,
    store: str | Path | Store | None = None,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[RunOptions],
) -> Comparison:
    """Run several methods on the same setting, participants and batches, for several seeds.

    Parameters
    ----------
    task
        The name of a task, a `fedstale.tasks.Task` or a `Quadratic`.
    rules
        What to compare: names with commas between them or a list of names and rules; a mapping says what each is
        called. In a name, β stands behind a colon, a server optimiser behind a plus, a memory behind an @:
        "fedavg,fedstale:0.8,fedstale+adam,fedstale@lowrank:4". "everybody" is the limit, all clients in every round.
        Default: FedAvg, U-FedAvg, FedVARP, FedStale, tempered FedStale and everybody. "all": every method.
    participation
        Who shows up, by name or as a process; default: half of the clients always, the others with probability `p_min`.
    seeds
        How many: `seed`, `seed` + 1, …
    store
        Store the runs: a folder, or an open `Store`. Those that are there already are not run again.
    progress
        Whether to show a progress bar; default: in a notebook and in a terminal.
    callbacks
        Called at the start, after every round and at the end of every run.
    **options
        Any field of `Settings`, for all methods: p_min, swap, rounds, seed, lr, …

    Examples
    --------
    >>> import fedstale as fs
    >>> found = fs.compare("quadratic", ["fedavg", fs.FedStale(beta=0.5)], num_clients=4, lr=0.02, rounds=20, seeds=2)
    >>> [row["method"] for row in found.records()]
    ['FedAvg', 'FedStale β=0.5']
    """
    named: dict[str, Any] = {"task": task, **options}
    if participation is not None:
        named["participation"] = participation
    settings = make_settings(**named)
    given = {name: named.get(name) for name in settings.unwritten}
    asked = methods(rules)
    return compare_settings(
        settings, asked, seeds, given=given, store=store, progress=progress, callbacks=lambda method, seed: callbacks
    )


def compare_settings(
    settings: Settings,
    asked: Sequence[Method],
    seeds: int = 3,
    *,
    given: Mapping[str, Any] | None = None,
    store: str | Path | Store | None = None,
    progress: bool | None = False,
    callbacks: Callable[[Method, int], Sequence[Callback]] = lambda method, seed: (),
) -> Comparison:
    """Run every method in the setting that `Settings` describe; its rule, β and seed are replaced.

    Parameters
    ----------
    settings
        The setting.
    asked
        What is compared.
    seeds
        How many: settings.seed, settings.seed + 1, …
    given
        The objects that the settings could not write down: a task with your own data, a process of your own class.
    store, progress
        As for `compare`.
    callbacks
        Further callbacks for each run.
    """
    positive_int("seeds", seeds)
    if not asked:
        raise fail("methods", asked, "there must be at least one method to compare")
    every = range(settings.seed, settings.seed + seeds)
    participation = _participation(settings, given or {})
    check_length(settings, participation)
    comparison = Comparison(settings, tuple(asked), every, groups=groups_of(participation, settings.quantiles))
    for method in asked:  # settings that contradict each other are told before any data are fetched
        method.applied(settings, participation)
    with _opened(store) as opened, _progress(comparison, progress) as watch:
        for seed in every:
            setting = _Setting.of(settings.replace(seed=seed), given or {})
            if seed == settings.seed:
                setting.check(asked)
            for method in asked:
                watching = [*callbacks(method, seed), *watch.callbacks(method, seed)]
                found = setting.run(method, watching, opened)
                comparison.results.setdefault(method, {})[seed] = found
                watch.ran(found)
    return comparison


@dataclass
class _Setting:
    """What the methods share for one seed: settings, data, who comes; and the objects that settings cannot say."""

    settings: Settings
    participation: Participation
    task: Task | Quadratic
    given: Mapping[str, Any]
    engine: str | None = None

    @classmethod
    def of(cls, settings: Settings, given: Mapping[str, Any]) -> _Setting:
        participation = _participation(settings, given)
        task = given.get("task") or make_task(settings, participation)
        return cls(settings, participation, task, given)

    def check(self, asked: Sequence[Method]) -> None:
        """Refuse a method that cannot run, before any runs."""
        for method in asked:
            settings = method.applied(self.settings, self.participation)
            if not isinstance(self.task, Quadratic):
                rule = method.rule if isinstance(method.rule, Rule) else make_rule(settings)
                check_local(rule, make_local_training(settings, self.task))

    def run(self, method: Method, callbacks: Sequence[Callback], store: Store | None) -> Result:
        """Run a method, or read its run from the store; what "fastest" chose once serves all methods."""
        chosen = self.settings if self.engine is None else self.settings.replace(engine=self.engine)
        settings = method.applied(chosen, self.participation)
        own = {name: self.given.get(name) for name in settings.unwritten}
        if "rule" in own:
            own["rule"] = method.rule
        made: dict[str, Any] = {"task": self.task}
        if store is not None:
            return _kept(store, settings, method.label, callbacks, made, own)
        simulation = build(settings, callbacks=callbacks, **{**made, **objects_to_pass(settings, **own)})
        reason = simulation.run()
        if settings.engine == "fastest":
            self.engine = simulation.trainer.engine.resolved_name  # type: ignore[attr-defined]
        return result(simulation, reason, method.label)


def _participation(settings: Settings, given: Mapping[str, Any]) -> Participation:
    own = given.get("participation")
    return make_participation(settings) if own is None else Participation.of(own)


def _kept(
    store: Store,
    settings: Settings,
    label: str,
    callbacks: Sequence[Callback],
    made: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Result:
    """Read a run from the store, go on with it, or begin it."""
    ended = next(same_runs(store, settings, ("finished", "diverged")), None)
    if ended is not None:
        return _read(store.run(ended.id), label, made["task"], settings.seed)
    begun = next(same_runs(store, settings, ("interrupted", "failed")), None)
    every = max(10, settings.total_rounds // 4)  # what is lost is quickly run again
    options: dict[str, Any] = {"callbacks": callbacks, "made": made, "checkpoint_every": every, **given}
    with postponed("round"):
        if begun is None:
            run, simulation = begin_run(store, settings, name=label, sweep=_SWEEP, **options)
        else:
            run, simulation = continue_run(store, begun.id, **options)
        return result(simulation, simulation.run(), label, RoundsInStore(store.folder, run.id))


def _read(run: Run, label: str, task: Task | Quadratic, seed: int) -> Result:
    info = run.info()
    make_model = None
    if not isinstance(task, Quadratic):
        from ..tasks.task import build_model

        make_model = partial(build_model, task.model, seed)
    return Result(
        label=label,
        reason=info.status,
        rounds_planned=info.rounds_total or info.rounds_done,
        diverged_in=info.diverged_in,
        rounds=RoundsInStore(run.store, info.id),
        state=State.load(run.checkpoint),
        make_model=make_model,
    )


@contextmanager
def _opened(store: str | Path | Store | None) -> Iterator[Store | None]:
    from ..store import Store

    if store is None or isinstance(store, Store):
        yield store
        return
    with Store.open(Path(store)) as opened:
        yield opened


class _Watch(Callback):
    """Nobody watches."""

    def callbacks(self, method: Method, seed: int) -> Sequence[Callback]:
        """Return what is called during a run."""
        return ()

    def ran(self, found: Result) -> None:
        """Take note of a run that is done."""


class _Progress(_Watch):
    """One bar for the comparison: rounds of all runs, the table so far, the time that is left."""

    def __init__(self, comparison: Comparison, bar: Bar) -> None:
        self._comparison, self._bar = comparison, bar
        self._rounds = comparison.settings.total_rounds
        self._now, self._accuracy = "", ""

    def callbacks(self, method: Method, seed: int) -> Sequence[Callback]:
        self._now, self._accuracy = f"{method.label}, seed {seed}", ""
        return (self,)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Move on."""
        metric = self._comparison.metric if self._comparison.results else "accuracy"
        if metric in record.metrics:
            self._accuracy = f": {metric_text(metric, record.metrics[metric])}"
        done = self._comparison.done * self._rounds + record.round + 1
        self._bar.update(done, self._now + self._accuracy)

    def ran(self, found: Result) -> None:
        self._bar.update(self._comparison.done * self._rounds, self._now, self._comparison)


@contextmanager
def _progress(comparison: Comparison, wanted: bool | None) -> Iterator[_Watch]:
    if not shows_progress(wanted):
        yield _Watch()
        return
    bar = make_bar("round", comparison.total * comparison.settings.total_rounds, transient=True)
    try:
        yield _Progress(comparison, bar)
    finally:
        bar.stop()
