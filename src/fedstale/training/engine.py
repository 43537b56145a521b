"""What an engine is: the clients' part of Algorithm 1, a model and the round's participants in, updates Δ_i out.

Engines differ in speed only: the same batches, the same steps, results that agree to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..buffers import Buffers
from ..checks import client_ids, fail, number, positive_int, unknown, vector
from .descent import Descent
from .evaluation import Evaluation, client_sums, rows_of
from .layout import Floats, unflatten, write_buffers
from .local import Batches, draw
from .setup import TrainingSetup


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One call of `Engine.train`, checked and on the device.

    Parameters
    ----------
    starts
        w_t, shape (d,), or one model per client, shape (|S|, d).
    rows, sizes, noise
        The batches, see `Batches`.
    rates
        η_c of each client, shape (|S|,).
    weight_decay, prox
        Factors on w that are added to gradients.
    shift
        What else is added to gradients, see `Descent`; shape (d,) or (|S|, d).
    gradient
        Whether steps are plain ones, whatever the clients' optimiser is, so that the update is rate times the gradient.
    out
        Where the updates go, shape (|S|, d).
    buffers
        Where the clients' buffers go, by name, each of shape (|S|, …).
    losses
        Where the mean training losses go, shape (|S|,), when they are wanted.
    """

    starts: Tensor
    rows: Tensor
    sizes: NDArray[np.int64] | None
    noise: NDArray[np.int64] | None
    rates: NDArray[np.float64]
    weight_decay: float
    prox: float
    shift: Tensor | None
    gradient: bool
    out: Tensor
    buffers: dict[str, Tensor]
    losses: Tensor | None


