"""What a task's name stands for where torch is not needed to know it: its full name, and its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIASES = {
    "digits": "digits-mlp",
    "mnist": "mnist-cnn",
    "fashion-mnist": "fashion-mnist-cnn",
    "cifar10": "cifar10-cnn",
    "wisdm": "wisdm-mlp",
    "shakespeare": "shakespeare-gru",
    "heart-disease": "heart-disease-logistic",
}
"""Short names."""
RATES = {
    "quadratic": 0.003,
    "digits-mlp": 0.1,
    "digits-cnn": 0.1,
    "mnist-logistic": 0.1,
    "mnist-mlp": 0.1,
    "mnist-cnn": 0.01,
    "fashion-mnist-cnn": 0.01,
    "cifar10-cnn": 0.01,
    "wisdm-mlp": 10**-0.5,
    "wisdm-logistic": 10**-0.5,
    "shakespeare-gru": 10**-1.5,
    "heart-disease-logistic": 0.1,
}
"""η_c where none is given."""
CLIENTS = {"wisdm-mlp": 36, "wisdm-logistic": 36, "shakespeare-gru": 141, "heart-disease-logistic": 4}
"""The number of clients of natural federations."""


def full_name(task: Any) -> Any:
    """Return the full name of a task; what is no short name stays as it is."""
    return ALIASES.get(task, task) if isinstance(task, str) else task


def used_rate(config: Mapping[str, Any]) -> float | None:
    """Return the client learning rate that a run used: its own, or that of its task; None where neither is known."""
    rate = config.get("lr")
    if isinstance(rate, (int, float)) and not isinstance(rate, bool):
        return float(rate)
    task = full_name(config.get("task"))
    return RATES.get(task) if isinstance(task, str) else None
