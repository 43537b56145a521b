"""The names of the tasks, and what each is: known without torch, for lists, help and completion."""

from __future__ import annotations

from .defaults import ALIASES

DESCRIPTIONS = {
    "digits-mlp": "8×8 digits, embedded; perceptron 64-32-10",
    "digits-cnn": "8×8 digits, embedded; small CNN",
    "mnist-logistic": "MNIST; logistic regression",
    "mnist-mlp": "MNIST; perceptron 784-32-10",
    "mnist-cnn": "MNIST; the paper's CNN",
    "fashion-mnist-cnn": "Fashion-MNIST; the same CNN",
    "cifar10-cnn": "CIFAR-10; the paper's CNN",
    "wisdm-mlp": "36 people's phones, six activities; perceptron 43-64-6",
    "wisdm-logistic": "36 people's phones, six activities; logistic regression",
    "shakespeare-gru": "141 roles of Shakespeare, next character; small GRU",
    "heart-disease-logistic": "four hospitals, heart disease; logistic regression",
}
"""What is learned, and by which model."""
QUADRATIC = "quadratic"
"""The task without data: Figure 1's two clients, or random quadratics."""


def names() -> tuple[str, ...]:
    """Return the names that `make` knows, without the aliases."""
    return tuple(DESCRIPTIONS)


def task_names() -> tuple[str, ...]:
    """Return every name that a run may have as its task."""
    return (*DESCRIPTIONS, *ALIASES, QUADRATIC)
