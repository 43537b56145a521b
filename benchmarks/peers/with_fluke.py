"""fluke: its FedAvg (`CentralizedFL`), one process with torch's default threads.

Its clients run through a `FastDataLoader`; ours yields the work's K batches, by indexing. fluke imports torchvision,
of which there is no build for a torch without CUDA here: the two compiled operators that its import asks for are
declared without code. Nothing that is timed uses torchvision.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.work import Clock, Shards, Work

DECLARED = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    DECLARED.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Batches(FastDataLoader):
    """The K batches of a client's round."""

    def __init__(self, x: Tensor, y: Tensor, work: Work, clock: Clock) -> None:
        super().__init__(x, y, num_labels=10, batch_size=work.batch)
        self.pair, self.work, self.clock = (x, y), work, clock

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One local epoch: K batches."""
        x, y = self.pair
        for rows in self.work.rows(len(y)):
            self.clock.samples += len(rows)
            yield x[rows], y[rows]

    def __len__(self) -> int:
        """K."""
        return self.work.steps


class Rounds(FederationObserver):
    """Evaluates when it is time, and tells the clock."""

    def __init__(self, clock: Clock, shards: Shards) -> None:
        self.clock, self.shards = clock, shards
        self.federation: Any = None

    def end_round(self, *_: Any, **__: Any) -> None:
        """The end of a round."""
        if self.clock.due:
            self.clock.accuracy = self.shards.accuracy(self.federation.server.model)
        self.clock.round()


def main() -> None:
    clock = Clock("fluke-fl", "torchvision")
    work, shards = clock.work, Shards(clock.folder)
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    loaders = [Batches(*shards.client(i), work, clock) for i in range(work.clients)]
    container = DummyDataContainer(loaders, [None] * work.clients, None, num_classes=10)
    federation = FedAVG(
        n_clients=work.clients,
        data_splitter=DataSplitter(container),
        hyper_params=DDict(
            client=DDict(
                batch_size=work.batch,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(lr=work.lr),
                scheduler=DDict(gamma=1.0, step_size=1),
            ),
            server=DDict(weighted=False),
            model=shards.model(work),
        ),
    )
    rounds = Rounds(clock, shards)
    rounds.federation = federation
    federation.set_callbacks([rounds])
    federation.run(n_rounds=clock.rounds, eligible_perc=work.cohort / work.clients, finalize=False)
    clock.report()


if __name__ == "__main__":
    main()
