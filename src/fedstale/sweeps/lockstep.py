"""Runs in lock-step: Algorithm 1 once for up to `width` runs that share their participants and their batches.

Runs that differ only in rule, β, learning rate, server rate, label swap or the source of the p_i draw the same
participants and the same batches, because randomness is a function of (seed, round, client). They advance together:
one draw, one program of matrix products, one server (`BatchedServer`) per round for all of them.

A run's numbers do not depend on who else is in its batch, so that a sweep that was killed ends with the results of one
that was not: rows of a matrix product are computed alike wherever they stand, for shapes that are filled up to a
multiple of eight runs (the tests look at the bits).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..checks import Float
from ..federation import Federation, Ints
from ..participation import Estimator, EstimatorState
from ..simulation.build import make_estimator, make_participation, make_rule, make_task
from ..simulation.settings import Settings, settings
from ..tasks import Task
from ..training.batches import draw
from ..training.local import LocalTraining
from .dense import Dense
from .outcome import Outcome
from .server import BatchedServer, supports

SHARED_EXCEPT = frozenset({"rule", "beta", "lr", "server_lr", "swap", "probabilities", "engine", "threads"})
"""Settings in which the runs of a batch may differ."""
UNDERSTOOD = SHARED_EXCEPT | {
    *("task", "num_clients", "share", "partition", "partition_options", "weights"),
    *("participation", "p_min", "participation_options", "selection", "selection_options"),
    *("rounds", "seed", "local_steps", "batch_size", "replacement", "weight_decay", "schedule", "evaluate_every"),
}
"""Settings that this module honours. Any other, and any that a later version adds, must be at its default."""
_NAMES_ONLY = ("task", "rule", "beta", "participation", "selection", "probabilities")
_WORKING_SET = 2**20
"""Bytes of the models of one batch: a core's cache holds them with their gradients."""
_WIDEST = 32
_MULTIPLE = 8


def eligible(chosen: Settings) -> bool:
    """Whether a run could be part of a batch, as far as its settings say; the model is looked at later."""
    for name, field in type(chosen).model_fields.items():
        usual = field.get_default(call_default_factory=True)
        if name not in UNDERSTOOD and getattr(chosen, name) != usual:
            return False
    if any(isinstance(getattr(chosen, name), dict) for name in _NAMES_ONLY):
        return False
    return chosen.task != "quadratic" and supports(chosen.rule, chosen.beta)


def shared(chosen: Settings) -> tuple[tuple[str, str], ...]:
    """What the runs of a batch have in common, as a key to group them by."""
    return tuple((name, repr(value)) for name, value in chosen.record().items() if name not in SHARED_EXCEPT)


