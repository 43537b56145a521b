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

from ..checks import Float, InvalidInput
from ..federation import Federation, Ints
from ..participation import Estimator, EstimatorState
from ..rules import Rule
from ..simulation.build import (
    check_length,
    make_estimator,
    make_local_training,
    make_participation,
    make_rule,
    make_task,
)
from ..simulation.coverage import Coverage
from ..simulation.history import Metrics
from ..simulation.loop import before_round, is_evaluated, p_error
from ..simulation.settings import Settings, make_settings
from ..tasks import Task
from ..training import Evaluation, draw, flatten
from .batched_server import BatchedServer, supports
from .outcome import RunOutcome
from .perceptron import SharedBatchPerceptron

_SHARED_EXCEPT = frozenset(
    {
        "rule",
        "beta",
        "rule_options",
        "lr",
        "server_lr",
        "swap",
        "probabilities",
        "engine",
        "threads",
        "keep_freed_memory",
    }
)
"""Settings in which the runs of a batch may differ."""
_UNDERSTOOD = _SHARED_EXCEPT | {
    *("task", "num_clients", "share", "partition", "partition_options", "weights"),
    *("participation", "p_min", "participation_options", "selection", "selection_options"),
    *("rounds", "seed", "local_steps", "batch_size", "replacement", "weight_decay", "schedule"),
    *("evaluate_every", "objective"),
}
"""Settings that this module honours. Any other, and any that a later version adds, must be at its default."""
_NAMES_ONLY = ("task", "participation", "selection", "probabilities")
_WORKING_SET = 2**20
"""Bytes of the models of one batch: a core's cache holds them with their gradients."""
_WIDEST = 32
_PIECE = 1024
"""Training samples that are evaluated at once."""
_MULTIPLE = 8


def eligible(settings: Settings) -> bool:
    """Whether a run could be part of a batch, as far as its settings say; the model is looked at later."""
    for name, field in type(settings).model_fields.items():
        usual = field.get_default(call_default_factory=True)
        if name not in _UNDERSTOOD and getattr(settings, name) != usual:
            return False
    if any(isinstance(getattr(settings, name), dict) for name in _NAMES_ONLY):
        return False
    try:
        return settings.task != "quadratic" and supports(make_rule(settings))
    except InvalidInput:  # said where the run is made
        return False


def shared(settings: Settings) -> tuple[tuple[str, str], ...]:
    """What the runs of a batch have in common, as a key to group them by."""
    return tuple((name, repr(value)) for name, value in settings.record().items() if name not in _SHARED_EXCEPT)


