"""What learns: the two kinds of `Trainer`, an engine on a task with data, and quadratics without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import ClientBuffers
from ..checks import Float, fail
from ..federation import Ints
from ..randomness import generator
from ..rules import Local
from ..state import State
from ..tasks.quadratic import Quadratic
from .interfaces import EvaluationMetrics

if TYPE_CHECKING:
    from torch import nn

    from ..tasks import Task
    from ..training import Engine
    from ..training.local import Batches


@dataclass
class EngineTrainer:
    """An engine on a task: accuracy over all clients' own test splits, and over each group."""

    engine: Engine
    task: Task
    alpha: Float | None = None
    """α_i, shape (N,), where the objective is to be evaluated as well: a pass over all training data"""
    covered: Float | None = None
    """α_i over the clients that come, summing to 1, where some never do"""
    groups: Ints | None = None
    """Who is frequent (0) and who is rare (1), shape (N,), where the task does not say it"""
    quantiles: Ints | None = None
    """Finer groups by p_i, from 1 for the most frequent clients, shape (N,), where they are asked for"""
    buffers: ClientBuffers | None = None
    """What the model keeps beside its parameters, of every client, in the server's state."""

    def attach(self, state: State) -> None:
        """Keep the buffers of the model (running means) in a state, or go on with those that it has."""
        if self.engine.buffers:
            self.buffers = ClientBuffers(state, self.engine.setup.initial_buffers)
            self.engine.buffers = self.buffers.current

    @property
    def num_params(self) -> int:
        """Number of parameters d."""
        return self.engine.num_params

    def initial(self) -> NDArray[Any]:
        """The task's untrained model."""
        return self.engine.initial

    @property
    def make_model(self) -> Callable[[], nn.Module]:
        """A function that makes the untrained model again; it does not hold the data."""
        from ..tasks.task import build_model

        return partial(build_model, self.task.model, self.engine.setup.seed)

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Local | None = None) -> NDArray[Any]:
        """K local steps on every client, or what `local` asks for."""
        extra = local or Local()
        start = model if extra.start is None else extra.start
        if extra.recursive:
            return self._recursive(np.asarray(start), clients, round, extra)
        if not extra.gradient:
            return self.engine.updates(start, clients, round, linear=extra.linear, prox=extra.prox)
        batch = _single_batch(self.engine.batches(clients, round))
        rate = self.engine.setup.training.rate(round)
        return self.engine.train(start, batch, rate, linear=extra.linear, prox=extra.prox, gradient=True)

    def _recursive(self, start: NDArray[Any], clients: Ints, round: int, local: Local) -> NDArray[Any]:
        """Do what `Local.recursive` says, with two gradients of every client and step."""
        from ..training.local import Batches

        training = self.engine.setup.training
        if not training.plain or training.momentum or self.engine.buffers:
            allowed = "takes steps of plain sgd, for models without running statistics"
            raise fail("rule", "a recursion over gradients", allowed)
        batches = self.engine.batches(clients, round)
        sizes = np.full(batches.rows.shape[:2], batches.rows.shape[2]) if batches.sizes is None else batches.sizes

        def gradients(models: NDArray[Any], k: int, who: Ints) -> NDArray[Any]:
            width = int(sizes[who, k].max())
            noise = None if batches.noise is None else batches.noise[who]
            one = Batches(batches.rows[who, k : k + 1, :width], sizes[who, k : k + 1], noise)
            return np.array(self.engine.train(models, one, 1.0, gradient=True))

        rate, first = training.rate(round), _linear(local, len(clients), self.num_params)
        return _recursion(gradients, start, first.astype(np.float32), sizes > 0, rate)

    def after_round(self, trained: Ints, kept: Ints) -> None:
        """Average the buffers of those whose updates the rule has taken, out of those who were trained."""
        if self.buffers is not None:
            positions = np.flatnonzero(np.isin(trained, kept))
            sent = {name: buffer[positions] for name, buffer in self.engine.client_buffers.items()}
            self.buffers.take(trained[positions], sent)
            self.engine.buffers = self.buffers.current

    def steps_and_lr(self, clients: Ints, round: int) -> tuple[Float, float]:
        """K_i and η_c."""
        from ..training.local import steps_of

        training = self.engine.setup.training
        offsets = self.task.train.offsets
        steps = steps_of(training, offsets[clients + 1] - offsets[clients])  # not of all: there may be many
        return steps.astype(np.float64), training.rate(round)

    def gradients(self, model: NDArray[Any]) -> Float:
        """One step of rate 1 on all samples of a client, client by client; weight decay is part of the objective."""
        from ..training.local import Batches

        found = np.empty((self.task.num_clients, self.num_params))
        bounds = self.task.train.offsets
        for client in range(self.task.num_clients):
            rows = np.arange(bounds[client], bounds[client + 1], dtype=np.int64)[None, None]
            noise = self.engine.batches([client], 0).noise
            found[client] = self.engine.train(model, Batches(rows, None, noise), 1.0, gradient=True)[0]
        return found

    @property
    def train_loss(self) -> float | None:
        """Mean training loss of the last round, where the engine was asked to record it."""
        losses = self.engine.losses
        return None if losses is None or not len(losses) else float(np.mean(losses))

    def evaluate(self, model: NDArray[Any]) -> EvaluationMetrics:
        """The task's metrics and the loss by test size, overall and per group, and the shares of swapped labels."""
        seen = self.engine.evaluate(model)
        if self.groups is not None:
            seen = replace(seen, groups=self.groups[seen.clients])
        metrics = seen.metrics(None if self.quantiles is None else self.quantiles[seen.clients]) | self.task.swapped
        if self.alpha is not None:
            losses = self.engine.evaluate(model, split="train").client_losses
            metrics["objective"] = float(self.alpha @ losses)
            if self.covered is not None:
                metrics["objective_covered"] = float(self.covered @ losses)
        return EvaluationMetrics(metrics, seen.client_accuracies if "accuracy" in metrics else None)


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
        """Number of parameters d."""
        return self.problem.num_params

    def initial(self) -> Float:
        """The problem's first model."""
        return np.array(self.problem.start)

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Local | None = None) -> Float:
        """K local gradient steps on every client, or what `local` asks for."""
        rng = generator(self.seed, "gradient noise", round) if self.noise > 0 else None
        extra = local or Local()
        start = np.asarray(model if extra.start is None else extra.start)
        steps = 1 if extra.gradient else self.local_steps
        if extra.recursive:
            return self._recursive(start, clients, extra)

        def train(start: NDArray[Any], which: slice) -> Float:
            linear = None if extra.linear is None else extra.linear[which]
            return self.problem.local_updates(
                start, clients[which], steps, self.lr, self.noise, rng, linear=linear, prox=extra.prox
            )

        if start.ndim == 1:
            return train(start, slice(None))
        return np.concatenate([train(own, slice(k, k + 1)) for k, own in enumerate(start)])

    def _recursive(self, start: Float, clients: Ints, local: Local) -> Float:
        """Do what `Local.recursive` says; the noise of two gradients on one batch is the same, and cancels."""

        def gradients(models: Float, k: int, who: Ints) -> Float:
            rows = [self.problem.local_updates(w, clients[[i]], 1, 1.0)[0] for w, i in zip(models, who, strict=True)]
            return np.stack(rows)

        moves = np.ones((len(clients), self.local_steps), dtype=np.bool_)
        return _recursion(gradients, start, _linear(local, len(clients), self.num_params), moves, self.lr)

    def steps_and_lr(self, clients: Ints, round: int) -> tuple[Float, float]:
        """K and η_c."""
        return np.full(len(clients), float(self.local_steps)), self.lr

    def gradients(self, model: NDArray[Any]) -> Float:
        """A_i (w − c_i)."""
        everyone = np.arange(self.problem.num_clients)
        return self.problem.local_updates(np.asarray(model, dtype=np.float64), everyone, 1, 1.0)

    def evaluate(self, model: NDArray[Any]) -> EvaluationMetrics:
        """How far the loss is above its minimum."""
        return EvaluationMetrics({"excess_loss": float(self.problem.excess(model))})