def width(model: Dense) -> int:
    """How many runs a batch holds: a power of two, so many that their models fit the cache."""
    fits = max(1, _WORKING_SET // (4 * model.num_params))
    return int(min(_WIDEST, 2 ** (fits.bit_length() - 1)))


class Lockstep:
    """A batch of runs.

    Parameters
    ----------
    runs
        Their settings, which share what `shared` says; at most `width` of them.
    model
        The perceptron of their task.
    """

    def __init__(self, runs: Sequence[Settings], model: Dense) -> None:
        self.runs, self.model = list(runs), model
        filled = [*self.runs, *[self.runs[0]] * (-len(self.runs) % _MULTIPLE)]
        first = self.runs[0]
        self.participation = make_participation(first)
        tasks = {swap: _task(_data_of(first, swap)) for swap in {one.swap for one in filled}}
        task = tasks[first.swap]
        self._x = task.train.x.flatten(1)
        self._labels = torch.stack([tasks[one.swap].train.y for one in filled])
        self._test_x = task.test.x.flatten(1)
        self._test_labels = torch.stack([tasks[one.swap].test.y for one in filled])
        self.local = [_local(one, task) for one in filled]
        self.task = task
        self._swapped = [tasks[one.swap].swapped for one in self.runs]
        self.federation = Federation(task.num_clients, model.num_params, weights=first.weights, sizes=task.train.sizes)
        self.server = BatchedServer(
            [one.rule for one in filled], [one.beta for one in filled], self.federation.alpha(), model.num_params
        )
        self._rates = torch.tensor([make_rule(one).server_lr for one in filled], dtype=torch.float32).view(-1, 1)
        self._sources = [str(one.probabilities) for one in filled]
        self._estimators: dict[str, tuple[Estimator, EstimatorState]] = {}
        for source, one in zip(self._sources, filled, strict=True):
            if source not in self._estimators:
                estimator = make_estimator(one, self.participation)
                self._estimators[source] = estimator, estimator.init(task.num_clients)
        start = torch.from_numpy(_initial(task, first.seed))
        self.models = start.repeat(len(filled), 1)
        self._layers = model.empty(len(filled))
        self._room = model.buffers(len(filled), self.local[0].batch_size)
        self._test_room = model.buffers(len(filled), len(self._test_x)).outputs
        self._last_seen = np.full(task.num_clients, -1, dtype=np.int64)

    def run(self) -> list[Outcome]:
        """Run all rounds; a run whose update is not finite ends there, as it does alone."""
        first = self.runs[0]
        rounds, every = first.total_rounds, first.evaluation_interval
        outcomes = [Outcome(one.record()) for one in self.runs]
        alive = np.ones(len(self.runs), dtype=np.bool_)
        for t in range(rounds):
            clients, delta = self._round(t)
            good = torch.isfinite(delta).all(1).numpy()[: len(self.runs)]
            for k in np.flatnonzero(alive & ~good):
                outcomes[k].reason, outcomes[k].diverged_in = "diverged", t + 1
            alive &= good
            if not alive.any():
                break
            evaluated = (t + 1) % every == 0 or t + 1 == rounds
            common = self._common(t, clients) if evaluated else {}
            errors = self._p_errors(t) if evaluated else {}
            self._see(t, clients)
            if evaluated:
                self._measure(t, common, errors, delta, outcomes, alive)
        return outcomes

    def _round(self, t: int) -> tuple[Ints, Tensor]:
        clients = self.participation.participants(self.runs[0].seed, t, self._last_seen)
        now = {name: estimator.probabilities(state, clients) for name, (estimator, state) in self._estimators.items()}
        p = np.array([now[name] for name in self._sources]).reshape(len(self._sources), len(clients))
        delta = self.server.combine(t, clients, self._train(clients, t), p)
        self.models.addcmul_(delta, self._rates, value=-1.0)
        return clients, delta

    def _train(self, clients: Ints, t: int) -> list[Tensor]:
        if not len(clients):
            return []
        batches = draw(self.local[0], self.task.train.offsets, clients, t, self.runs[0].seed)
        rates = torch.tensor([local.rate(t) for local in self.local], dtype=torch.float32).view(-1, 1, 1)
        decay = self.local[0].weight_decay
        shrink = 1.0 - rates * decay if decay else None
        rates = rates / batches.rows.shape[2]
        updates = []
        for rows in torch.from_numpy(batches.rows):
            self.model.unpack(self.models, self._layers)
            steps, size = rows.shape
            x = self._x.index_select(0, rows.flatten()).view(steps, size, -1)
            y = self._labels.index_select(1, rows.flatten()).view(-1, steps, 1, size)
            for k in range(steps):
                self.model.step(self._layers, x[k], y[:, k], rates, shrink, self._room)
            update = self.server.room()
            self.model.differences(self.models, self._layers, update)
            updates.append(update)
        return updates

    def _see(self, t: int, clients: Ints) -> None:
        self._last_seen[clients] = t
        for estimator, state in self._estimators.values():
            estimator.observe(state, clients, t)

    def _common(self, t: int, clients: Ints) -> dict[str, float]:
        """Return what `Simulation` records of a round before it happens, the same for all runs."""
        age = t - self._last_seen[self._last_seen >= 0]
        sent = float(len(clients) * self.model.num_params * 4)
        return {
            "participants": float(len(clients)),
            "staleness_mean": float(age.mean()) if age.size else 0.0,
            "staleness_max": float(age.max(initial=0)),
            "bytes_up": sent,
            "bytes_down": sent,
        }

    def _p_errors(self, t: int) -> dict[str, float]:
        try:
            true = self.participation.known(t)
        except ValueError:  # a selection whose probabilities have no closed form
            return dict.fromkeys(self._estimators, float("nan"))
        everyone = np.arange(self.task.num_clients)
        return {
            name: float(np.sqrt(np.mean((estimator.probabilities(state, everyone) - true) ** 2)))
            for name, (estimator, state) in self._estimators.items()
        }

    def _measure(
        self,
        t: int,
        common: dict[str, float],
        errors: dict[str, float],
        delta: Tensor,
        outcomes: list[Outcome],
        alive: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> None:
        lengths = torch.linalg.vector_norm(delta.double(), dim=1).numpy()
        correct, losses = self._evaluate()
        bounds = self.task.test.offsets
        owner = np.repeat(self.task.groups, np.diff(bounds))
        groups = np.unique(self.task.groups)
        for k in np.flatnonzero(alive):
            metrics = {**common, "update_norm": float(lengths[k])}
            if np.isfinite(self.server.reported[k]):
                metrics["beta"] = float(self.server.reported[k])
            metrics["p_error"] = errors[self._sources[k]]
            metrics["accuracy"] = float(correct[k].mean())
            metrics["test_loss"] = float(losses[k].mean(dtype=np.float64))
            for group in groups:
                here = correct[k][owner == group]
                metrics[f"accuracy_group{group}"] = float(here.mean()) if here.size else float("nan")
            outcomes[k].rows.append((t, metrics | self._swapped[k]))

    def _evaluate(self) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.bool_]], Float]:
        """Return, for every run and test sample, whether it is classified correctly, and its loss."""
        self.model.unpack(self.models, self._layers)
        logits = self.model.forward(self._layers, self._test_x, self._test_room)
        losses = functional.cross_entropy(logits, self._test_labels, reduction="none")
        return (logits.argmax(1) == self._test_labels).numpy(), losses.numpy()


def _data_of(chosen: Settings, swap: float) -> str:
    """Return the settings that decide a task's data, so that runs which share it are recognised."""
    names = ("task", "num_clients", "share", "partition", "partition_options", "seed")
    who = ("participation", "participation_options", "p_min", "selection", "selection_options")
    record = chosen.record()
    if chosen.participation == "two-groups":  # only the groups matter, and they are the same for every p_min
        record["p_min"] = 0.5
    return json.dumps({name: record[name] for name in (*names, *who)} | {"swap": swap, "rounds": 1})


@lru_cache(maxsize=8)
def _task(data: str) -> Task:
    """Make a task; the last few are kept, because the next batches often want them again."""
    chosen = settings(**json.loads(data))
    task = make_task(chosen, make_participation(chosen), progress=False)
    if not isinstance(task, Task):
        raise TypeError(f"{chosen.task} has no data to train on")
    return task


def _local(chosen: Settings, task: Task) -> LocalTraining:
    options = {} if chosen.replacement is None else {"replacement": chosen.replacement}
    return LocalTraining(
        lr=chosen.lr or task.default_lr,
        steps=chosen.local_steps or task.local_steps,
        batch_size=chosen.batch_size or task.batch_size,
        weight_decay=chosen.weight_decay,
        schedule=chosen.schedule,
        **options,
    )


def _initial(task: Task, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    from ..training import flatten

    return flatten(task.build(seed))
