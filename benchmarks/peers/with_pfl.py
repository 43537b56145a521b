"""pfl-research: SimulatedBackend, FederatedAveraging and PyTorchModel, one process with torch's default threads.

A user's data set of a round holds the K·B samples that are drawn for it, so that one local epoch is the work's K steps.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-return"
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.work import Clock, Shards


class Model(nn.Module):
    """The work's model with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.network(x)
        return logits

    def loss(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        """What a local step minimises."""
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Any]:
        """What pfl measures before and after local training, where it is asked to."""
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Rounds(TrainingProcessCallback):
    """Evaluates when it is time, and tells the clock."""

    def __init__(self, clock: Clock, shards: Shards) -> None:
        self.clock, self.shards = clock, shards

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """The end of a round."""
        if self.clock.due:
            self.clock.accuracy = self.shards.accuracy(model.pytorch_model)
        self.clock.round()
        return False, Metrics()


def main() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - what pfl draws its cohorts from
    clock = Clock("pfl")
    work, shards = clock.work, Shards(clock.folder)

    def dataset(user: int) -> Any:
        x, y = shards.client(user)
        rows = work.rows(len(y)).flatten()
        clock.samples += len(rows)
        return Dataset((x[rows], y[rows]), user_id=str(user))

    model = Model(shards.model(work))
    data = FederatedDataset(dataset, MinimizeReuseUserSampler(list(range(work.clients))))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=clock.rounds,
            evaluation_frequency=clock.rounds + 1,  # its own metrics: in the first round only
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        callbacks=[Rounds(clock, shards)],
    )
    clock.report()


if __name__ == "__main__":
    main()
