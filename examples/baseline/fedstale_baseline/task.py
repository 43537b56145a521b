"""The task: logistic regression on handwritten digits, divided among frequent and rare clients.

Half of the clients take part in every round, the others with probability p_min. In a share of the rare clients'
samples two classes are swapped, so that the two groups want different models (as in the paper's experiments).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Floats = NDArray[np.float64]
CLASSES, TRAINING = 10, 1437


@cache
def digits() -> tuple[Floats, NDArray[np.int64]]:
    """All digits in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order] / 16.0, labels[order]


def is_rare(client: int, num_clients: int) -> bool:
    """Whether a client belongs to the second half."""
    return client >= num_clients // 2


def swapped(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Swap classes 3 and 8 in a share of the samples."""
    chosen = np.random.default_rng([seed, 7]).random(len(labels)) < share
    partner = np.arange(CLASSES)
    partner[[3, 8]] = [8, 3]
    return np.where(chosen, partner[labels], labels)


def partition(client: int, num_clients: int, share: float) -> tuple[Floats, NDArray[np.int64]]:
    """One client's samples."""
    images, labels = digits()
    mine = slice(client, TRAINING, num_clients)
    rare = is_rare(client, num_clients)
    return images[mine], swapped(labels[mine], share, client) if rare else labels[mine]


def takes_part(client: int, num_clients: int, p_min: float, seed: int, server_round: int) -> bool:
    """Whether a client takes part in a round: a function of the seed, the round and the client."""
    return not is_rare(client, num_clients) or np.random.default_rng([seed, server_round, client]).random() < p_min


def first_model() -> list[Floats]:
    """Weights and biases, zero."""
    return [np.zeros((64, CLASSES)), np.zeros(CLASSES)]


def train(
    model: list[Floats],
    data: tuple[Floats, NDArray[np.int64]],
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: tuple[int, ...],
) -> list[Floats]:
    """Run local SGD; the batches depend on the seed only."""
    weights, biases = model[0].copy(), model[1].copy()
    images, labels = data
    chance = np.random.default_rng(seed)
    for _ in range(steps):
        batch = chance.choice(len(labels), min(batch_size, len(labels)), replace=False)
        error = _probabilities([weights, biases], images[batch]) - np.eye(CLASSES)[labels[batch]]
        weights -= lr * images[batch].T @ error / len(batch)
        biases -= lr * error.mean(axis=0)
    return [weights, biases]


def accuracy(model: list[Floats], share: float) -> float:
    """Accuracy on digits that nobody trains on: half as frequent clients label them, half as rare ones do."""
    images, labels = digits()
    images, labels = images[TRAINING:], labels[TRAINING:]
    found = _probabilities(model, images).argmax(axis=1)
    return float(0.5 * np.mean(found == labels) + 0.5 * np.mean(found == swapped(labels, share, 1000)))


def _probabilities(model: list[Floats], images: Floats) -> Floats:
    scores = images @ model[0] + model[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))
