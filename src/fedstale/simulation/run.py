"""One call for one run: `simulate(task, rule, participation, …)`, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..analysis import TAIL, diverged_text, tail
from ..analysis.axes import ROUND, curve_over
from ..analysis.metrics import check_metric, main_metric, metric_text
from ..buffers import global_buffers
from ..checks import Float, InvalidInput, counted
from ..federation import Ints
from ..interrupts import postponed
from ..participation import Estimator, Participation, Process
from ..rules import Rule
from ..spreadsheet import data_frame, number_cell, write_table
from ..state import State
from ..tasks.quadratic import Quadratic
from .build import build
from .history import Rounds, RoundsInStore
from .interfaces import Callback
from .loop import Simulation
from .options import RunOptions, with_options
from .progress import round_progress
from .settings import DEFAULT_TASK, Settings, make_settings
from .stored import begin_run, continue_run, objects_to_pass

if TYPE_CHECKING:
    from torch import nn

    from ..store import Store
    from ..tasks import Task


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run.

    Attributes
    ----------
    label
        What the run is called in tables.
    reason
        How it ended: "finished", "stopped" (by a callback) or "diverged" (an update was not finite).
    rounds_planned
        How many rounds it was to have.
    diverged_in
        The round in which it diverged, counted from 1; None for a run that did not.
    rounds
        What the rounds were: in RAM, or of a run that is kept in a store, read from there when asked for.
    state
        The server's state at the end: model, memory, estimator.
    make_model
        Makes the untrained torch model, where there is one.
    """

    label: str
    reason: str
    rounds_planned: int
    diverged_in: int | None
    rounds: Rounds
    state: State
    make_model: Callable[[], nn.Module] | None = None

    def __repr__(self) -> str:
        """One line: method, how it ended, and what it is judged by."""
        how = self.reason if self.diverged_in is None else diverged_text([self.diverged_in])
        text = f"{self.label}: {how}, {self.state.round} of {counted(self.rounds_planned, 'round')}"
        metric = main_metric(self.metrics)
        if metric is not None and self.diverged_in is None:
            text += f", {metric} {metric_text(metric, self.final(metric))}"
        return f"<Result {text}>"

    @cached_property
    def metrics(self) -> dict[str, Float]:
        """One array per metric, one entry per round, NaN where it was not measured."""
        return self.rounds.metrics

    @property
    def participants(self) -> Sequence[Ints]:
        """Who came in each round."""
        return self.rounds.participants

    @property
    def per_client(self) -> tuple[Ints, Float] | None:
        """(rounds, accuracy of each client at them), where asked for."""
        return self.rounds.per_client

    @property
    def model(self) -> Any:
        """w_T, shape (d,)."""
        return self.state.model

    def model_state(self) -> dict[str, Any]:
        """The trained model as torch's `state_dict`, for `load_state_dict` of the same model, buffers included."""
        from ..training.layout import unflatten, write_buffers

        if self.make_model is None:
            raise InvalidInput("this run has no torch model: Result.model is its vector of parameters")
        module = self.make_model()
        unflatten(module, self.model)
        write_buffers(module, global_buffers(self.state))
        return module.state_dict()

    def final(self, metric: str = "accuracy") -> float:
        """The last measured value of a metric; NaN where this run has none, an error for a name that no run has.

        Of a run that diverged it is the last one before that (see `diverged_in`): where it stood, not what it reached.
        What runs are compared by is `tail`.
        """
        values = self.series(metric)[1]
        measured = values[~np.isnan(values)]
        return float(measured[-1]) if measured.size else float("nan")

    def tail(self, metric: str = "accuracy", share: float = TAIL) -> float:
        """The mean over the evaluations in the last `share` of the rounds; NaN for a run that diverged.

        A run that was stopped early is judged by the rounds it has: see `fedstale.analysis.tail`.
        """
        rounds, values = self.series(metric)
        done, planned = len(values), self.rounds_planned
        return tail(rounds, values, planned=planned, done=done, diverged_in=self.diverged_in, share=share)

    def series(self, metric: str) -> tuple[Ints, Float]:
        """A metric over the rounds: their indices, from 0, and its values."""
        if metric not in self.metrics:
            check_metric(metric, self.metrics)
        values = self.metrics.get(metric, np.array([]))
        return np.arange(len(values)), values

    def plot(self, metric: str | None = None, ax: Any = None, *, x: str = ROUND) -> Any:
        """Draw a metric over the rounds or another axis with Matplotlib, and return the axes.

        Parameters
        ----------
        metric
            Its name; default: the test accuracy, or the excess loss of a quadratic.
        ax
            The axes to draw on; default: new ones.
        x
            "round", "bytes" (sent both ways), "seconds" (of computing) or "virtual_seconds" (of a simulation's clock).
        """
        from ..plots import plot_curves

        metric = metric or main_metric(self.metrics) or "accuracy"
        return plot_curves({self.label: curve_over([self], metric, x)}, metric, ax, x)

    def to_pandas(self) -> Any:
        """The metrics as a pandas DataFrame, one row per round (from 0), NaN where not measured."""
        rounds = np.arange(len(next(iter(self.metrics.values()), ())))
        return data_frame({"round": rounds, **self.metrics}, index="round")

    def to_csv(self, path: str | Path) -> None:
        """Write one line per round."""
        rows = enumerate(zip(*self.metrics.values(), strict=True))
        write_table(Path(path), ["round", *self.metrics], ([t, *map(number_cell, row)] for t, row in rows))


