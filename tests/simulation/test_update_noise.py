"""Noise and bias of the update: the closed forms over all sets, and every rule runs as without them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.participation import Participation
from fedstale.rules import RULES
from fedstale.simulation import build, make_settings, simulate
from fedstale.simulation.update_noise import everybody_round, noise_of_update, other_draws
from fedstale.sweeps.lockstep import eligible
from fedstale.theory import tempered_bias, tempered_noise

P = np.array([1.0, 0.5, 0.3, 0.8])
SETS = [np.flatnonzero(present) for present in product([False, True], repeat=len(P))]
CHANCES = [float(np.prod(np.where(np.isin(range(len(P)), who), P, 1 - P))) for who in SETS]
RUN: dict[str, Any] = {"task": "quadratic", "num_clients": 4, "lr": 0.02, "rounds": 12}


@pytest.mark.parametrize(("theta", "beta"), [(1.0, 0.0), (1.0, 0.7), (0.5, 1.0), (0.0, 1.0)])
def test_all_sets_give_the_closed_forms(theta: float, beta: float) -> None:
    rule = fs.TemperedFedStale(theta=theta, beta=beta, stand_in=False, refresh=1.0)
    run = build(make_settings(**RUN), rule=rule, participation=Participation(fs.Bernoulli(P)))
    for _ in range(8):
        run.step()
    fresh, alpha = np.asarray(everybody_round(run).updates), run.federation.alpha()
    stale = beta * run.state.memory.rows(np.arange(len(P)))
    length = np.sum((alpha @ fresh) ** 2)
    before = run.model.tobytes(), run.state.memory.rows(np.arange(len(P))).tobytes()
    found = noise_of_update(run, SETS, CHANCES)
    assert found["update_noise"] == pytest.approx(tempered_noise(fresh, stale, P, alpha, theta) / length, rel=1e-9)
    bias = np.sum(tempered_bias(fresh, stale, P, alpha, theta) ** 2) / length
    assert found["update_bias"] == pytest.approx(bias, rel=1e-9, abs=1e-20)
    assert found["combine_seconds"] > 0
    assert (run.model.tobytes(), run.state.memory.rows(np.arange(len(P))).tobytes()) == before


def test_samples_are_close_to_all_sets() -> None:
    run = build(make_settings(**RUN, rule="u-fedavg"), participation=Participation(fs.Bernoulli(P)))
    exact = noise_of_update(run, SETS, CHANCES)["update_noise"]
    sampled = noise_of_update(run, other_draws(run, 2000))
    assert sampled["update_noise"] == pytest.approx(exact, rel=0.1)
    assert sampled["update_bias"] < 0.01 * exact


@pytest.mark.filterwarnings("ignore::fedstale.rules.OutsideCoverage")
@pytest.mark.parametrize("name", RULES)
def test_a_run_is_the_same_with_and_without(name: str) -> None:
    plain, measured = (
        simulate(rule=name, participation=fs.Bernoulli(P), update_noise=draws, progress=False, **RUN)
        for draws in (0, 4)
    )
    assert np.array_equal(plain.metrics["excess_loss"], measured.metrics["excess_loss"])
    noise = measured.metrics["update_noise"]
    assert np.isfinite(noise[~np.isnan(noise)]).all()
    assert np.nanmin(noise) >= 0
    assert "update_noise" not in plain.metrics


def test_everybody_always_has_no_noise() -> None:
    result = simulate(rule="fedavg", p_min=1.0, update_noise=2, progress=False, **RUN)
    assert np.nanmax(result.metrics["update_noise"]) == pytest.approx(0.0, abs=1e-20)
    assert np.nanmax(result.metrics["update_bias"]) == pytest.approx(0.0, abs=1e-20)


def test_what_it_cannot_do() -> None:
    for wrong in ({"update_noise": 1}, {"update_noise": 4, "memory": "lowrank:2"}):
        with pytest.raises(InvalidInput, match="update_noise"):
            build(make_settings(**RUN, rule="fedstale", **wrong))
    assert not eligible(make_settings(update_noise=4))
