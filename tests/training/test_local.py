import math
from typing import Any

import pytest

from fedstale.checks import InvalidInput
from fedstale.training import LocalTraining


def test_five_steps_unless_told_otherwise() -> None:
    assert LocalTraining(lr=0.1).steps == 5
    assert LocalTraining(lr=0.1, epochs=2).steps is None
    assert LocalTraining(lr=0.1, steps=3).steps == 3


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", {0: 1.0, 1000: 1.0}),
        ("cosine:10", {0: 1.0, 5: 0.5, 10: 0.0, 25: 0.0}),
        ("step:3:0.5", {0: 1.0, 2: 1.0, 3: 0.5, 8: 0.25}),
        ("inverse-sqrt", {0: 1.0, 3: 0.5, 99: 0.1}),
        (lambda t: 2.0 + t, {0: 2.0, 5: 7.0}),
    ],
)
def test_schedules(schedule: Any, factors: dict[int, float]) -> None:
    training = LocalTraining(lr=0.2, schedule=schedule)
    for round, factor in factors.items():
        assert math.isclose(training.rate(round), 0.2 * factor, abs_tol=1e-15)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lr": 0.0}, "lr = 0.0"),
        ({"lr": -1.0}, "lr = -1.0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": 0.1, "steps": 5, "epochs": 1}, "steps, epochs"),
        ({"lr": 0.1, "steps": 0}, "steps = 0"),
        ({"lr": 0.1, "epochs": 0}, "epochs = 0"),
        ({"lr": 0.1, "batch_size": 0}, "batch_size = 0"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum = 1.0"),
        ({"lr": 0.1, "weight_decay": -1e-4}, "weight_decay"),
        ({"lr": 0.1, "schedule": "cosin:5"}, "did you mean cosine"),
        ({"lr": 0.1, "schedule": "cosine"}, "cosine:T"),
        ({"lr": 0.1, "schedule": "step:0:0.5"}, "step:EVERY:FACTOR"),
        ({"lr": 0.1, "schedule": "step:2:x"}, "step:EVERY:FACTOR"),
        ({"lr": 0.1, "schedule": 3}, "schedule = 3"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named.replace(".", r"\.")):
        LocalTraining(**settings)


@pytest.mark.parametrize("name", ["SGD", "Sgd", "sgd"])
def test_sgd_is_sgd_in_any_case(name: str) -> None:
    training = LocalTraining(lr=0.1, optimizer=name, momentum=0.5)
    assert training.plain
    assert training == LocalTraining(lr=0.1, momentum=0.5)


def test_a_schedule_that_returns_nonsense_is_named() -> None:
    training = LocalTraining(lr=0.1, schedule=lambda t: -1.0)
    with pytest.raises(InvalidInput, match=r"schedule\(4\) = -1.0"):
        training.rate(4)
