"""Clustered and low-rank memories: unbiased by enumeration, small as promised, exact sums of what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale.memory import Clustered, LowRank, make
from fedstale.memory.kernel import Mix
from tests.combinations import combinations
from tests.enumeration import expectation, outcomes

N, D = 6, 40
P = np.array([1.0, 0.9, 0.5, 0.3, 0.1, 0.02])
KINDS = ["clustered:2", "clustered:3:float64", "clustered:3:bfloat16", "lowrank:1", "lowrank:2", "lowrank:3:float64"]
every_kind = pytest.mark.parametrize("where", KINDS)


def filled(where: str, rounds: int = 5, rule: fs.Rule | None = None, d: int = D) -> fs.State:
    """A state after some random rounds in which some clients came, and client 5 never."""
    rule = rule or fs.FedStale(beta=0.7)
    state = rule.init(fs.Federation(N, d, weights="sample", sizes=np.arange(1, N + 1)), memory=where)
    rng = np.random.default_rng(3)
    for t in range(rounds):
        who = np.flatnonzero(rng.random(N) < [0.9, 0.8, 0.6, 0.5, 0.3, 0.0])
        updates = (rng.normal(size=(len(who), d)) + 1).astype(np.float32)
        rule.combine(state, fs.Round(t, who, updates, probabilities=P[who]))
    return state


@pytest.mark.parametrize(
    ("rule", "where"),
    combinations(
        [fs.FedStale(beta=0.7), fs.UnbiasedFedVARP(), fs.FedStale(), fs.FedStale(beta="auto-per-client")], KINDS
    ),
    ids=repr,
)
def test_unbiased_by_enumeration(rule: fs.Rule, where: str) -> None:
    """Σ over all 2^6 participation sets of P(set)·Δ(set) is Σ α_i Δ_i, whatever the approximation made of the h_i."""
    updates = np.random.default_rng(8).normal(size=(N, D))
    alpha = np.arange(1, N + 1) / 21
    assert expectation(rule, lambda: filled(where, rule=rule), updates, P) == pytest.approx(alpha @ updates, abs=1e-10)


@every_kind
def test_the_noise_is_that_of_the_stored_rows(where: str) -> None:
    rule, alpha = fs.FedStale(beta=0.7), np.arange(1, N + 1) / 21
    updates = np.random.default_rng(8).normal(size=(N, D)) + 1
    h = filled(where).memory.rows(np.arange(N))
    mean = alpha @ updates
    noise = sum(c * np.sum((delta - mean) ** 2) for c, delta in outcomes(rule, lambda: filled(where), updates, P))
    formula = np.sum(alpha**2 * (1 - P) / P * np.sum((updates - 0.7 * h) ** 2, axis=1))
    assert noise == pytest.approx(formula, rel=1e-9)
    assert np.array_equal(h[5], np.zeros(D))  # never seen


@every_kind
def test_the_sum_is_exact_for_what_is_stored(where: str) -> None:
    state = filled(where, rounds=200)
    memory = state.memory
    assert memory.total == pytest.approx(memory.masses @ memory.rows(np.arange(N)), abs=1e-11)
    assert memory.total == pytest.approx(memory.exact_total(), abs=1e-11)
    assert memory.masses.tolist() == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize("k", [1, 4])
def test_bytes_as_promised(k: int, tmp_path: Path) -> None:
    """K·d numbers for clusters; k·d for the basis and N·k for the coefficients; N·d for a row each."""
    clients, d = 300, 2000
    sizes = {}
    for where in (f"clustered:{k}", f"lowrank:{k}", "ram"):
        rule = fs.FedStale(beta=0.5)
        state = rule.init(fs.Federation(clients, d), memory=where)
        rng = np.random.default_rng(0)
        for t in range(10):
            who = np.arange(30 * t, 30 * t + 30)
            rule.combine(state, fs.Round(t, who, rng.normal(size=(30, d)).astype(np.float32), probabilities=0.5))
        state.save(tmp_path / where)
        files = sum(file.stat().st_size for file in (tmp_path / where).iterdir())
        sizes[where] = state.memory.nbytes, state.nbytes, files
        state.close()
    assert sizes[f"clustered:{k}"][0] == 4 * k * d
    assert sizes[f"lowrank:{k}"][0] == 4 * k * d + 8 * clients * k
    assert sizes["ram"][0] == 4 * clients * d
    for where in (f"clustered:{k}", f"lowrank:{k}"):
        nbytes, server, files = sizes[where]
        small = 8 * d + 4 * 8 * clients  # running sum; slots, masses and the like
        assert nbytes + 8 * d <= server <= nbytes + small
        assert files <= nbytes + small + 4096
        assert files < sizes["ram"][2] / 20


def test_a_rank_as_large_as_the_data_loses_nothing() -> None:
    """Updates in a 3-dimensional space, rank 3: the memory is the exact one."""
    rng = np.random.default_rng(2)
    space = rng.normal(size=(3, D))
    exact, low = make("ram:float64", N, D), make("lowrank:3:float64", N, D)
    for _ in range(50):
        who = rng.permutation(N)[: rng.integers(0, N)]
        updates = rng.normal(size=(len(who), 3)) @ space
        for memory in (exact, low):
            memory.replace(who, updates, 0.5)
        assert low.rows(np.arange(N)) == pytest.approx(exact.rows(np.arange(N)), abs=1e-9)
        assert low.total == pytest.approx(exact.total, abs=1e-9)


def test_the_rank_kept_is_the_best_one() -> None:
    """After one round of everybody, C·B is the truncated singular value decomposition of the updates."""
    updates = np.random.default_rng(4).normal(size=(N, D)) * np.array([9, 5, 3, 1, 0.5, 0.1])[:, None]
    u, s, vt = np.linalg.svd(updates, full_matrices=False)
    for rank in (1, 2, 4):
        memory = make(f"lowrank:{rank}:float64", N, D)
        memory.replace(np.arange(N), updates)
        best = (u[:, :rank] * s[:rank]) @ vt[:rank]
        assert memory.rows(np.arange(N)) == pytest.approx(best, abs=1e-9)


def test_clusters_are_means_of_their_participants() -> None:
    memory = Clustered(N, D, make("ram:float64", 1, 1).precision, 2)
    memory.assign([0, 1, 0, 1, 0, 1])
    updates = np.random.default_rng(5).normal(size=(N, D))
    memory.replace([0, 2, 3], updates[[0, 2, 3]], [1.0, 2.0, 3.0])
    first, second = (updates[0] + updates[2]) / 2, updates[3]
    assert memory.rows([0, 2, 3]) == pytest.approx(np.array([first, first, second]))
    assert memory.rows([4, 5]) == pytest.approx(np.zeros((2, D)))  # not seen yet: no stale update
    assert memory.total == pytest.approx(3 * first + 3 * second)
    memory.replace([4], updates[[4]])  # and with it the row of the whole cluster
    assert memory.rows([0, 4]) == pytest.approx(np.array([updates[4]] * 2))
    with pytest.raises(fs.InvalidInput, match="after the first round"):
        memory.assign([0] * N)


def test_what_cannot_be_asked_of_clusters_is_refused() -> None:
    memory = Clustered(N, D, make("ram:float64", 1, 1).precision, 2)
    for wrong, says in (([0, 1], "6 integers"), ([0.5] * N, "6 integers"), ([2] * N, "0 … 1"), ([-1] * N, "0 … 1")):
        with pytest.raises(fs.InvalidInput, match=says):
            memory.assign(wrong)
    with pytest.raises(fs.InvalidInput, match="use one with rows"):
        memory.forget([0])
    with pytest.raises(fs.InvalidInput, match="does not shrink"):
        memory.grow(N - 1)


def test_given_clusters_survive_a_save(tmp_path: Path) -> None:
    rule = fs.FedStale(beta=1.0)
    state = rule.init(fs.Federation(N, D), memory="clustered:2")
    assert isinstance(state.memory, Clustered)
    state.memory.assign([1, 1, 0, 0, 1, 0])
    state.save(tmp_path)
    again = fs.State.load(tmp_path).memory
    assert isinstance(again, Clustered)
    assert again.clusters.tolist() == [1, 1, 0, 0, 1, 0]


@every_kind
def test_refused_and_uncommitted_rounds_change_nothing(where: str) -> None:
    state = filled(where)
    memory = state.memory
    before = memory.rows(np.arange(N)), memory.total.copy(), memory.masses.copy(), memory.slots.copy()

    def unchanged() -> bool:
        now: tuple[NDArray[Any], ...] = memory.rows(np.arange(N)), memory.total, memory.masses, memory.slots
        return all(np.array_equal(a, b) for a, b in zip(before, now, strict=True))

    updates = np.ones((2, D))
    updates[1, 3] = np.nan
    with pytest.raises(fs.InvalidInput, match=r"client 5.*finite"):
        fs.FedStale(beta=0.7).combine(state, fs.Round(9, [0, 5], updates, probabilities=0.5))
    assert unchanged()
    one = np.ones(2)
    exchange = memory.prepare_exchange(np.array([0, 5]), list(np.ones((2, D))), Mix(one, one, 0.0, one))
    assert unchanged()
    memory.replace([1], np.ones((1, D)))
    with pytest.raises(fs.InvalidInput, match="changed after this exchange was prepared"):
        exchange.commit()


@every_kind
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_extreme_sizes(where: str, size: float) -> None:
    memory = make(where.replace("bfloat16", "float64"), N, D)
    for t in range(3):
        memory.replace([0, 1 + t], np.full((2, D), size))
    assert memory.rows([0]) == pytest.approx(np.full((1, D), size), rel=1e-6)
    assert np.isfinite(memory.total).all()


@every_kind
def test_clients_may_join(where: str) -> None:
    rule = fs.FedStale(beta=0.5)
    state = rule.init(fs.Federation(2, D), memory=where)
    rule.combine(state, fs.Round(0, [0, 1], np.ones((2, D)), probabilities=0.5))
    state.grow(5)
    rule.combine(state, fs.Round(1, [4], np.full((1, D), 2.0), probabilities=0.5))
    assert state.memory.seen.tolist() == [0, 1, 4]
    assert state.memory.total == pytest.approx(state.memory.exact_total(), rel=1e-6)


def test_client_memory_is_never_approximated() -> None:
    from fedstale import rules

    for name in ("scaffold", "feddyn", "fedlaavg", "fedawe"):
        state = rules.make(name).init(fs.Federation(N, D), memory="lowrank:2:float64")
        (memory,) = state.of_rule.memories().values()
        assert not isinstance(memory, LowRank)
        assert memory.precision.name == "float64"


@pytest.mark.parametrize("where", ["clustered", "clustered:0", "clustered:x", "lowrank:-1", "lowrank:2.5", "lowrank:"])
def test_descriptions_that_are_refused(where: str) -> None:
    with pytest.raises(fs.InvalidInput, match=r"memory = .*lowrank:K"):
        make(where, N, D)
    with pytest.raises(fs.InvalidInput, match="unknown precision 'float8'"):
        make("lowrank:2:float8", N, D)
