"""`fedstale run` and `fedstale resume`: one run, kept in the store, that survives being killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import InvalidInput, counted
from ..interrupts import postponed
from ..simulation.settings import DEFAULT_TASK, WHERE, Settings, make_settings
from ..simulation.settings_file import from_toml, to_toml
from . import complete
from .options import Json, Patience, Quiet, StorePath, Target, print_json, say, task_of, with_settings

if TYPE_CHECKING:
    from ..store import Run, RunInfo, Store


@with_settings("task")
def run(
    target: Target = DEFAULT_TASK,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run with these settings, if there is one.")
    ] = False,
    store: StorePath = None,
    patience: Patience = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    save_config: Annotated[Path | None, typer.Option(help="Write the settings to this TOML file and exit.")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="Folder for TensorBoard events.")] = None,
    mlflow: Annotated[str | None, typer.Option(help="MLflow tracking URI, such as sqlite:///mlflow.db.")] = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Simulate one federation and store the run.

    TARGET is a task (digits-mlp, mnist-cnn, …) or a TOML file of settings.
    """
    from_file = target.endswith(".toml")
    settings = from_toml(Path(target), **changes) if from_file else make_settings(task=task_of(target), **changes)
    if save_config is not None:
        save_config.write_text(to_toml(settings), encoding="utf-8")
        if json:
            print_json({"settings": str(save_config)})
        else:
            say(f"settings written to {save_config}; use them with fedstale run {save_config}")
        return
    from ..store import Store

    with Store.open(store, patience=patience) as opened, postponed("round"):
        begun = _begun(opened, settings) if resume else None
        if begun is not None and begun.info().ended:
            if json:
                _print_result(begun, as_json=True)
            else:
                say(f"run {begun.id} with these settings {_ended(begun.info())}; see fedstale runs show {begun.id}")
            return
        trackers = {"tensorboard": tensorboard, "mlflow": mlflow}
        if begun is None:
            stored_run = _start_or_resume(
                opened, settings, every=checkpoint_every, quiet=quiet or json, name=name, trackers=trackers
            )
        else:
            options: Any = {"every": checkpoint_every, "quiet": quiet or json, "trackers": trackers}
            where = {name: getattr(settings, name) for name in WHERE}
            stored_run = _start_or_resume(opened, settings, which=begun.id, where=where, **options)
        _print_result(opened.run(stored_run.id), as_json=json)


def resume(
    which: Annotated[str | None, typer.Argument(autocompletion=complete.runs)] = None,
    store: StorePath = None,
    patience: Patience = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    from_checkpoint: Annotated[
        bool, typer.Option("--from-checkpoint", help="Resume even if the store lacks metrics of the last rounds.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Actors of engine ray; default: as before.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Ray cluster of engine ray; default: as before.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Resume an interrupted run; the result is bit for bit that of an uninterrupted one (on Ray: to rounding).

    WHICH is its id, the beginning or end of it, or its name; by default the last run that was interrupted.
    """
    from ..store import Store

    with Store.open(store, create=False, patience=patience) as opened, postponed("round"):
        if which is None:
            waiting = opened.runs(status="interrupted") + opened.runs(status="failed")
            if not waiting:
                raise InvalidInput("there is no interrupted run; see fedstale runs list")
            which = max(waiting, key=lambda info: info.updated).id
        info = opened.run(which).info()
        if info.ended:
            if json:
                _print_result(opened.run(info.id), as_json=True)
            else:
                say(f"run {info.id} {_ended(info)}; see fedstale runs show {info.id}")
            return
        options: Any = {"every": checkpoint_every, "quiet": quiet or json, "from_checkpoint": from_checkpoint}
        where = {"workers": workers, "ray_address": ray_address}
        _start_or_resume(opened, make_settings(**info.config), which=info.id, where=where, **options)
        _print_result(opened.run(info.id), as_json=json)


def _begun(store: Store, settings: Settings) -> Run | None:
    """The run of these settings, in whatever words; one with a part that was not written is nobody else's."""
    from ..simulation.identity import same_runs

    # Who goes on with a running one is told by whom.
    statuses = ("running", "interrupted", "failed", "finished", "diverged")
    found = next(same_runs(store, settings, statuses), None)
    return None if found is None else store.run(found.id)


def _start_or_resume(
    store: Store,
    settings: Settings,
    *,
    which: str | None = None,
    where: dict[str, Any] | None = None,
    every: int,
    quiet: bool,
    name: str | None = None,
    from_checkpoint: bool = False,
    trackers: dict[str, str | None] | None = None,
) -> Run:
    """Begin a run, or go on with one, and run it to the end."""
    from ..simulation import MLflow, TensorBoard
    from ..simulation.coverage import groups_of
    from ..simulation.progress import RoundProgress
    from ..simulation.stored import begin_run, continue_run

    callbacks: list[Any] = []
    if trackers and trackers["tensorboard"]:
        callbacks.append(TensorBoard(trackers["tensorboard"]))
    if trackers and trackers["mlflow"]:
        callbacks.append(MLflow(trackers["mlflow"], params=settings.record()))
    if not quiet:
        callbacks.append(RoundProgress(settings.label, settings.total_rounds))
    options: dict[str, Any] = {"checkpoint_every": every, "callbacks": callbacks, "progress": not quiet}
    if which is None:
        stored_run, simulation = begin_run(store, settings, name=name, **options)
    else:
        stored_run, simulation = continue_run(store, which, where=where, from_checkpoint=from_checkpoint, **options)
    if not quiet:
        verb = "started" if which is None else f"resumed at round {simulation.state.round}"
        what = (
            f"{settings.task_name}, {settings.label}, {counted(settings.total_rounds, 'round')}, seed {settings.seed}"
        )
        say(f"run {stored_run.id} {verb}: {what}")
        if settings.participation != "two-groups" or settings.quantiles:
            say(groups_of(simulation.participation, settings.quantiles))
    try:
        simulation.run()
        engine = getattr(getattr(simulation.trainer, "engine", None), "resolved_name", None)
        if engine and settings.engine == "fastest" and not quiet:
            say(f"engine: fastest chose {engine}")
    except KeyboardInterrupt:
        done = f"interrupted after round {simulation.state.round} of {settings.total_rounds}"
        say(f"\n{done}; resume with: fedstale resume {stored_run.id}", err=True)
        raise
    finally:
        simulation.state.close()
    return stored_run


_DIVERGED = "An update was not finite; try a smaller --lr, or --clip-norm."


def _ended(info: RunInfo) -> str:
    return "is finished" if info.diverged_in is None else info.reason


def _print_result(stored_run: Run, *, as_json: bool) -> None:
    info = stored_run.info()
    if as_json:
        ended = {"status": info.status, "reason": info.reason, "diverged_in": info.diverged_in}
        print_json({"id": info.id, **ended, "rounds": info.rounds_done, **info.summary})
        return
    if info.diverged_in is not None:
        say(f"run {info.id} {info.reason} of {info.rounds_total}: it has no result. {_DIVERGED}")
        return
    shown = ("accuracy", "accuracy_worst_decile", "test_loss", "test_loss_worst_decile", "excess_loss", "beta")
    words = {name: "worst tenth of the clients" for name in shown if name.endswith("_worst_decile")}
    parts = [f"{words.get(key, key)} {info.summary[key]:.4g}" for key in shown if key in info.summary]
    note = f" ({info.message})" if info.message else ""
    say(f"run {info.id} {info.status}{note} after {counted(info.rounds_done, 'round')}: {', '.join(parts)}")