def _linear(local: Local, count: int, num_params: int) -> Float:
    """Return the linear term of each client, zeros where there is none."""
    return np.zeros((count, num_params)) if local.linear is None else np.asarray(local.linear, dtype=np.float64)


def _recursion(
    gradients: Callable[[NDArray[Any], int, Ints], NDArray[Any]],
    start: NDArray[Any],
    direction: NDArray[Any],
    moves: NDArray[np.bool_],
    rate: float,
) -> NDArray[Any]:
    """Take steps along g_k = g_{k−1} + ∇f_i(w_k; B_k) − ∇f_i(w_{k−1}; B_k) and return w_t − w_K of each client.

    Parameters
    ----------
    gradients
        Of some clients on their batches of step k, at one model for each: called with the models, k and the clients.
    start, direction
        w_t, one for all or one each, and g_0 of each client.
    moves
        Whether a client has a step k, shape (|S|, K).
    rate
        η_c.
    """
    models = np.array(np.broadcast_to(start, direction.shape), dtype=direction.dtype)
    first, before, along = models.copy(), models.copy(), direction.copy()
    for k in range(moves.shape[1]):
        who = np.flatnonzero(moves[:, k])
        if k and len(who):
            along[who] += gradients(models[who], k, who) - gradients(before[who], k, who)
        before[who] = models[who]
        models[who] -= rate * along[who]
    return np.asarray(first - models)


def _single_batch(batches: Batches) -> Batches:
    """All samples of a client's round as one batch: one step on it is a gradient at the model it starts from."""
    from ..training.local import Batches

    count, steps, width = batches.rows.shape
    if batches.sizes is None:
        return Batches(batches.rows.reshape(count, 1, steps * width), None, batches.noise)
    sizes = batches.sizes.sum(axis=1)
    rows = np.zeros((count, 1, int(sizes.max(initial=1))), dtype=np.int64)
    filled = np.arange(width) < batches.sizes[:, :, None]
    for k in range(count):
        rows[k, 0, : sizes[k]] = batches.rows[k][filled[k]]
    return Batches(rows, sizes[:, None], batches.noise)
