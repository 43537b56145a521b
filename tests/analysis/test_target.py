"""What a target costs, on a few hand-made series."""

from __future__ import annotations

import numpy as np
import pytest

import fedstale as fs
from fedstale.analysis import Cost, cost_to_target

NAN = float("nan")
METRICS = {
    "accuracy": np.array([0.1, NAN, 0.8, 0.7, NAN, 0.8, 0.9]),
    "objective": np.array([3.0, NAN, 2.0, 1.0, NAN, 1.5, 0.5]),
    "virtual_seconds": np.array([1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0]),
    "bytes_up": np.full(7, 10.0),
    "bytes_down": np.full(7, 1.0),
}


def test_the_first_evaluation_at_the_target() -> None:
    assert cost_to_target(METRICS, "accuracy", 0.75) == Cost(3, 4.0, 33.0)
    assert cost_to_target(METRICS, "accuracy", 0.75, stay=2) == Cost(6, 8.0, 66.0)
    assert cost_to_target(METRICS, "objective", 1.5) == Cost(4, 5.0, 44.0)
    assert cost_to_target(METRICS, "accuracy", 0.95) is None
    assert cost_to_target(METRICS, "accuracy", 0.5, stay=6) is None


def test_rounds_without_time_and_metrics_that_are_not_there() -> None:
    found = cost_to_target({"accuracy": np.array([0.5, 0.6])}, "accuracy", 0.6)
    assert found is not None
    assert (found.rounds, found.bytes) == (2, 0.0)
    assert np.isnan(found.seconds)
    with pytest.raises(fs.InvalidInput, match="was not recorded"):
        cost_to_target(METRICS, "test_loss", 0.1)
