"""Rivals of the stale family: what is particular to each of them."""

from __future__ import annotations

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules

N, D = 5, 7


def test_fedawe_with_everybody_in_every_round_is_fedavg() -> None:
    echo, average = rules.FedAWE(), fs.FedAvg()
    one, two = (rule.init(fs.Federation(N, D), model=np.ones(D)) for rule in (echo, average))
    for t in range(6):
        told = fs.Round(t, np.arange(N), np.random.default_rng(t).normal(size=(N, D)))
        assert echo.step(one, told) == pytest.approx(average.step(two, told), abs=1e-12)


def test_fedawe_clients_keep_the_model_they_fetched_last() -> None:
    """Echoes add up to the number of rounds (Proposition 1), and who was away starts where it left off."""
    rule = rules.FedAWE()
    state = rule.init(fs.Federation(3, 1), memory="ram:float64", model=np.zeros(1))
    ones = np.ones((2, 1))
    rule.step(state, fs.Round(0, [0, 1], ones))
    assert state.model == pytest.approx([-1.0])
    rule.step(state, fs.Round(1, [0], ones[:1]))
    assert state.model == pytest.approx([-2.0])
    local = rule.local(state, np.array([0, 1, 2]))
    assert local is not None
    assert local.start is not None
    assert local.start[:, 0] == pytest.approx([-2.0, -1.0, 0.0])  # 1 fetched after round 0, 2 has the first model
    rule.step(state, fs.Round(2, [1, 2], ones))  # −1 − 2·1 and 0 − 3·1: everybody has counted three rounds
    assert state.model == pytest.approx([-3.0])


def test_fedawe_a_client_that_joins_echoes_nothing() -> None:
    rule = rules.FedAWE()
    state = rule.init(fs.Federation(1, 1), model=np.zeros(1))
    for t in range(4):
        rule.step(state, fs.Round(t, [0], np.ones((1, 1))))
    state.grow(2)
    local = rule.local(state, np.array([1]))
    assert local is not None
    assert local.start == pytest.approx(np.array([[-4.0]]))
    assert rule.combine(state, fs.Round(4, [1], np.ones((1, 1)))) == pytest.approx([1.0])


def test_fedawe_needs_the_model() -> None:
    rule = rules.FedAWE()
    state = rule.init(fs.Federation(2, 1))
    rule.combine(state, fs.Round(0, [0], np.ones((1, 1))))
    with pytest.raises(fs.InvalidInput, match="pass model=w to init"):
        rule.combine(state, fs.Round(1, [1], np.ones((1, 1))))
