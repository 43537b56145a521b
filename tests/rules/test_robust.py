"""Robust combination of fresh residuals: what it is, what it costs in bias, and what it withstands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import NonFinite
from fedstale.rules import Guarded, Robust, Rule, ServerAdam, robustly
from tests.enumeration import expectation, participation_sets

N, D = 7, 4
rng = np.random.default_rng(5)
H, UPDATES = rng.normal(size=(2, N, D))
P = np.array([1.0, 0.9, 0.8, 0.7, 0.5, 0.5, 0.3])
EVERYBODY = np.arange(N)


def prepared(rule: Rule) -> fs.State:
    state = rule.init(fs.Federation(N, D), memory="ram:float64")
    rule.combine(state, fs.Round(0, EVERYBODY, H, probabilities=P))
    return state


def bare(rule: Rule) -> fs.State:
    """The state with the memory H, as the rule alone would have it."""
    inner = rule.rule if isinstance(rule, Robust) else rule
    return prepared(inner)


@pytest.mark.parametrize("memory", [True, False])
def test_with_equal_weights_it_is_the_median_or_the_trimmed_mean_of_the_residuals(memory: bool) -> None:
    inner: Rule = fs.UnbiasedFedVARP() if memory else fs.UnbiasedFedAvg()
    h = H if memory else np.zeros_like(H)
    ones = np.ones(N)
    for wrapped, wanted in (
        (Robust(inner, method="median"), np.median(UPDATES - h, axis=0)),
        (Robust(inner, method="trimmed", trim=0.25), np.sort(UPDATES - h, axis=0)[2:5].mean(axis=0)),
    ):
        state = bare(wrapped)
        delta = wrapped.combine(state, fs.Round(1, EVERYBODY, UPDATES, probabilities=ones))
        assert delta == pytest.approx(h.mean(axis=0) + wanted)


def test_the_filter_gives_an_outlier_what_it_sent_before() -> None:
    rule = Robust(fs.UnbiasedFedVARP(), method="norms", ratio=3.0)
    updates = H + 0.1
    updates[3] += 100.0
    state = bare(rule)
    delta = rule.combine(state, fs.Round(1, EVERYBODY, updates, probabilities=np.ones(N)))
    assert delta == pytest.approx(H.mean(axis=0) + 0.1 * 6 / 7)
    assert state.report["robust_changed"] == 1
    assert state.memory.rows([3])[0] == pytest.approx(H[3])


@pytest.mark.parametrize("method", ["median", "trimmed", "norms"])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_bias_is_what_was_cut_off(method: Any, beta: float) -> None:
    """E[Δ] − Σ α_i Δ_i = E[Σ_S (α_i/p_i)(r_i' − r_i)], over all sets; none where the memory foretells the round."""
    rule = Robust(fs.FedStale(beta=beta), method=method, ratio=1.2)
    mean = expectation(rule, lambda: bare(rule), UPDATES, P)
    cut = np.zeros(D)
    for chance, who in participation_sets(P):
        if chance and len(who) >= 3:
            state = bare(rule)
            rule.combine(state, fs.Round(1, who, UPDATES[who], probabilities=P[who]))
            cut += chance * ((state.memory.rows(who) - UPDATES[who]) / N / P[who][:, None]).sum(axis=0)
    assert mean - UPDATES.mean(axis=0) == pytest.approx(cut, abs=1e-12)
    assert np.linalg.norm(cut) > 0.01
    same = expectation(rule, lambda: bare(rule), H, P)
    assert same == pytest.approx(H.mean(axis=0), abs=1e-12)


@pytest.mark.parametrize("method", ["median", "trimmed", "norms"])
def test_one_of_seven_cannot_move_the_model_far(method: Any) -> None:
    """Whatever it sends, the update stays within what the others sent."""
    rule = Robust(fs.UnbiasedFedVARP(), method=method)
    hostile = H + 0.1
    for size in (1e3, 1e6, 1e12):
        hostile[2] = size
        delta = rule.combine(bare(rule), fs.Round(1, EVERYBODY, hostile, probabilities=np.ones(N)))
        assert np.abs(delta - H.mean(axis=0)).max() < 0.2


def test_few_participants_nothing_to_trim_and_bad_numbers() -> None:
    rule = Robust(fs.FedStale(beta=1.0), method="median")
    for who in (np.array([], dtype=int), np.array([1]), np.array([1, 4])):
        one, two = bare(rule), bare(rule)
        there = fs.Round(1, who, UPDATES[who], probabilities=P[who])
        assert np.array_equal(rule.combine(one, there), rule.rule.combine(two, there))
    for method in ("median", "trimmed", "norms"):
        wrapped, bad = Robust(fs.FedStale(), method=method), UPDATES.copy()
        bad[3, 1] = np.nan
        with pytest.raises(NonFinite, match="client 3"):
            wrapped.combine(bare(wrapped), fs.Round(1, EVERYBODY, bad, probabilities=P))


def test_many_coordinates_are_done_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [Robust(fs.FedStale(beta=1.0), method=m) for m in ("median", "trimmed", "norms")]
    there = fs.Round(1, EVERYBODY, UPDATES, probabilities=P)
    before = [rule.combine(bare(rule), there) for rule in whole]
    monkeypatch.setattr("fedstale.rules.robust._COLUMNS", 3)
    for rule, delta in zip(whole, before, strict=True):
        assert rule.combine(bare(rule), there) == pytest.approx(delta, abs=1e-14)


def test_it_wraps_and_is_wrapped_and_is_named_in_one_word() -> None:
    for rule in (
        Guarded(Robust(fs.FedStale()), clip_norm=1.0),
        ServerAdam(Robust(fs.FedStale())),
        Robust(ServerAdam()),
    ):
        state = rule.init(fs.Federation(N, D))
        rule.combine(state, fs.Round(0, EVERYBODY, UPDATES, probabilities=P))
    inner = fs.FedStale()
    assert robustly(inner, None) is inner
    assert robustly(inner, "median") == Robust(inner, method="median")
    assert robustly(inner, "trimmed:0.1") == Robust(inner, method="trimmed", trim=0.1)
    assert robustly(inner, "norms:5") == Robust(inner, method="norms", ratio=5.0)


@pytest.mark.parametrize("spec", ["mean", "", "trimmed:x", "trimmed:0.5", "norms:0.5", "median:2", 3])
def test_what_makes_no_sense_is_refused(spec: Any) -> None:
    with pytest.raises(ValueError, match=r"robust|trim|ratio|median"):
        robustly(fs.FedStale(), spec)
    with pytest.raises(ValueError, match="rule"):
        Robust(Robust(fs.FedStale()))
    with pytest.raises(ValueError, match="differences between"):
        Robust(fs.rules.SVRG())
