"""What metrics are called, and how their numbers are written."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable

from ..checks import unknown
from .estimate import Estimate

TITLES = {
    "accuracy": "Test accuracy",
    "objective": "Objective Σ α_i F_i",
    "objective_covered": "Objective over the clients that come",
    "coverage": "Coverage: weight of the clients that come",
    "accuracy_worst_decile": "Accuracy, worst tenth",
    "test_loss": "Test loss",
    "test_loss_worst_decile": "Test loss, worst tenth",
    "train_loss": "Training loss",
    "excess_loss": "Excess loss F(w) − F(w*)",
    "beta": "β",
    "theta": "θ",
    "update_norm": "Norm of the global update",
    "p_error": "RMS error of p̂",
    "memory_error": "Memory error H",
    "update_noise": "Participation noise of Δ",
    "update_bias": "Participation bias of Δ",
    "participants": "Clients that came",
    "staleness_mean": "Mean staleness (rounds)",
    "staleness_max": "Largest staleness (rounds)",
    "server_bytes": "Memory of the server (bytes)",
    "information_age": "Age of information (virtual seconds)",
    "late": "Late replies that were remembered",
    "lost": "Devices that left during their work",
    "wasted_seconds": "Wasted work (device-seconds)",
    "age_mean": "Mean age of the updates (server steps)",
    "age_max": "Largest age of the updates (server steps)",
}
"""Metrics that have a name for people, the most wanted first."""

_RECORDED = (
    *("bytes_up", "bytes_down", "seconds", "virtual_seconds", "left_out", "clipped", "capped", "rounds_lost"),
    *("combine_seconds", "swap_train", "swap_test"),
    *("accuracy_group0", "accuracy_group1", "test_loss_group0", "test_loss_group1"),
    "active_clients",
)
"""What runs record besides those."""


def check_metric(name: str, measured: Iterable[str]) -> None:
    """Refuse a metric that neither this run has nor any could have, and name the near ones."""
    known = {*measured, *TITLES, *_RECORDED}
    if name not in known and not re.fullmatch(
        r"(accuracy|test_loss|excess_loss)_(group\d+|quantile\d+|worst_decile)", name
    ):
        raise unknown("metric", name, known)


def main_metric(names: Container[str]) -> str | None:
    """Return what runs with these metrics are compared by.

    The test accuracy; the excess loss of a quadratic; the test loss of a task that has no accuracy.
    """
    return next((name for name in ("accuracy", "excess_loss", "test_loss") if name in names), None)


def metric_title(metric: str) -> str:
    """Name a metric, as axes and choices have it."""
    for word, say in (("_group", group_name), ("_quantile", "quantile {} by p".format)):
        name, found, number = metric.partition(word)
        if found and number.isdigit():
            return f"{TITLES.get(name, name)}, {say(int(number))}"
    return TITLES.get(metric, metric)


def short_title(metric: str) -> str:
    """Name what runs are compared by, as headings and sentences have it."""
    return {"accuracy": "accuracy", "excess_loss": "excess loss", "test_loss": "test loss"}.get(metric, metric)


def is_share(metric: str) -> bool:
    """Whether a metric is a share, written in percent."""
    return metric.startswith("accuracy") or metric == "coverage"


def metric_text(metric: str, value: float | Estimate) -> str:
    """Write the value of a metric, or its mean with the error; a dash where there is none."""
    if not isinstance(value, Estimate) and math.isnan(value):
        return "–"
    return format(value, ".1%" if is_share(metric) else ".3g")


def group_name(number: int) -> str:
    """Name a participation group."""
    return "frequent clients" if number == 0 else "rare clients" if number == 1 else f"group {number}"
