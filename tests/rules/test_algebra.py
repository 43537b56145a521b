"""The identities of the supplement: three forms, limits of β, full participation, empty memory, empty rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedstale as fs

Array = NDArray[np.float64]
N, D = 5, 7


def run(rule: fs.Rule, seed: int, rounds: int = 12, dtype: Any = np.float64, d: int = D) -> list[Array]:
    """Feed a rule a random history; the same seed gives the same history to every rule."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.2, 1.0, N)
    state = rule.init(fs.Federation(N, d, probabilities=p), memory=f"ram:{np.dtype(dtype).name}")
    result = []
    for t in range(rounds):
        who = np.flatnonzero(rng.random(N) < p)
        updates = rng.normal(size=(N, d)).astype(dtype)[who]
        result.append(np.asarray(rule.combine(state, fs.Round(t, who, updates))))
    return result


@given(seed=st.integers(0, 10**6), beta=st.floats(0, 1))
def test_three_forms_agree(seed: int, beta: float) -> None:
    """Eqs. fedstale1, fedstale2 and fedstale3 of the supplement, written out, against the rule."""
    rng = np.random.default_rng(seed)
    p, h, g = rng.uniform(0.05, 1, N), rng.normal(size=(N, D)), rng.normal(size=(N, D))
    came = rng.random(N) < p
    ber = came[:, None] / p[:, None]
    fedavg = np.mean(ber * g, 0)
    fedvarp = np.mean(h, 0) + np.mean(ber * (g - h), 0)
    form1 = (1 - beta) * fedavg + beta * fedvarp
    form2 = np.mean(beta * h, 0) + np.mean(ber * (g - beta * h), 0)
    form3 = np.mean(ber * g, 0) - beta * np.mean((ber - 1) * h, 0)
    rule = fs.FedStale(beta=beta)
    state = rule.init(fs.Federation(N, D, probabilities=p), memory="ram:float64")
    state.memory.replace(np.arange(N), h)
    who = np.flatnonzero(came)
    ours = rule.combine(state, fs.Round(0, who, g[who]))
    for form in (form1, form2, form3):
        assert ours == pytest.approx(form, abs=1e-12, rel=1e-12)
    assert state.memory.rows(who) == pytest.approx(g[who])  # h_i ← Δ_i, after the update was computed
    absent = np.flatnonzero(~came)
    assert state.memory.rows(absent) == pytest.approx(h[absent])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [3, 10_000])
def test_ends_of_beta_equal_their_namesakes_bit_for_bit(dtype: Any, d: int) -> None:
    for beta, namesake in ((0.0, fs.UnbiasedFedAvg()), (1.0, fs.UnbiasedFedVARP())):
        ours, theirs = run(fs.FedStale(beta=beta), 4, dtype=dtype, d=d), run(namesake, 4, dtype=dtype, d=d)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert ours[0].dtype == dtype


@pytest.mark.parametrize("rule", [fs.FedStale(beta=0.7), fs.FedStale(beta="auto"), fs.FedVARP(), fs.FedAvg()], ids=repr)
def test_full_participation_and_empty_memory_give_the_mean(rule: fs.Rule) -> None:
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(N, D))
    state = rule.init(fs.Federation(N, D, probabilities=1.0), memory="ram:float64")
    for t in range(3):  # the memory is empty in round 0 and full afterwards: everybody is here, so no matter
        assert rule.combine(state, fs.Round(t, np.arange(N), updates + t)) == pytest.approx((updates + t).mean(0))
    if rule.unbiased:
        empty = rule.init(fs.Federation(N, D, probabilities=0.5), memory="ram:float64")
        delta = rule.combine(empty, fs.Round(0, [1, 3], updates[[1, 3]]))
        assert delta == pytest.approx(updates[[1, 3]].sum(0) / 0.5 / N)


