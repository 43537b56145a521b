"""A task of one's own: any torch data, any torch model, one entry per client.

Ten hospitals measure the same two quantities; each wants to know which of three groups a patient belongs to. The
five that rarely take part see mostly the third group, the others hardly ever. The data is made up here; yours comes
from wherever it lives.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedstale as fs
from fedstale.tasks import Task

CENTRES = torch.tensor([[0.0, 2.0], [-1.7, -1.0], [1.7, -1.0]])


def hospital(number: int, patients: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(number)
    mix = torch.tensor([0.48, 0.48, 0.04] if number % 10 < 5 else [0.1, 0.1, 0.8])
    group = torch.multinomial(mix, patients, replacement=True, generator=generator)
    values = CENTRES[group] + torch.randn(patients, 2, generator=generator)
    return TensorDataset(values, group)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


task = Task.from_datasets(
    model,
    functional.cross_entropy,
    train=[hospital(i, patients=50 + 20 * i) for i in range(10)],
    test=[hospital(100 + i, patients=50) for i in range(10)],
    name="hospitals",
    batch_size=32,
)


def main() -> None:
    print(f"{task.num_clients} clients with {task.train.sizes.tolist()} samples")
    participation = fs.Bernoulli.two_groups(task.num_clients, p_min=0.1)
    for rule in (fs.FedAvg(), fs.FedStale(beta="auto")):
        result = fs.simulate(task, rule, participation, rounds=100, lr=0.1)
        print(
            f"{result.label:<16} accuracy {result.final('accuracy'):.1%}, "
            f"hospitals that rarely take part {result.final('accuracy_group1'):.1%}"
        )


if __name__ == "__main__":
    main()
