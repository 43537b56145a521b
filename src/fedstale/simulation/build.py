"""From settings to a simulation: the names of a config become the objects that do the work."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import clock, configs, rules, training
from .. import participation as who
from ..checks import InvalidInput, fail, unknown
from ..federation import Federation, Ints
from ..state import State
from ..tasks.defaults import RATES
from ..tasks.names import QUADRATIC, task_names
from ..tasks.quadratic import Quadratic
from .coverage import Coverage, quantiles_of, rounds_of_a_day
from .history import Record
from .interfaces import Callback, Trainer
from .loop import Simulation
from .settings import ROUNDS, Settings
from .timed import TimedSimulation
from .trainers import EngineTrainer, QuadraticTrainer

if TYPE_CHECKING:
    from ..tasks import Task

_ENGINE = "engine"


def make_rule(settings: Settings) -> rules.Rule:
    """Make the rule."""
    names = ("rule", "beta", "rule_options", "server_lr", "clip_norm", "max_weight", "seed")
    return configs.rule_of(**{name: getattr(settings, name) for name in names})


def make_participation(settings: Settings) -> who.Participation:
    """Make availability and selection."""
    options = {"num_clients": settings.num_clients, **settings.participation_options}
    if settings.takes_p_min:
        options["p_min"] = settings.p_min
    if settings.participation == "phones" and options.get("kind") != "model" and "path" not in options:
        from ..tasks.phones_file import phones_file

        options["path"] = str(phones_file())
    if isinstance(settings.participation, str):
        process = who.make(settings.participation, **options)
    else:
        process = configs.from_config(settings.participation, "participation")
    if isinstance(settings.selection, str):
        selection = who.make_selection(settings.selection, **settings.selection_options)
    else:
        selection = configs.from_config(settings.selection, "participation")
    return who.Participation(process, selection)


def check_length(settings: Settings, participation: who.Participation) -> None:
    """Refuse a log that ends before the run does: nothing would be left of the rounds that it has."""
    log, rounds = participation.availability, settings.total_rounds
    if settings.server == ROUNDS and isinstance(log, who.Trace) and not log.repeat and rounds > log.num_rounds:
        allowed = f"the log has {log.num_rounds:,}: ask for fewer, or start over after its end (repeat=True)"
        raise fail("rounds", rounds, allowed)


def make_estimator(settings: Settings, participation: who.Participation) -> who.Estimator:
    """Make the source of the p_i; known ones are those of the participation process, a day is as long as there."""
    if not isinstance(settings.probabilities, str):
        made: who.Estimator = configs.from_config(settings.probabilities, "probabilities")
        return made
    if settings.probabilities == "known":
        return who.KnownProbabilities.of(participation)
    own: dict[str, Any] = {}
    if settings.probabilities == "daily" and (day := rounds_of_a_day(participation)) is not None:
        own = {"period": day, "bins": min(day, who.DailyFrequency.bins)}
    return who.make_estimator(settings.probabilities, **own)


def make_task(settings: Settings, participation: who.Participation, *, progress: bool = True) -> Task | Quadratic:
    """Make the task; the rare clients of the participation process are the ones whose labels are swapped."""
    if not isinstance(settings.task, str):
        quadratic: Quadratic = configs.from_config(settings.task, "task")
        return quadratic
    if settings.task == QUADRATIC:
        return (
            Quadratic.figure1()
            if settings.num_clients == 2
            else Quadratic.random(settings.num_clients, 10, settings.seed)
        )
    from .. import tasks

    if settings.task not in task_names():
        raise unknown("task", settings.task, task_names())
    return tasks.make(
        settings.task,
        num_clients=settings.num_clients,
        share=settings.share,
        partition=settings.partition,
        swap=settings.swap,
        groups=participation.participation_groups() > 0,
        seed=settings.seed,
        progress=progress,
        **settings.partition_options,
    )


def make_devices(settings: Settings, *, progress: bool = True) -> clock.Devices:
    """Make the devices; measured speeds are those of the data set `device-speeds`, or of a file of its kind."""
    options = dict(settings.device_options)
    if settings.devices == clock.Measured.name and "table" not in options:
        from ..tasks.device_speeds import read_speeds

        file = options.pop("file", None)
        options["table"] = read_speeds(None if file is None else Path(str(file)), progress=progress)
    return clock.make_devices(settings.devices, **options)


def make_local_training(settings: Settings, task: Task) -> training.LocalTraining:
    """Make the hyper-parameters of local training; what the settings leave open is the task's."""
    whole = settings.batch_size and settings.epochs is None and settings.replacement is None
    if whole and settings.batch_size > task.train.sizes.min():
        poorest = int(np.argmin(task.train.sizes))
        allowed = (
            f"client {poorest} has only {task.train.sizes[poorest]} samples: use a smaller batch, or set replacement"
        )
        raise fail("batch_size", settings.batch_size, allowed)
    options: dict[str, Any] = {} if settings.replacement is None else {"replacement": settings.replacement}
    return training.LocalTraining(
        lr=settings.lr or task.default_lr,
        steps=None if settings.epochs else settings.local_steps or task.local_steps,
        epochs=settings.epochs,
        batch_size=settings.batch_size or task.batch_size,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        schedule=settings.schedule,
        optimizer=settings.optimizer or task.optimizer,
        optimizer_options=settings.optimizer_options or None,
        clip_gradient=settings.clip_gradient,
        **options,
    )


