"""Ours, by the public call `fedstale.simulate` on the shards that everybody has. The option is the rule.

"fedavg"; "fedstale" (β = auto, memory in RAM); "fedavg:bfloat16" (forward and backward passes in bfloat16).
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from torch.nn import functional

import fedstale as fs
from benchmarks.peers.work import Clock, Shards, Work, build
from fedstale.participation import Bernoulli, Participation, UniformSample
from fedstale.simulation import Callback, Simulation
from fedstale.tasks import Task
from fedstale.tasks.task import ClientData


class Spans(Callback):
    """The clock, and the seconds of local training and of evaluation by the way."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.training = self.evaluation = 0.0

    def on_start(self, simulation: Simulation) -> None:
        """Time what the trainer is asked for."""
        trainer: Any = simulation.trainer
        updates, evaluate = trainer.updates, trainer.evaluate

        def timed_updates(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = updates(*args, **named)
            self.training += time.perf_counter() - began
            return found

        def timed_evaluate(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = evaluate(*args, **named)
            self.evaluation += time.perf_counter() - began
            return found

        trainer.updates, trainer.evaluate = timed_updates, timed_evaluate

    def on_round(self, simulation: Simulation, record: Any) -> None:
        """The end of a round."""
        clock = self.clock
        steps, _ = simulation.trainer.steps_and_lr(record.participants, record.round)
        clock.samples += int(steps.sum()) * clock.work.batch
        clock.accuracy = record.metrics.get("accuracy", clock.accuracy)
        clock.round()
        if record.round == 0:  # the first round belongs to the start
            self.training = self.evaluation = 0.0


def task_of(work: Work, shards: Shards) -> Task:
    """The work as a task of one's own."""
    train = ClientData(shards.x, shards.y, shards.offsets)
    test = ClientData(shards.test_x, shards.test_y, shards.test_offsets)
    groups = np.zeros(work.clients, dtype=np.int64)
    return Task(work.task, train, test, lambda: build(work.task), functional.cross_entropy, 10, groups)


def main() -> None:
    clock = Clock("fedstale")
    work, shards = clock.work, Shards(clock.folder)
    rule, _, precision = (clock.option or "fedavg").partition(":")
    spans = Spans(clock)
    length: dict[str, Any] = {"epochs": 1} if work.epoch else {"local_steps": work.steps, "replacement": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that bfloat16 is slow on some processors is what we are here to measure
        fs.simulate(
            task_of(work, shards),
            rule,
            Participation(Bernoulli(np.ones(work.clients)), UniformSample(work.cohort)),
            rounds=clock.rounds,
            lr=work.lr,
            batch_size=work.batch,
            precision=precision or "float32",
            evaluate_every=work.evaluate_every,
            callbacks=[spans],
            **length,
        )
    whole = sum(clock.seconds)
    clock.more = {"training_share": spans.training / whole, "evaluation_share": spans.evaluation / whole}
    clock.report()


if __name__ == "__main__":
    main()
