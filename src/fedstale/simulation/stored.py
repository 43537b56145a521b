"""Runs in the store: started, and resumed after whatever ended them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import configs
from .. import participation as who
from ..checks import InvalidInput, fail
from ..interrupts import postponed
from .build import build, make_estimator, make_participation, make_rule, make_task
from .callbacks import StoreRun
from .interfaces import Callback
from .loop import Simulation
from .settings import Settings, make_settings

if TYPE_CHECKING:
    from ..rules import Rule
    from ..store import Run, Store
    from ..tasks import Task
    from ..tasks.quadratic import Quadratic


def objects_to_pass(
    settings: Settings,
    *,
    task: Task | Quadratic | None = None,
    rule: Rule | None = None,
    participation: who.Process | who.Participation | None = None,
    probabilities: who.Estimator | None = None,
) -> dict[str, Any]:
    """Return the objects that `build` needs because the settings could not write them down.

    An object that is given must be the one of the settings, as far as they say; one that is needed must be given.
    """
    given: dict[str, Any] = {"task": task, "rule": rule, "participation": participation, "probabilities": probabilities}
    missing = settings.unwritten
    for name in missing:
        if given[name] is None:
            raise configs.not_whole(name, settings.record() if name == "participation" else getattr(settings, name))
    if rule is not None and "rule" in missing:
        configs.check_same("rule", settings.rule, rule)
    elif rule is not None and configs.short_rule(rule) != configs.short_rule(make_rule(settings)):
        raise fail("rule", rule, f"the run was made with {settings.label}")
    if participation is not None:
        given["participation"] = _participation(settings, participation)
    if "probabilities" in missing:
        configs.check_same("probabilities", settings.probabilities, probabilities)
    elif probabilities is not None:
        made = make_estimator(settings, given["participation"] or make_participation(settings))
        configs.check_same("probabilities", configs.to_config(made), probabilities)
    if "task" in missing:
        configs.check_same("task", settings.task, task)
    elif task is not None:
        made_task = make_task(settings, given["participation"] or make_participation(settings), progress=False)
        configs.check_same("task", configs.to_config(made_task), task)
    return {"estimator" if name == "probabilities" else name: given[name] for name in missing}


def _participation(settings: Settings, given: who.Process | who.Participation) -> who.Participation:
    """Return who takes part, as given, after a comparison with what the settings say of it."""
    process, selection = settings.participation, settings.selection
    if configs.whole(process):
        everybody = settings.replace(selection="all", selection_options={})
        process = configs.to_config(make_participation(everybody).availability)
    if isinstance(selection, str):
        asked = who.make_selection(selection, **settings.selection_options)
        given = who.Participation(given, asked) if isinstance(given, who.Process) else given
        selection = configs.to_config(asked)
    both = who.Participation.of(given)
    configs.check_same(
        "participation", {"class": "Participation", "availability": process, "selection": selection}, both
    )
    return both


def _prepare_run(
    store: Store,
    run: Run,
    settings: Settings,
    *,
    resumed: bool = False,
    from_checkpoint: bool = False,
    checkpoint_every: int = 10,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    made: Mapping[str, Any] | None = None,
    **given: Any,
) -> Simulation:
    """Make the simulation of a stored run, from its checkpoint when there is one; what cannot begin leaves nothing.

    Parameters
    ----------
    store, run
        The store, and the run in it, open for writing.
    settings
        The run's settings.
    resumed
        Whether it was started before.
    from_checkpoint
        Whether to resume even if the store lacks the last rounds before the checkpoint.
    checkpoint_every
        Rounds between checkpoints.
    callbacks
        Further callbacks.
    progress
        Whether downloads show a progress bar.
    made
        Objects that were made of these very settings, such as a task that several runs share.
    **given
        The objects that stand in for what the settings name: see `objects_to_pass`.
    """
    continues = resumed and (run.checkpoint / "state.safetensors").exists()
    try:
        if from_checkpoint and not continues:
            raise InvalidInput(f"run {run.id} has no checkpoint to resume from in {run.checkpoint}")
        mine = [StoreRun(run, checkpoint_every), *callbacks]
        if not continues:
            _clear(run.folder / "memory")
        objects = objects_to_pass(settings, **given)
        with postponed("round") as interrupt, interrupt.heard():  # fetching data may take long, and nothing is begun
            simulation = build(
                settings,
                callbacks=mine,
                folder=run.folder,
                resume=continues,
                progress=progress,
                keep_records=False,
                **{**(made or {}), **objects},
            )
        try:
            run.truncate(simulation.state.round - 1)
            _agree(run, simulation.state.round, from_checkpoint)
        except BaseException:
            simulation.state.close()
            raise
    except BaseException:
        run.release()
        if not resumed:
            store.delete(run.id)
        raise
    return simulation


def begin_run(
    store: Store, settings: Settings, *, name: str | None = None, sweep: str | None = None, **options: Any
) -> tuple[Run, Simulation]:
    """Begin a run in the store; the options are those of `prepare`."""
    name = name or settings.label
    run = store.start(settings.record(), name=name, sweep=sweep, rounds_total=settings.total_rounds)
    return run, _prepare_run(store, run, settings, **options)


def continue_run(
    store: Store, which: str, *, where: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Run, Simulation]:
    """Open a run that was interrupted, at its last checkpoint, to go on `where` it is to be computed now.

    `where` has settings of `settings.WHERE`, None for what is as it was; the options are those of `prepare`.
    """
    info = store.run(which).info()
    moved = {name: value for name, value in (where or {}).items() if value is not None}
    settings = make_settings(**info.config | moved)
    given = {name: options.get(name) for name in ("task", "rule", "participation", "probabilities")}
    objects_to_pass(settings, **given)  # before anything is opened for writing
    run = store.resume(info.id)
    return run, _prepare_run(store, run, settings, resumed=True, **options)


def _agree(run: Run, round: int, from_checkpoint: bool) -> None:
    """Refuse a store that is behind the checkpoint, unless told to: metrics are written first, so it is older."""
    found = run.info().rounds_done
    if found == round:
        return
    if not from_checkpoint:
        raise InvalidInput(
            f"run {run.id}: checkpoint {run.checkpoint} was written after round {round}, but the store has {found} "
            "rounds: one of them is an older copy; restore the matching one, or continue without the missing metrics: "
            f"fedstale resume {run.id} --from-checkpoint"
        )
    lost = f"round {round}" if found + 1 == round else f"rounds {found + 1} to {round}"
    warnings.warn(f"run {run.id}: the store has lost the metrics of {lost}", LostRounds, stacklevel=2)


class LostRounds(UserWarning):
    """The store has no metrics of some rounds of a run."""


def _clear(folder: Path) -> None:
    """Remove rows of a run that was killed before its first checkpoint."""
    for file in folder.glob("*.rows"):
        file.unlink()
