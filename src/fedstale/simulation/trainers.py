"""What learns: the two kinds of `Trainer`, an engine on a task with data, and quadratics without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..federation import Ints
from ..randomness import generator
from ..rules import Local
from ..tasks.quadratic import Quadratic
from .loop import Evaluation

if TYPE_CHECKING:
    from ..tasks import Task
    from ..training import Engine


@dataclass
class EngineTrainer:
    """An engine on a task: accuracy over all clients' own test splits, and over each group."""

    engine: Engine
    task: Task

    @property
    def num_params(self) -> int:
        """D."""
        return self.engine.num_params

    def initial(self) -> NDArray[Any]:
        """The task's untrained model."""
        return self.engine.initial

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Local | None = None) -> NDArray[Any]:
        """K local steps on every client."""
        extra = local or Local()
        return self.engine.updates(model, clients, round, linear=extra.linear, prox=extra.prox)

    @property
    def train_loss(self) -> float | None:
        """Mean training loss of the last round, where the engine was asked to record it."""
        losses = self.engine.losses
        return None if losses is None or not len(losses) else float(np.mean(losses))

    def evaluate(self, model: NDArray[Any]) -> Evaluation:
        """Accuracy and loss weighted by test size, overall and per group."""
        seen = self.engine.evaluate(model)
        groups = {f"accuracy_group{group}": value for group, value in seen.group_accuracies().items()}
        return Evaluation({"accuracy": seen.accuracy, "test_loss": seen.loss, **groups}, seen.client_accuracies)


@dataclass
class QuadraticTrainer:
    """Figure 1's world: exact (or noisy) gradients of quadratics; the metric is the excess loss F(w) − F(w*)."""

    problem: Quadratic
    lr: float
    local_steps: int = 5
    noise: float = 0.0
    seed: int = 0

    @property
    def num_params(self) -> int:
        """D."""
        return self.problem.num_params

    def initial(self) -> Float:
        """The problem's first model."""
        return np.array(self.problem.start)

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Local | None = None) -> Float:
        """K local gradient steps on every client."""
        rng = generator(self.seed, "gradient noise", round) if self.noise > 0 else None
        extra = local or Local()
        return self.problem.local_updates(
            model, clients, self.local_steps, self.lr, self.noise, rng, linear=extra.linear, prox=extra.prox
        )

    def evaluate(self, model: NDArray[Any]) -> Evaluation:
        """How far the loss is above its minimum."""
        return Evaluation({"excess_loss": float(self.problem.excess(model))})