def check_local(rule: rules.Rule, local: training.LocalTraining) -> None:
    """Refuse a rule that changes the steps of plain SGD for clients that take others; else the first round would."""
    if local.plain:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = rule.local(rule.init(Federation(2, 1)), np.arange(1))
    if asked is not None and (asked.recursive or asked.linear is not None) and not asked.gradient:
        raise fail("rule", rule.name, "corrects steps of plain sgd: not with another optimizer or with clip_gradient")


def _make_trainer(settings: Settings, task: Task | Quadratic, engine: str | None = None) -> Trainer:
    """Make local training on the task."""
    if isinstance(task, Quadratic):
        return QuadraticTrainer(task, settings.lr or RATES["quadratic"], settings.local_steps or 5, seed=settings.seed)
    if settings.keep_freed_memory and settings.device.startswith("cpu"):
        training.keep_freed_memory()
    made = training.make(
        task,
        make_local_training(settings, task),
        engine=engine or settings.engine,
        precision=settings.precision,
        device=settings.device,
        threads=settings.threads,
        seed=settings.seed,
        losses=settings.train_loss,
        **_cluster(settings, engine or settings.engine),
    )
    return EngineTrainer(made, task)


def _cluster(settings: Settings, engine: str) -> dict[str, Any]:
    """Where the actors of the engine "ray" are; nothing for any other engine."""
    if engine != "ray":
        return {}
    from ..training.ray_engine import ClusterOptions

    where = settings.workers, settings.ray_address, settings.gpus_per_worker
    return {"cluster": ClusterOptions(*where, keep_memory=settings.keep_freed_memory)}