class Engine(ABC):
    """Trains clients; made by `fedstale.training.make`."""

    name: ClassVar[str]
    """The name in configs and on the command line."""
    num_params: int
    """The length d of the model vector."""
    losses: NDArray[np.float64] | None
    """Mean training loss over its local steps of each client of the last call; None unless `make` was asked."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup
        self.num_params = setup.layout.num_params
        self._out = torch.empty(0, self.num_params, device=setup.device)
        self._host = np.empty((0, self.num_params), dtype=np.float32)
        self.losses = None
        self.buffers: Buffers = setup.initial_buffers
        """What the model keeps beside its parameters (running means): where clients start, and what is evaluated."""
        self._client_buffers: dict[str, Tensor] = {}

    @property
    def initial(self) -> Floats:
        """The task's untrained model w_1 for the run's seed, shape (d,): a copy."""
        return self.setup.initial.copy()

    @property
    def resolved_name(self) -> str | None:
        """The engine whose bits these are: the name, or what "fastest" chose; None while it has not chosen yet."""
        return self.name

    @property
    def client_buffers(self) -> Buffers:
        """The buffers that each client of the last call ended with, by name, shape (|S|, …): the engine keeps none."""
        return {name: buffer.cpu().numpy() for name, buffer in self._client_buffers.items()}

    def module(self, model: ArrayLike) -> nn.Module:
        """Return the task's model with the given parameters, for use outside: no part of the engine."""
        module = self.setup.task.build(self.setup.seed)
        unflatten(module, model)
        write_buffers(module, self.buffers)
        return module

    def batches(self, clients: ArrayLike, round: int) -> Batches:
        """Return what the clients train on in a round: a function of (seed, round, client)."""
        setup = self.setup
        ids = client_ids("clients", clients, setup.num_clients)
        positive_int("round", round, 0)
        return draw(setup.training, setup.train.offsets, ids, round, setup.seed, noise=setup.stochastic)

    def updates(
        self,
        model: ArrayLike,
        clients: ArrayLike,
        round: int,
        *,
        linear: ArrayLike | None = None,
        prox: float = 0.0,
    ) -> Floats:
        """Train the round's participants and return their updates Δ_i = w_t − w_i^K.

        Parameters
        ----------
        model
            w_t, shape (d,); or one model per participant, shape (|S|, d), for methods whose clients start from older
            models.
        clients
            The participants S, shape (|S|,).
        round
            t, from 0: it decides the batches and the scheduled learning rate.
        linear
            Added to each participant's gradient at each step, shape (|S|, d): c − c_i in SCAFFOLD.
        prox
            μ: μ (w − w_t) is added too, as in FedProx and FedDyn.

        Returns
        -------
        updates
            Of shape (|S|, d), in the order of `clients`. The array is overwritten by the next call: copy what is to be
            kept.
        """
        batches = self.batches(clients, round)
        return self.train(model, batches, self.setup.training.rate(round), linear=linear, prox=prox)

    def train(
        self,
        starts: ArrayLike,
        batches: Batches,
        rate: ArrayLike,
        *,
        linear: ArrayLike | None = None,
        prox: float = 0.0,
        gradient: bool = False,
    ) -> Floats:
        """Train on given batches; `updates` is this with the batches and the rate of a round.

        Parameters
        ----------
        starts
            As `model` of `updates`.
        batches
            One row of sample numbers per model to train. Rows need not belong to different clients: this is how runs
            that differ in their seeds, rates or rules train in lock-step.
        rate
            The learning rate, one or one per row.
        linear, prox
            As for `updates`.
        gradient
            Take plain steps, whatever optimiser and clipping the clients have otherwise: one of them is rate · ∇F_i.
        """
        setup, count = self.setup, len(batches.rows)
        start = self._tensor("model", starts, count, or_single=True)
        rates = vector("rate", rate, count)
        if (rates < 0).any():
            raise fail("rate", float(rates.min()), "must not be negative")
        shift = None if linear is None else self._tensor("linear", linear, count)
        if linear is not None and not setup.training.plain and not gradient:
            allowed = "corrects the steps of plain sgd: a method that does so cannot be used with another optimiser"
            raise fail("linear", "a correction of gradients", allowed)
        mu = number("prox", prox, 0.0)
        if mu:
            shift = -mu * start if shift is None else shift - mu * start
        if len(self._out) < count:
            self._out = torch.empty(count, self.num_params, device=setup.device)
        out = self._out[:count]
        losses = torch.zeros(count, device=setup.device) if setup.record_losses else None
        rows = torch.from_numpy(np.ascontiguousarray(batches.rows)).to(setup.device)
        self._client_buffers = {
            name: torch.from_numpy(np.repeat(buffer[None], count, axis=0)).to(setup.device)
            for name, buffer in self.buffers.items()
        }
        found: list[Floats] | None = None
        if count:
            job = TrainingJob(
                starts=start,
                rows=rows,
                sizes=batches.sizes,
                noise=batches.noise,
                rates=rates,
                weight_decay=setup.training.weight_decay,
                prox=mu,
                shift=shift,
                gradient=gradient,
                out=out,
                buffers=self._client_buffers,
                losses=losses,
            )
            found = self._run(job)
        self.losses = None if losses is None else losses.double().cpu().numpy()
        if found is not None:
            return found  # type: ignore[return-value] # rows, which everything below takes as well
        if out.device.type == "cpu":
            return out.numpy()
        if len(self._host) < count:
            self._host = np.empty((count, self.num_params), dtype=np.float32)
        host = self._host[:count]
        torch.from_numpy(host).copy_(out)
        return host

    @abstractmethod
    def _run(self, job: TrainingJob) -> list[Floats] | None:
        """Fill job.out, or return its rows where they lie elsewhere; and job.losses when it is there."""

    def evaluate(
        self, model: ArrayLike, *, clients: ArrayLike | None = None, split: Literal["test", "train"] = "test"
    ) -> Evaluation:
        """Evaluate a model on the clients' own data, in float32 whatever the precision of training.

        Parameters
        ----------
        model
            w, shape (d,).
        clients
            Whose data; default: everyone's.
        split
            "test" or "train".
        """
        setup = self.setup
        if split not in ("test", "train"):
            raise unknown("split", split, ("test", "train"))
        data = setup.test if split == "test" else setup.train
        number_of = setup.num_clients
        ids = np.arange(number_of) if clients is None else client_ids("clients", clients, number_of)
        rows, bounds = rows_of(data.offsets, ids)
        weights = setup.layout.views(self._tensor("model", model, 0, or_single=True))
        losses, *others = client_sums(setup, weights, self.buffers, data, rows, bounds)
        scores = dict(zip(setup.scoring.names[1:], others, strict=True))
        return Evaluation(ids, np.diff(bounds), losses, setup.task.groups[ids], scores)

    def _tensor(self, argument: str, value: ArrayLike, count: int, *, or_single: bool = False) -> Tensor:
        array = np.ascontiguousarray(value, dtype=np.float32)
        allowed = [(self.num_params,)] * or_single + [(count, self.num_params)] * (count > 0 or not or_single)
        if array.shape not in allowed:
            raise fail(argument, f"array of shape {array.shape}", f"must have shape {' or '.join(map(str, allowed))}")
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array).to(self.setup.device)


def make_descent(
    setup: TrainingSetup, job: TrainingJob, rate: float | list[Tensor], weights: Tensor, shift: Tensor | None
) -> Descent:
    """Make the stepper for one client, weights of shape (d,), or for stacked clients, (|S|, d)."""
    momentum = setup.training.momentum
    keep = momentum > 0 or not isinstance(rate, float)
    return Descent(
        rate,
        job.weight_decay + job.prox,
        momentum,
        None if shift is None else setup.layout.views(shift),
        setup.layout.views(torch.zeros_like(weights)) if keep else None,
    )
