"""H^(t) of a run: how far the remembered updates are from the gradients, recorded where it was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedstale.checks import InvalidInput
from fedstale.simulation import build, make_settings, simulate
from fedstale.sweeps.lockstep import eligible
from fedstale.tasks import Quadratic


def test_of_quadratics_by_hand() -> None:
    chosen = make_settings(task="quadratic", num_clients=4, p_min=0.3, rounds=6, lr=0.02, beta=0.5, memory_error=True)
    simulation = build(chosen)
    problem: Quadratic = simulation.trainer.problem  # type: ignore[attr-defined]
    scale = simulation.trainer.lr * simulation.trainer.local_steps  # type: ignore[attr-defined]
    for _ in range(6):
        before = simulation.model.copy()
        record = simulation.step()
        gradients = np.einsum("nij,nj->ni", problem.matrices, before - problem.optima)
        away = gradients - simulation.state.memory.rows(np.arange(4)) / scale
        assert record.metrics["memory_error"] == pytest.approx(np.mean(np.sum(away**2, axis=1)), rel=1e-9)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_gradients_of_an_engine_are_those_of_all_samples(engine: str) -> None:
    simulation = build(
        make_settings(num_clients=3, rounds=1, engine=engine, threads=1, memory_error=True), progress=False
    )
    trainer: Any = simulation.trainer
    found = trainer.gradients(simulation.model)
    model = trainer.task.build(0)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(np.array(simulation.model)), model.parameters())
    for client in range(3):
        model.zero_grad()
        x, y = trainer.task.train.client(client)
        trainer.task.loss(model(x), y).backward()
        wanted = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).numpy()
        np.testing.assert_allclose(found[client], wanted, atol=2e-6)


def test_recorded_at_evaluations_and_changes_nothing_else() -> None:
    common: dict[str, Any] = {"num_clients": 4, "rounds": 4, "evaluate_every": 2, "engine": "loop", "threads": 1}
    asked = simulate("digits", "fedstale", beta=0.5, p_min=0.5, memory_error=True, train_loss=True, **common)
    plain = simulate("digits", "fedstale", beta=0.5, p_min=0.5, train_loss=True, **common)
    assert np.isfinite(asked.metrics["memory_error"]).tolist() == [False, True, False, True]
    assert "memory_error" not in plain.metrics
    np.testing.assert_array_equal(asked.model, plain.model)
    np.testing.assert_array_equal(asked.metrics["train_loss"], plain.metrics["train_loss"])


@pytest.mark.parametrize("rule", ["u-fedavg", "afa-cs", "fedlaavg"])
def test_a_rule_that_remembers_no_updates_is_refused(rule: str) -> None:
    with pytest.raises(InvalidInput, match="needs a rule that stores client updates"):
        build(make_settings(task="quadratic", num_clients=3, rule=rule, memory_error=True))
    assert not eligible(make_settings(memory_error=True))
