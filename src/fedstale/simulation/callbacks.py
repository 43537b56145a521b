"""Callbacks: storing, checkpoints, early stopping, trackers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import Float, InvalidInput, positive_int
from ..extras import missing
from ..participation import KnownProbabilities
from .history import Record
from .interfaces import Callback
from .loop import Simulation

if TYPE_CHECKING:
    from ..store import Run


MOST_CLIENTS = 10_000
"""Beyond so many clients nothing but their accuracies is stored of each: every evaluation would add a megabyte."""


@dataclass
class StoreRun(Callback):
    """Keep a run in the store: metrics every round, a checkpoint every `every` rounds and at the end.

    Metrics are committed before the checkpoint that covers them, so a run killed at any moment finds, on resume,
    metrics for at least the rounds its checkpoint has; `resume` drops the rest. What is saved is always a whole round:
    where an interrupt cut one short, the last checkpoint stays.
    """

    run: Run
    every: int = 10
    _recorded: int = field(default=-1, init=False, repr=False)  # the round that the store and this process agree on
    _saved: int = field(default=0, init=False, repr=False)  # rounds that the last checkpoint has

    def __post_init__(self) -> None:
        positive_int("checkpoint_every", self.every)

    def on_start(self, simulation: Simulation) -> None:
        """Note where the run stands."""
        self._recorded = self._saved = simulation.state.round

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Record, and save when it is time."""
        clients = {} if record.per_client is None else {"accuracy": record.per_client}
        if "p_error" in record.metrics:
            clients |= _probabilities(simulation, record.round)
            if simulation.federation.num_clients <= MOST_CLIENTS:
                clients |= simulation.client_metrics()
        self.run.record(record.round, record.metrics, participants=record.participants, clients=clients)
        self._recorded = record.round + 1
        if (record.round + 1) % self.every == 0:
            self.save(simulation)

    def save(self, simulation: Simulation) -> None:
        """Commit the metrics, then write the checkpoint."""
        self.run.flush()
        simulation.save(self.run.checkpoint)
        self._saved = simulation.state.round

    def resume_hint(self) -> str:
        """Which checkpoint there is."""
        where = f"has a checkpoint after round {self._saved}" if self._saved else "has no checkpoint yet"
        return f"run {self.run.id} {where}: fedstale resume {self.run.id} --store {self.run.store}"

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """Save where the run stands and say how it ended; an interrupted run can be resumed."""
        if reason != "failed" and simulation.between_rounds and self._recorded == simulation.state.round:
            self.save(simulation)
        if reason == "stopped":
            self.run.finish("finished", f"stopped after round {simulation.state.round}")
        else:
            diverged_in = simulation.state.round + 1 if reason == "diverged" else None
            self.run.finish(reason, diverged_in=diverged_in)


def _probabilities(simulation: Simulation, t: int) -> dict[str, Float]:
    """p̂ of round t and the true p of every client, where p is estimated; Flower's runs have the first, too."""
    count, estimated = simulation.federation.num_clients, simulation.estimated
    if estimated is None or isinstance(simulation.estimator, KnownProbabilities) or count > MOST_CLIENTS:
        return {}
    found = {"probability": estimated}
    if not simulation.knows_probabilities:
        return found
    with suppress(ValueError):  # a selection whose probabilities have no closed form
        found["probability_true"] = np.broadcast_to(simulation.participation.known(t), count)
    return found


@dataclass
class EarlyStop(Callback):
    """Stop when a metric has not improved by `least` over the last `patience` evaluations."""

    metric: str = "accuracy"
    patience: int = 10
    least: float = 0.0
    larger_is_better: bool = True
    best: float = field(default=-np.inf, init=False)
    waited: int = field(default=0, init=False)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Count evaluations without progress."""
        if self.metric not in record.metrics:
            return
        value = record.metrics[self.metric] * (1 if self.larger_is_better else -1)
        if value > self.best + self.least:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
            simulation.stop = self.waited >= self.patience


@dataclass
class TensorBoard(Callback):
    """Write every metric as a scalar for TensorBoard (extra `track`)."""

    folder: str
    _writer: Any = field(default=None, init=False, repr=False)

    def on_start(self, simulation: Simulation) -> None:
        """Open the event file."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InvalidInput(missing("tensorboard")) from None
        self._writer = SummaryWriter(self.folder)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """One point per metric."""
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.round)

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """Close the event file."""
        self._writer.close()


@dataclass
class MLflow(Callback):
    """Log every metric to an MLflow tracking store (extra `track`); by default a local file."""

    tracking_uri: str = "sqlite:///mlflow.db"
    experiment: str = "fedstale"
    params: dict[str, Any] = field(default_factory=dict)
    _client: Any = field(default=None, init=False, repr=False)
    _run: str = field(default="", init=False, repr=False)

    def on_start(self, simulation: Simulation) -> None:
        """Create the MLflow run."""
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise InvalidInput(missing("mlflow")) from None
        self._client = MlflowClient(self.tracking_uri)
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(experiment).info.run_id
        for name, value in self.params.items():
            self._client.log_param(self._run, name, value)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """One point per finite metric."""
        for name, value in record.metrics.items():
            if np.isfinite(value):
                self._client.log_metric(self._run, name, value, step=record.round)

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """Close the MLflow run."""
        self._client.set_terminated(self._run, "FINISHED" if reason in ("finished", "stopped") else "FAILED")
