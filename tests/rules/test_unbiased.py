"""Unbiasedness, exactly: Σ over all 2^6 participation sets of P(set)·Δ(set) against Σ α_i Δ_i."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from tests.combinations import combinations
from tests.enumeration import expectation, outcomes

N, D = 6, 5
rng = np.random.default_rng(7)
P = np.array([1.0, 0.9, 0.5, 0.3, 0.1, 0.02])
H = rng.normal(size=(N, D))
UPDATES = rng.normal(size=(N, D))
ALPHA = rng.dirichlet(np.ones(N))
PRECISIONS = ["float64", "float32", "float16", "bfloat16"]
UNBIASED = [
    fs.UnbiasedFedAvg(),
    fs.UnbiasedFedVARP(),
    *(fs.FedStale(beta=beta) for beta in (0.0, 0.2, 0.5, 0.8, 1.0)),
    fs.FedStale(beta="auto"),
    fs.FedStale(beta="auto-per-client"),
    fs.FedStale(beta="theory"),
    fs.FedStale(beta={0: 0.9, 10: 0.1}),
    fs.rules.UnbiasedFedBuff(max_step=None),
    fs.rules.FedStaleAsync(beta=0.7, half_life=3.0, max_step=None),
    fs.rules.FedStaleAsync(half_life=0.05, max_step=None),
    fs.rules.UnbiasedFedSteer(),
    fs.rules.UnbiasedFedSteer(core=3, ridge=0.5),
    fs.rules.TemperedFedStale(theta=1.0, stand_in=False),
    fs.rules.TemperedFedStale(theta=1.0, beta=0.3, refresh=0.0, stand_in=False),
]


def prepared(rule: fs.Rule, precision: str, weights: NDArray[np.float64] | str) -> Callable[[], fs.State]:
    """A state after some rounds in which everybody came at least once, so that h_i and β are arbitrary."""

    def prepare() -> fs.State:
        federation = fs.Federation(N, D, weights=weights, sizes=np.arange(1, N + 1))
        state = rule.init(federation, memory=f"ram:{precision}")
        noise = np.random.default_rng(3)
        for t in range(4):
            who = np.arange(N) if t == 0 else np.flatnonzero(noise.random(N) < 0.6)
            rule.combine(state, fs.Round(t, who, H[who] + 0.5 * noise.normal(size=(len(who), D)), probabilities=P[who]))
        return state

    return prepare


@pytest.mark.parametrize(("precision", "weights"), combinations(PRECISIONS, ["given", "client", "sample"]))
@pytest.mark.parametrize("rule", UNBIASED, ids=repr)
def test_unbiased_for_any_memory(rule: fs.Rule, precision: str, weights: str) -> None:
    given = ALPHA if weights == "given" else weights
    alpha = {"client": np.full(N, 1 / N), "sample": np.arange(1, N + 1) / 21, "given": ALPHA}[weights]
    prepare = prepared(rule, precision, given)
    assert expectation(rule, prepare, UPDATES, P) == pytest.approx(alpha @ UPDATES, abs=1e-10)


@pytest.mark.parametrize("rule", [fs.FedAvg(), fs.FedVARP()], ids=repr)
def test_originals_are_biased_when_probabilities_differ(rule: fs.Rule) -> None:
    mean = expectation(rule, prepared(rule, "float64", "client"), UPDATES, P)
    assert np.linalg.norm(mean - UPDATES.mean(0)) > 0.05


@pytest.mark.parametrize("rule", [fs.FedAvg(), fs.FedVARP()], ids=repr)
def test_originals_are_unbiased_given_that_someone_came_when_probabilities_agree(rule: fs.Rule) -> None:
    """With one common p, averaging those who came is unbiased, apart from the round in which nobody does."""
    p = np.full(N, 0.4)
    prepare = prepared(rule, "float64", "client")
    nobody = np.asarray(rule.combine(prepare(), fs.Round(4, [], np.empty((0, D)))))
    empty = 0.6**N
    mean = expectation(rule, prepare, UPDATES, p)
    assert (mean - empty * nobody) / (1 - empty) == pytest.approx(UPDATES.mean(0), abs=1e-10)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_variance_formula(beta: float, precision: str) -> None:
    """Spec §7: the participation noise is exactly Σ α_i² ((1−p_i)/p_i) ‖Δ_i − β h_i‖²."""
    rule = fs.FedStale(beta=beta)
    prepare = prepared(rule, precision, ALPHA)
    stale = prepare().memory.rows(np.arange(N))
    mean = ALPHA @ UPDATES
    noise = sum(chance * np.sum((delta - mean) ** 2) for chance, delta in outcomes(rule, prepare, UPDATES, P))
    formula = np.sum(ALPHA**2 * (1 - P) / P * np.sum((UPDATES - beta * stale) ** 2, axis=1))
    assert noise == pytest.approx(formula, rel=1e-10)