def test_empty_round_applies_the_stale_term() -> None:
    rule = fs.FedStale(beta=0.6)
    state = rule.init(fs.Federation(4, 2, probabilities=0.5))
    rows = np.array([[1.0, 2.0], [3.0, 6.0]])
    rule.combine(state, fs.Round(0, [0, 2], rows))
    delta = rule.combine(state, fs.Round(1, [], np.empty((0, 2))))
    assert delta == pytest.approx(0.6 * rows.sum(0) / 4)
    assert rule.combine(state, fs.Round(2, [], [])) == pytest.approx(delta)
    assert fs.FedAvg().combine(fs.FedAvg().init(fs.Federation(4, 2)), fs.Round(0, [], [])) == pytest.approx([0, 0])


@pytest.mark.parametrize("rule", [fs.FedAvg(), fs.FedVARP()], ids=repr)
def test_a_round_of_clients_without_weight_moves_nothing(rule: fs.Rule) -> None:
    state = rule.init(fs.Federation(2, D, weights=[0.0, 1.0]))
    assert np.array_equal(rule.combine(state, fs.Round(0, [0], np.ones((1, D)), probabilities=0.5)), np.zeros(D))


def test_order_of_participants_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    updates, p = rng.normal(size=(3, D)), np.array([0.2, 0.5, 0.9])
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        rule = fs.FedStale(beta=0.5)
        state = rule.init(fs.Federation(N, D), memory="ram:float64")
        for t in range(2):
            delta = rule.combine(state, fs.Round(t, np.array([4, 0, 2])[order], updates[order], probabilities=p[order]))
        results.append((delta, state.memory.rows([4, 0, 2])))
    assert results[0][0] == pytest.approx(results[1][0])
    assert np.array_equal(results[0][1], results[1][1])


def test_normalised_form() -> None:
    """Supplement: g_i = Δ_i/(η_c K) with η = η_s η_c K takes the same step."""
    rng = np.random.default_rng(2)
    lr, k, model = 0.05, 5, rng.normal(size=D)
    updates = rng.normal(size=(4, N, D))
    models = []
    for scale, server_lr in ((1.0, 0.7), (1 / (lr * k), 0.7 * lr * k)):
        rule = fs.FedStale(beta=0.4, server_lr=server_lr)
        state = rule.init(fs.Federation(N, D, probabilities=0.5), memory="ram:float64", model=model)
        for t in range(4):
            rule.step(state, fs.Round(t, [t, t + 1], scale * updates[t][[t, t + 1]]))
        models.append(state.model)
    assert models[0] == pytest.approx(models[1])


def test_torch_in_torch_out_without_a_copy_of_the_updates() -> None:
    torch = pytest.importorskip("torch")
    updates = torch.randn(2, D)
    ours = fs.FedStale(beta=0.5)
    results = []
    for given_updates in (updates, updates.numpy(), list(updates)):
        state = ours.init(fs.Federation(N, D, probabilities=0.5))
        results.append(ours.combine(state, fs.Round(0, [1, 4], given_updates)))
    assert isinstance(results[0], torch.Tensor)
    assert results[0].dtype == torch.float32
    assert isinstance(results[2], torch.Tensor)
    assert np.array_equal(results[0].numpy(), results[1])
    from fedstale.federation import as_rows

    assert np.shares_memory(as_rows(updates, 2, D)[0], updates.numpy())
    assert isinstance(ours.combine(state, fs.Round(1, [0], torch.randn(1, D, dtype=torch.bfloat16))), torch.Tensor)


def test_clients_may_join() -> None:
    """After a join α_i = 1/N with the new N; the rows of the others count with the new weight at once."""
    rule = fs.FedStale(beta=1.0)
    state = rule.init(fs.Federation(2, 1))
    rule.combine(state, fs.Round(0, [0, 1], np.array([[2.0], [4.0]]), probabilities=1.0))
    state.grow(3)
    assert rule.combine(state, fs.Round(1, [], [])) == pytest.approx([2.0])
    rule.combine(state, fs.Round(2, [2], np.array([[9.0]]), probabilities=1.0))
    assert rule.combine(state, fs.Round(3, [], [])) == pytest.approx([5.0])