def width(model: SharedBatchPerceptron) -> int:
    """How many runs a batch holds: a power of two, so many that their models fit the cache."""
    fits = max(1, _WORKING_SET // (4 * model.num_params))
    return int(min(_WIDEST, 2 ** (fits.bit_length() - 1)))


class _OwnServer:
    """The server that a run would have alone, as far as what it sends and keeps is recorded: it is asked, not used."""

    def __init__(self, rule: Rule, federation: Federation, last_seen: Ints) -> None:
        self.rule, self.state = rule, rule.init(federation)
        self._empty = self.state.nbytes
        if rule.memory:  # every row is as large as the first
            self.state.memory.replace([0], np.zeros((1, federation.num_params), dtype=np.float32))
        self._row = self.state.nbytes - self._empty
        self.state.last_seen = last_seen  # of the whole batch: whoever counts a round counts it here

    def num_bytes(self, remembered: int) -> float:
        """Bytes of the server's state with the updates of so many clients."""
        return float(self._empty + remembered * self._row)


class Lockstep:
    """A batch of runs.

    Parameters
    ----------
    runs
        Their settings, which share what `shared` says; at most `width` of them.
    model
        The perceptron of their task.
    """

    def __init__(self, runs: Sequence[Settings], model: SharedBatchPerceptron) -> None:
        self.runs, self.model = list(runs), model
        filled = [*self.runs, *[self.runs[0]] * (-len(self.runs) % _MULTIPLE)]
        first = self.runs[0]
        self.participation = make_participation(first)
        check_length(first, self.participation)
        tasks = {swap: _task(_data_of(first, swap)) for swap in {settings.swap for settings in filled}}
        task = tasks[first.swap]
        self._x = task.train.x.flatten(1)
        self._labels = torch.stack([tasks[settings.swap].train.y for settings in filled])
        self._test_x = task.test.x.flatten(1)
        self._test_labels = torch.stack([tasks[settings.swap].test.y for settings in filled])
        self.local = [make_local_training(settings, task) for settings in filled]
        self.task = task
        self._swapped = [tasks[settings.swap].swapped for settings in self.runs]
        self.federation = Federation(task.num_clients, model.num_params, weights=first.weights, sizes=task.train.sizes)
        rules = [make_rule(settings) for settings in filled]
        self.server = BatchedServer(rules, self.federation.alpha(), model.num_params)
        self._rates = torch.tensor([rule.server_lr for rule in rules], dtype=torch.float32).view(-1, 1)
        self._last_seen = np.full(task.num_clients, -1, dtype=np.int64)
        own = rules[: len(self.runs)]
        self._own = [_OwnServer(rule, self.federation, self._last_seen) for rule in own]
        self._sources = [str(settings.probabilities) for settings in filled]
        self._estimators: dict[str, tuple[Estimator, EstimatorState]] = {}
        for source, settings in zip(self._sources, filled, strict=True):
            if source not in self._estimators:
                estimator = make_estimator(settings, self.participation)
                self._estimators[source] = estimator, estimator.init(task.num_clients)
        start = torch.from_numpy(flatten(task.build(first.seed)))
        self.models = start.repeat(len(filled), 1)
        self._layers = model.empty(len(filled))
        self._room = model.buffers(len(filled), self.local[0].batch_size)
        self._test_room = model.buffers(len(filled), len(self._test_x)).outputs
        counts = task.train.sizes
        self._coverage = Coverage.of(self.participation, self.federation.alpha())
        covered = None if self._coverage is None else self._coverage.alpha
        over = {"objective": self.federation.alpha()} | ({} if covered is None else {"objective_covered": covered})
        self._sample_weights = {
            name: torch.from_numpy(np.repeat(alpha / counts, counts).astype(np.float32)) for name, alpha in over.items()
        }

    def run(self) -> list[RunOutcome]:
        """Run all rounds; a run whose update is not finite ends there, as it does alone."""
        first = self.runs[0]
        rounds, every, early = first.total_rounds, first.evaluation_interval, first.evaluate_every is None
        outcomes = [RunOutcome(settings.record()) for settings in self.runs]
        alive = np.ones(len(self.runs), dtype=np.bool_)
        for t in range(rounds):
            clients, delta = self._round(t)
            good = torch.isfinite(delta).all(1).numpy()[: len(self.runs)]
            for k in np.flatnonzero(alive & ~good):
                outcomes[k].reason, outcomes[k].diverged_in = "diverged", t + 1
            alive &= good
            if not alive.any():
                break
            facts = self._before(t, clients) if is_evaluated(t, every, rounds, early) else None
            self._see(t, clients)
            if facts is not None:
                self._measure(t, facts, delta, outcomes, alive)
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

    def _before(self, t: int, clients: Ints) -> list[Metrics]:
        """Return what `Simulation` records of each run's round before it is counted."""
        everyone = np.arange(self.task.num_clients)
        errors = {
            name: p_error(self.participation, t, estimator.probabilities(state, everyone))
            for name, (estimator, state) in self._estimators.items()
        }
        size = self.models.element_size()
        return [
            before_round(own.rule, own.state, t, clients, size) | {"p_error": errors[source]}
            for own, source in zip(self._own, self._sources[: len(self.runs)], strict=True)
        ]

    def _measure(
        self,
        t: int,
        facts: list[Metrics],
        delta: Tensor,
        outcomes: list[RunOutcome],
        alive: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> None:
        lengths = torch.linalg.vector_norm(delta.double(), dim=1).numpy()
        correct, losses = self._evaluate()
        objectives = self._objectives() if self.runs[0].objective else None
        everyone, tested = np.arange(self.task.num_clients), np.diff(self.task.test.offsets)
        client = np.repeat(everyone, tested)
        seen = int(np.sum(self._last_seen >= 0))
        for k in np.flatnonzero(alive):
            metrics = facts[k] | {"update_norm": float(lengths[k]), "server_bytes": self._own[k].num_bytes(seen)}
            told = {name: float(values[k]) for name, values in self.server.reported.items()}
            metrics |= {name: value for name, value in told.items() if np.isfinite(value)}
            right = np.bincount(client, correct[k], len(tested)).astype(np.float64)
            cost = np.asarray(np.bincount(client, losses[k], len(tested)), dtype=np.float64)
            metrics |= Evaluation(everyone, tested, cost, self.task.groups, {"accuracy": right}).metrics()
            metrics |= self._swapped[k]
            if objectives is not None:
                metrics |= {name: float(values[k]) for name, values in objectives.items()}
            if self._coverage is not None:
                metrics["coverage"] = self._coverage.share
            outcomes[k].rows.append((t, metrics))

    def _evaluate(self) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.bool_]], Float]:
        """Return, for every run and test sample, whether it is classified correctly, and its loss."""
        self.model.unpack(self.models, self._layers)
        logits = self.model.forward(self._layers, self._test_x, self._test_room)
        losses = functional.cross_entropy(logits, self._test_labels, reduction="none")
        return (logits.argmax(1) == self._test_labels).numpy(), losses.numpy()

    def _objectives(self) -> dict[str, Float]:
        """Σ α_i F_i over all training samples, in pieces that stay in the cache, for every run."""
        total = {name: np.zeros(len(self.models)) for name in self._sample_weights}
        for start in range(0, len(self._x), _PIECE):
            piece = slice(start, start + _PIECE)
            x = self._x[piece]
            logits = self.model.forward(self._layers, x, self.model.buffers(len(self.models), len(x)).outputs)
            losses = functional.cross_entropy(logits, self._labels[:, piece], reduction="none")
            for name, weights in self._sample_weights.items():
                total[name] += (losses @ weights[piece]).double().numpy()
        return total


def _data_of(settings: Settings, swap: float) -> str:
    """Return the settings that decide a task's data, so that runs which share it are recognised."""
    names = ("task", "num_clients", "share", "partition", "partition_options", "seed")
    who = ("participation", "participation_options", "p_min", "selection", "selection_options")
    record = settings.record()
    if settings.participation == "two-groups":  # only the groups matter, and they are the same for every p_min
        record["p_min"] = 0.5
    return json.dumps({name: record[name] for name in (*names, *who)} | {"swap": swap, "rounds": 1})


@lru_cache(maxsize=8)
def _task(data: str) -> Task:
    """Make a task; the last few are kept, because the next batches often want them again."""
    settings = make_settings(**json.loads(data))
    task = make_task(settings, make_participation(settings), progress=False)
    if not isinstance(task, Task):
        raise TypeError(f"{settings.task} has no data to train on")
    return task
