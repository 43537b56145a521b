"""What is learned: 8×8 digits that come with scikit-learn, and a small network."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Data = tuple[Tensor, Tensor]


class Net(nn.Module):
    """64 pixels, 32 hidden units, 10 digits."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.layers(x)
        return logits


def load_partition(partition: int, num_partitions: int) -> Data:
    """Return one device's share of the training digits."""
    images, labels = _digits()
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(0))
    mine = order[partition::num_partitions]
    return images[mine], labels[mine]


def load_test() -> Data:
    """Return the digits that no device has."""
    images, labels = _digits()
    return images[1437:], labels[1437:]


def train(model: nn.Module, data: Data, *, epochs: int, batch_size: int, lr: float, seed: int) -> float:
    """Run SGD and return the mean loss; the batches depend on the seed only."""
    images, labels = data
    chance = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=chance)
        for start in range(0, len(labels), batch_size):
            batch = order[start : start + batch_size]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> tuple[float, float]:
    """Return loss and accuracy."""
    images, labels = data
    logits = model(images)
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return cross_entropy(logits, labels).item(), accuracy.item()


def _digits() -> Data:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)
