"""One call for one run: `simulate(task, rule, participation, …)`, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import TAIL, tail
from ..checks import Float, InvalidInput
from ..federation import Ints
from ..interrupts import postponed
from ..participation import Participation, Process
from ..rules import Guarded, Rule
from ..spreadsheet import CsvWriter
from ..state import State
from ..tasks.quadratic import Quadratic
from .build import build
from .callbacks import StoreRun
from .history import Rounds, Stored
from .loop import Callback, Simulation
from .settings import Settings, settings

if TYPE_CHECKING:
    from ..store import Store
    from ..tasks import Task


@dataclass(frozen=True, eq=False)
class Result:
    """What a run left.

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
    """

    label: str
    reason: str
    rounds_planned: int
    diverged_in: int | None
    rounds: Rounds
    state: State

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

    def final(self, metric: str = "accuracy") -> float:
        """The last measured value of a metric; NaN when there is none.

        Of a run that diverged it is the last one before that (see `diverged_in`): where it stood, not what it reached.
        What runs are compared by is `tail`.
        """
        values = self.metrics.get(metric, np.array([]))
        measured = values[~np.isnan(values)]
        return float(measured[-1]) if measured.size else float("nan")

    def tail(self, metric: str = "accuracy", share: float = TAIL) -> float:
        """The mean over the evaluations in the last `share` of the rounds; NaN for a run that diverged.

        A run that was stopped early is judged by the rounds it has: see `fedstale.analysis.tail`.
        """
        values = self.metrics.get(metric, np.array([]))
        done, planned = len(values), self.rounds_planned
        return tail(np.arange(done), values, planned=planned, done=done, diverged_in=self.diverged_in, share=share)

    def to_csv(self, path: str | Path) -> None:
        """Write one line per round."""
        from ..durable import replacing

        with replacing(Path(path)) as whole, open(whole, "w", newline="", encoding="utf-8") as file:
            writer = CsvWriter(file)
            writer.writerow(["round", *self.metrics])
            for t, row in enumerate(zip(*self.metrics.values(), strict=True)):
                writer.writerow([t, *("" if np.isnan(value) else repr(float(value)) for value in row)])


def result(simulation: Simulation, reason: str, label: str, rounds: Rounds | None = None) -> Result:
    """Collect what a simulation left; `rounds` says where its rounds are, if not in RAM."""
    return Result(
        label=label,
        reason=reason,
        rounds_planned=simulation.rounds,
        diverged_in=simulation.state.round + 1 if reason == "diverged" else None,
        rounds=simulation.records if rounds is None else rounds,
        state=simulation.state,
    )


def simulate(
    task: str | Task | Quadratic = "digits-mlp",
    rule: str | Rule = "fedstale",
    participation: Process | Participation | None = None,
    *,
    store: str | Path | Store | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Result:
    """Simulate a federation and return its metrics, model and memory.

    Parameters
    ----------
    task
        A name, a `fedstale.tasks.Task` of one's own, or a `Quadratic`.
    rule
        A name or a rule.
    participation
        Who shows up; default: half of the clients always, the others with probability `p_min`.
    store
        Keep the run in a store (a folder, or an open `Store`), with checkpoints.
    callbacks
        What happens beside the mathematics.
    **options
        Any of `Settings`: beta, p_min, swap, rounds, seed, lr, engine, probabilities, memory, …

    Examples
    --------
    >>> import fedstale as fs
    >>> run = fs.simulate("digits", rule="fedstale", beta="auto", p_min=0.5, rounds=20, seed=0)
    >>> run.final("accuracy") > 0.5
    True
    """
    named: dict[str, Any] = dict(options)
    if isinstance(task, str):
        named["task"] = task
    else:
        named |= {"task": getattr(task, "name", "quadratic"), "num_clients": task.num_clients}
    named |= {"rule": rule} if isinstance(rule, str) else recorded(rule)
    chosen_participation = None
    if participation is not None:
        chosen_participation = Participation.of(participation)
        named.setdefault("num_clients", chosen_participation.num_clients)
        named.setdefault("p_min", float(max(chosen_participation.probabilities().min(), 1e-9)))
        if "rounds" not in named:
            named["rounds"] = settings(p_min=named["p_min"]).total_rounds
    chosen = settings(**named)
    given = {
        "task": None if isinstance(task, str) else task,
        "participation": chosen_participation,
        "rule": None if isinstance(rule, str) else rule,
    }
    label = chosen.label if isinstance(rule, str) else describe(rule)
    if store is None:
        simulation = build(chosen, callbacks=callbacks, progress=False, **given)  # type: ignore[arg-type]
        return result(simulation, simulation.run(), label)
    return _stored(chosen, given, label, store, callbacks)


def _stored(
    chosen: Settings, given: dict[str, Any], label: str, store: str | Path | Store, callbacks: Sequence[Callback]
) -> Result:
    from ..store import Store

    if not isinstance(store, Store):
        with Store.open(Path(store)) as opened:
            return _stored(chosen, given, label, opened, callbacks)
    with postponed("round") as interrupt:
        run = store.start(chosen.record(), name=label, rounds_total=chosen.total_rounds)
        try:
            with interrupt.heard():  # fetching data may take long, and nothing is begun
                mine = [StoreRun(run), *callbacks]
                simulation = build(chosen, callbacks=mine, folder=run.folder, progress=False, keep=False, **given)
        except (InvalidInput, KeyboardInterrupt):
            run.release()
            store.delete(run.id)
            raise
        return result(simulation, simulation.run(), label, Stored(store.folder, run.id))


def recorded(rule: Rule) -> dict[str, Any]:
    """A rule as settings, for the store: its name and those of its numbers and names that are not at their defaults."""
    if isinstance(rule, Guarded):
        return {**recorded(rule.rule), "clip_norm": rule.clip_norm, "max_weight": rule.max_weight}
    found: dict[str, Any] = {}
    for one in (getattr(rule, "rule", None), rule):  # a server optimiser has a rule inside, whose η_s is not used
        for field in fields(one) if isinstance(one, Rule) else ():
            value = getattr(one, field.name)
            if isinstance(value, (bool, int, float, str)) and value != field.default:
                found[field.name] = value
        if one is not rule:
            found.pop("server_lr", None)
    own: dict[str, Any] = {name: found.pop(name) for name in ("beta", "server_lr") if name in found}
    return {"rule": rule.name, **own, "rule_options": found}


def describe(rule: Rule) -> str:
    """A rule's name with the β it was given."""
    beta = getattr(rule.rule if isinstance(rule, Guarded) else rule, "beta", None)
    return rule.name if beta is None or rule.name != "fedstale" else f"{rule.name} β={beta}"