def build(
    settings: Settings,
    *,
    task: Task | Quadratic | None = None,
    participation: who.Participation | None = None,
    rule: rules.Rule | None = None,
    estimator: who.Estimator | None = None,
    callbacks: Sequence[Callback] = (),
    folder: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    keep_records: bool = True,
) -> Simulation:
    """Make the simulation that the settings describe; objects given here replace what the settings name.

    Parameters
    ----------
    settings
        The settings.
    task, participation, rule, estimator
        Used instead of what the settings name; `clip_norm` and `max_weight` of the settings still apply to the rule.
    callbacks
        Called at the start, after every round and at the end.
    folder
        The run's folder, where memory="disk" lives and where `resume` looks for the checkpoint.
    resume
        Resume from the checkpoint in `folder`/checkpoint.
    progress
        Whether downloads show a progress bar.
    keep_records
        Whether the simulation keeps its rounds in RAM, see `Simulation`.
    """
    participation = participation or make_participation(settings)
    check_length(settings, participation)
    rule = make_rule(settings) if rule is None else rules.guard(rule, settings.clip_norm, settings.max_weight)
    estimator = make_estimator(settings, participation) if estimator is None else estimator
    if isinstance(task, Quadratic) or not isinstance(settings.task, str) or settings.task == QUADRATIC:
        _check_own_task(settings)
    if task is None:
        task = make_task(settings, participation, progress=progress)
    if task.num_clients != participation.num_clients:
        raise fail("participation", f"{participation.num_clients} clients", f"the task has {task.num_clients}")
    memory = settings.memory
    if memory == "disk" or memory.startswith("disk::"):
        if folder is None:
            raise fail("memory", memory, 'a run without a store needs a folder: "disk:FOLDER"')
        memory = f"disk:{folder / 'memory'}{memory.removeprefix('disk').replace('::', ':')}"
    state = State.load(folder / "checkpoint") if resume and folder is not None else None
    if settings.per_client and not isinstance(task, Quadratic) and "accuracy" not in task.metrics:
        raise fail("per_client", True, f"records accuracies, and the task {task.name} has none")
    if settings.quantiles is not None and isinstance(task, Quadratic):
        raise fail("quantiles", settings.quantiles, "needs clients with data: a quadratic has one objective for all")
    if not isinstance(task, Quadratic):
        check_local(rule, make_local_training(settings, task))
    trainer = _make_trainer(settings, task, None if state is None else state.notes.get(_ENGINE))
    if state is not None and state.federation.num_params != trainer.num_params:
        raise InvalidInput(
            f"checkpoint {folder} has {state.federation.num_params} parameters, but the model has {trainer.num_params}"
        )
    sizes = None if isinstance(task, Quadratic) else task.train.sizes
    federation = Federation(task.num_clients, trainer.num_params, weights=settings.weights, sizes=sizes)
    if isinstance(trainer, EngineTrainer) and not isinstance(task, Quadratic):
        trainer.groups = _own_groups(task, participation)
        trainer.quantiles = quantiles_of(participation, settings.quantiles)
    coverage = Coverage.of(participation, federation.alpha())
    if isinstance(trainer, EngineTrainer) and settings.objective:
        trainer.alpha = federation.alpha()
        trainer.covered = None if coverage is None else coverage.alpha
    chooses_later = isinstance(trainer, EngineTrainer) and trainer.engine.resolved_name is None
    made: Callable[..., Simulation] = Simulation
    if settings.server != ROUNDS:
        made = partial(
            TimedSimulation,
            server=settings.make_server(),
            devices=make_devices(settings, progress=progress),
            slot_seconds=settings.slot_seconds,
            model_bytes=settings.model_bytes,
            until=settings.until_seconds,
        )
    simulation = made(
        trainer=trainer,
        rule=rule,
        participation=participation,
        estimator=estimator,
        federation=federation,
        rounds=settings.total_rounds,
        seed=settings.seed,
        memory=memory,
        evaluate_every=settings.evaluation_interval,
        evaluate_early=settings.evaluate_every is None,
        per_client=settings.per_client,
        memory_error=settings.memory_error,
        update_noise=settings.update_noise,
        leave_out=settings.bad_updates == "leave-out",
        resume_from=state,
        keep_records=keep_records,
        coverage=coverage,
        callbacks=[_NoteEngine(), *callbacks] if chooses_later else callbacks,
    )
    _note_engine(simulation)
    if isinstance(trainer, EngineTrainer):
        trainer.attach(simulation.state)
    return simulation


def _check_own_task(settings: Settings) -> None:
    """Refuse settings that say how a data set is shared out for a task that is an object, or has no data at all."""
    for name in ("share", "partition", "partition_options", "swap"):
        given = getattr(settings, name)
        if given != type(settings).model_fields[name].get_default(call_default_factory=True):
            raise fail(name, given, "is for data sets by name: this task has its own data, or none")


def _own_groups(task: Task, participation: who.Participation) -> Ints | None:
    """Who is frequent and who is rare, for a task whose groups nobody chose."""
    if task.groups_given:
        return None
    with suppress(ValueError):  # a schedule without a mean
        return np.minimum(participation.participation_groups(), 1)
    return None


def _note_engine(simulation: Simulation) -> None:
    """Put the engine's name into the state, once it is known: a resumed run must compute as the first did."""
    if isinstance(simulation.trainer, EngineTrainer) and simulation.trainer.engine.resolved_name is not None:
        simulation.state.notes.setdefault(_ENGINE, simulation.trainer.engine.resolved_name)


class _NoteEngine(Callback):
    """For the engine "fastest", which chooses in the first round."""

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Note what it chose."""
        _note_engine(simulation)
