"""A plain PyTorch loop: one model, one client after the other, torch's default number of threads, a mean."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.peers.work import Clock, Shards, local_sgd


def main() -> None:
    torch.manual_seed(0)
    clock = Clock()
    work, shards = clock.work, Shards(clock.folder)
    model = shards.model(work)
    current = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in clock.each():
        total = torch.zeros_like(current)
        for client in torch.randperm(work.clients)[: work.cohort].tolist():
            nn.utils.vector_to_parameters(current.clone(), model.parameters())
            clock.samples += local_sgd(model, *shards.client(client), work)
            total += nn.utils.parameters_to_vector(model.parameters()).detach()
        current = total / work.cohort
        if clock.due:
            nn.utils.vector_to_parameters(current.clone(), model.parameters())
            clock.accuracy = shards.accuracy(model)
    clock.report()


if __name__ == "__main__":
    main()