def result(simulation: Simulation, reason: str, label: str, rounds: Rounds | None = None) -> Result:
    """Collect what a simulation left; `rounds` says where its rounds are, if not in RAM."""
    return Result(
        label=label,
        reason=reason,
        rounds_planned=simulation.rounds,
        diverged_in=simulation.state.round + 1 if reason == "diverged" else None,
        rounds=simulation.records if rounds is None else rounds,
        state=simulation.state,
        make_model=getattr(simulation.trainer, "make_model", None),
    )


@with_options
def simulate(
    task: str | Task | Quadratic = DEFAULT_TASK,
    rule: str | Rule | None = None,
    participation: str | Process | Participation | None = None,
    *,
    store: str | Path | Store | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Simulate a federation and return its metrics, model and memory.

    Parameters
    ----------
    task
        The name of a task, a `fedstale.tasks.Task` or a `Quadratic`.
    rule
        The name of a rule, or a rule; default: "tempered", and "fedstale" where only `beta` is given.
    participation
        Who shows up, by name or as a process; default: half of the clients always, the others with probability `p_min`.
    store
        Store the run, with checkpoints: a folder, or an open `Store`.
    callbacks
        Called at the start, after every round and at the end.
    progress
        Whether to show a progress bar; default: in a notebook and in a terminal.
    **options
        Any field of `Settings`: beta, p_min, swap, rounds, seed, lr, engine, probabilities, memory, … Fields that take
        a name (selection, probabilities) also take an object.

    Examples
    --------
    >>> import fedstale as fs
    >>> run = fs.simulate("digits", rule="fedstale", beta="auto", p_min=0.5, rounds=20, seed=0)
    >>> run.final("accuracy") > 0.5
    True
    """
    named: dict[str, Any] = {"task": task, "rule": rule, **options}
    if participation is not None:
        named["participation"] = participation
    settings = make_settings(**named)
    given = {name: named.get(name) for name in settings.unwritten}
    watchers = [*callbacks, *round_progress(settings, progress)]
    if store is None:
        simulation = build(settings, callbacks=watchers, progress=False, **objects_to_pass(settings, **given))
        return result(simulation, simulation.run(), settings.label)
    return _stored(settings, given, store, watchers)


def _stored(
    settings: Settings, given: dict[str, Any], store: str | Path | Store, callbacks: Sequence[Callback]
) -> Result:
    from ..store import Store

    if not isinstance(store, Store):
        with Store.open(Path(store)) as opened:
            return _stored(settings, given, opened, callbacks)
    with postponed("round"):
        stored_run, simulation = begin_run(store, settings, callbacks=callbacks, **given)
        return result(simulation, simulation.run(), settings.label, RoundsInStore(store.folder, stored_run.id))


def resume(
    run: str,
    *,
    store: str | Path | Store | None = None,
    task: Task | Quadratic | None = None,
    rule: Rule | None = None,
    participation: Process | Participation | None = None,
    probabilities: Estimator | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_every: int = 10,
    from_checkpoint: bool = False,
    workers: int | None = None,
    ray_address: str | None = None,
) -> Result:
    """Resume a stored run from its last checkpoint, and return the whole run.

    Parameters
    ----------
    run
        Its id, or the last characters of it.
    store
        The store (a folder, or an open `Store`); default: FEDSTALE_STORE or ./fedstale-runs.
    task, rule, participation, probabilities
        Objects that the store could not save when the run started (a task with your own data, a rule of your own class,
        a function); an error names those that are missing. An object that does not match the stored run is refused.
    callbacks
        Called at the start, after every round and at the end.
    checkpoint_every
        Rounds between checkpoints.
    from_checkpoint
        Resume even if the store is an older copy that lacks the last rounds before the checkpoint; a warning names the
        rounds without metrics.
    workers, ray_address
        Of a run of the engine "ray", where its cluster is another one now; default: as before.
    """
    from ..store import Store

    where = {"workers": workers, "ray_address": ray_address}
    given: dict[str, Any] = {
        "task": task,
        "rule": rule,
        "participation": participation,
        "probabilities": probabilities,
        "callbacks": callbacks,
        "checkpoint_every": checkpoint_every,
        "from_checkpoint": from_checkpoint,
    }
    if not isinstance(store, Store):
        with Store.open(None if store is None else Path(store), create=False) as opened:
            return resume(run, store=opened, **given, **where)  # type: ignore[arg-type]
    with postponed("round"):
        stored_run, simulation = continue_run(store, run, where=where, **given)
        return result(
            simulation,
            simulation.run(),
            stored_run.info().name or stored_run.id,
            RoundsInStore(store.folder, stored_run.id),
        )
