"""β that chooses itself: its closed form, its unbiasedness in time, and what it earns on Figure 1's problem."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from benchmarks.two_clients import K, TwoClients

import fedstale as fs
from fedstale import beta as betas
from fedstale import theory
from fedstale.checks import Float
from fedstale.rules.stale import StaleState
from fedstale.tasks.quadratic import Quadratic
from tests.combinations import combinations
from tests.enumeration import participation_sets

N, D = 6, 9
RARE = {"always": np.array([1.0, 0.01]), "often": np.array([0.5, 0.01])}
CAME = {name: np.random.default_rng(0).random((4000, 40, 2)) < p for name, p in RARE.items()}
"""Who comes in Figure 1; the second client is rare, the first always there or often."""


def sums_of(state: fs.State) -> Float:
    """Both sums of "auto", or the common ones of "auto-per-client"."""
    (sums,) = (array for path, array in state.of_rule.arrays().items() if path.endswith("sums"))
    return sums


def test_what_a_round_adds_is_in_expectation_the_sum_over_all_clients() -> None:
    """E over all 2^6 participation sets = (t + 1) Σ α²ω⟨Δ,h⟩ and (t + 1) Σ α²ω‖h‖², however much the p_i differ."""
    rng = np.random.default_rng(2)
    h, updates, alpha = rng.normal(size=(N, D)), rng.normal(size=(N, D)), rng.dirichlet(np.ones(N))
    p = np.array([1.0, 0.9, 0.5, 0.3, 0.1, 0.02])
    for beta in ("auto", "auto-per-client"):
        rule = fs.FedStale(beta=beta)
        mean = np.zeros(2)
        for chance, who in participation_sets(p):
            state = rule.init(fs.Federation(N, D, weights=alpha, probabilities=p), memory="ram:float64")
            rule.combine(state, fs.Round(0, np.arange(N), h))
            before = sums_of(state)
            rule.combine(state, fs.Round(1, who, updates[who]))
            mean += chance * (sums_of(state) - before)
        omega = 2 * alpha**2 * (1 - p) / p
        assert mean == pytest.approx([omega @ np.sum(updates * h, 1), omega @ np.sum(h**2, 1)], rel=1e-12)


def test_auto_equals_its_closed_form() -> None:
    """β of round t from all pairs (Δ_i, h_i) of rounds before t, and from nothing of round t itself."""
    rng = np.random.default_rng(3)
    p = np.array([1.0, 0.9, 0.7, 0.4, 0.3, 0.2])
    alpha = rng.dirichlet(np.ones(N))
    for start in (0.0, 0.7):
        rule = fs.FedStale(beta=betas.Auto(start=start))
        state = rule.init(fs.Federation(N, D, weights=alpha, probabilities=p), memory="ram:float64")
        inner = norm = 0.0
        h = np.zeros((N, D))
        drift = rng.normal(size=(N, D))
        for t in range(60):
            who = np.flatnonzero(rng.random(N) < p)
            updates = drift + rng.normal(size=(N, D))
            rule.combine(state, fs.Round(t, who, updates[who]))
            assert state.report["beta"] == pytest.approx(start if norm == 0 else np.clip(inner / norm, 0, 1))
            for i in who:
                weight = (t + 1) * alpha[i] ** 2 * (1 - p[i]) / p[i] ** 2
                if h[i].any():
                    inner += weight * updates[i] @ h[i]
                    norm += weight * h[i] @ h[i]
                else:
                    inner += weight * start * updates[i] @ updates[i]
                    norm += weight * updates[i] @ updates[i]
                h[i] = updates[i]
        assert 0.1 < state.report["beta"] < 0.9


def test_auto_minimises_the_variance_formula() -> None:
    """Clients that all come twice, with one p: β̂ minimises Σ ‖Δ − βh‖², with the first update voting for 0."""
    rng = np.random.default_rng(4)
    h, g = rng.normal(size=(N, D)) + 1, rng.normal(size=(N, D)) + 1
    rule = fs.FedStale(beta="auto")
    state = rule.init(fs.Federation(N, D, probabilities=0.3), memory="ram:float64")
    rule.combine(state, fs.Round(0, np.arange(N), h))
    rule.combine(state, fs.Round(1, np.arange(N), g))
    rule.combine(state, fs.Round(2, [], []))
    grid = np.linspace(0, 1, 2001)
    noise = [np.sum((0 - b * h) ** 2) + 2 * np.sum((g - b * h) ** 2) for b in grid]
    assert state.report["beta"] == pytest.approx(grid[int(np.argmin(noise))], abs=1e-3)


def test_auto_finds_the_minimiser_when_probabilities_differ_among_the_rare() -> None:
    """20 clients with p = .5 that repeat themselves and two with p = .01 that do not: those two make the noise."""
    p, like = np.repeat([0.5, 0.01], [20, 2]), np.repeat([0.95, 0.0], [20, 2])
    omega = (1 - p) / p
    least = float(omega @ like / omega.sum())  # ‖Δ‖ = ‖h‖ = 1 and ⟨Δ,h⟩ = the correlation, in expectation
    assert least == pytest.approx(0.0872, abs=1e-3)
    found, left = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        size = len(p), 200
        lasting = rng.normal(size=size)
        rule = fs.FedStale()
        state = rule.init(fs.Federation(*size, probabilities=p))
        for t in range(1500):
            who = np.flatnonzero(rng.random(len(p)) < p)
            fresh = (like**0.5)[:, None] * lasting + ((1 - like) ** 0.5)[:, None] * rng.normal(size=size)
            rule.combine(state, fs.Round(t, who, fresh[who] / 20))
        found.append(state.report["beta"])
        left.append(omega @ (1 - 2 * found[-1] * like + found[-1] ** 2) / (omega @ (1 - 2 * least * like + least**2)))
    assert np.mean(found) == pytest.approx(least, abs=0.03)
    assert max(left) < 1.05


def test_those_who_come_often_do_not_decide_for_a_rare_client() -> None:
    """All repeat themselves; β falls when a client with p = .01 is new, and rises with its own returns, not at once."""
    rule = fs.FedStale(beta="auto")
    state = rule.init(fs.Federation(2, 3, probabilities=[0.5, 0.01]), memory="ram:float64")
    seen = []
    for t in range(40):
        who = [0, 1] if t in (30, 32, 34, 36, 38) else [0]
        rule.combine(state, fs.Round(t, who, np.ones((len(who), 3))))
        seen.append(state.report["beta"])
    assert seen[:3] == [0.0, 0.0, pytest.approx(2 / 3)]  # the first update has voted for 0 once, the second for 1 twice
    assert seen[30] > 0.99
    assert seen[31] < 0.01
    assert seen[33] == pytest.approx(0.52, abs=0.01)  # 33 / (31 + 33)
    assert 0.75 < seen[39] < 0.85


def test_the_first_rounds_fade() -> None:
    """Large updates that repeat themselves, then small ones that do not: the first do not keep β up for ever."""
    rng = np.random.default_rng(5)
    rule = fs.FedStale(beta="auto")
    state = rule.init(fs.Federation(2, 50, probabilities=0.5), memory="ram:float64")
    for t in range(400):
        fresh = 2 * np.ones((2, 50)) if t < 20 else rng.normal(size=(2, 50))
        rule.combine(state, fs.Round(t, [0, 1], fresh))
    assert state.report["beta"] < 0.03  # 0.16 if all rounds counted alike


def test_forgetting_follows_a_change() -> None:
    """Updates that turn from repeating themselves to pure noise: β falls, and faster when the past is forgotten."""
    last = {}
    for forget in (1.0, 0.8):
        rng = np.random.default_rng(5)
        rule = fs.FedStale(beta=betas.Auto(forget=forget))
        state = rule.init(fs.Federation(2, 50, probabilities=0.5), memory="ram:float64")
        for t in range(60):
            rule.combine(state, fs.Round(t, [0, 1], np.ones((2, 50)) if t < 30 else rng.normal(size=(2, 50))))
        last[forget] = state.report["beta"]
    assert last[0.8] < 0.1 < last[1.0]


def test_per_client_learns_each_client() -> None:
    """One client repeats itself, one sends noise: their β_i go to 1 and to 0."""
    rng = np.random.default_rng(6)
    rule = fs.FedStale(beta=betas.AutoPerClient(prior=0))
    state = rule.init(fs.Federation(2, 200, probabilities=0.5), memory="ram:float64")
    for t in range(40):
        rule.combine(state, fs.Round(t, [0, 1], np.stack([np.ones(200), rng.normal(size=200)])))
    own = state.of_rule.arrays()["beta/value"]
    assert own[0] == pytest.approx(1.0)
    assert own[1] < 0.1
    stale = state.memory.rows([0, 1])
    assert rule.combine(state, fs.Round(40, [], [])) == pytest.approx((own[:, None] * stale).sum(0) / 2)


def test_the_common_beta_counts_as_a_few_terms_of_every_client() -> None:
    """β_i = (n_i b_i + 4 β̂)/(n_i + 4): near β̂ at first, near the client's own in the end."""
    rng = np.random.default_rng(6)
    rule = fs.FedStale(beta="auto-per-client")
    state = rule.init(fs.Federation(3, 50, probabilities=0.5), memory="ram:float64")
    rows, inner, norm = np.zeros((3, 50)), np.zeros(3), np.zeros(3)
    first = 0.0
    for t in range(60):
        who = np.array([0, 1]) if t < 59 else np.array([0, 1, 2])
        fresh = np.stack([np.ones(50), rng.normal(size=50), np.ones(50)])
        rule.combine(state, fs.Round(t, who, fresh[who]))
        inner[who] += (t + 1) * np.sum(fresh * rows, axis=1)[who]
        norm[who] += (t + 1) * np.sum(rows**2, axis=1)[who]
        first += (t + 1) * float(np.sum(np.where(rows.any(axis=1), 0.0, np.sum(fresh**2, axis=1))[who]))
        rows[who] = fresh[who]
        if t in (1, 3, 59):
            common = np.clip(inner.sum() / (norm.sum() + first), 0, 1)
            for i in (0, 1):
                assert state.of_rule.arrays()["beta/count"][i] == t
                wanted = np.clip((t * inner[i] / norm[i] + 4 * common) / (t + 4), 0, 1)
                assert state.of_rule.arrays()["beta/value"][i] == pytest.approx(wanted)
    assert state.of_rule.arrays()["beta/value"][2] == pytest.approx(common)
    assert state.of_rule.arrays()["beta/value"][0] > 0.95
    assert state.of_rule.arrays()["beta/value"][1] < 0.1


@pytest.mark.parametrize("forget", [1.0, 0.6])
def test_a_client_forgets_when_it_comes(forget: float) -> None:
    """β_i from Σ forget^(times it came since) (t + 1)⟨Δ_i, h_i⟩ and ‖h_i‖², and as many terms n_i fewer."""
    rng = np.random.default_rng(9)
    prior = 2.0
    rule = fs.FedStale(beta=betas.AutoPerClient(forget=forget, prior=prior))
    p = np.array([0.9, 0.5, 0.2])
    state = rule.init(fs.Federation(3, D, probabilities=p), memory="ram:float64")
    terms: list[list[tuple[float, float]]] = [[], [], []]
    rows, drift = np.zeros((3, D)), rng.normal(size=(3, D))
    for t in range(30):
        who = np.flatnonzero(rng.random(3) < p)
        fresh = drift + rng.normal(size=(3, D))
        rule.combine(state, fs.Round(t, who, fresh[who]))
        common = betas.common(sums_of(state), 0.0)
        for i in who:
            if rows[i].any():
                terms[i].append(((t + 1) * fresh[i] @ rows[i], (t + 1) * rows[i] @ rows[i]))
            rows[i] = fresh[i]
            age = forget ** np.arange(len(terms[i]))[::-1]
            inner, norm = (age @ np.array(terms[i])) if terms[i] else (0.0, 1.0)
            wanted = (age.sum() * inner / norm + prior * common) / (age.sum() + prior)
            assert state.of_rule.arrays()["beta/count"][i] == pytest.approx(age.sum())
            assert state.of_rule.arrays()["beta/value"][i] == pytest.approx(np.clip(wanted, 0, 1))
    assert min(map(len, terms)) > 2


def test_theory_follows_the_guidelines_online() -> None:
    """More heterogeneous data raise β*, more noise lowers it (guideline A), seen through estimated moments."""

    def last_beta(heterogeneity: float, noise: float, p_min: float) -> float:
        rng = np.random.default_rng(8)
        optimum = heterogeneity * rng.normal(size=(8, 40))
        p = np.repeat([1.0, p_min], 4)
        rule = fs.FedStale(beta="theory")
        state = rule.init(fs.Federation(8, 40, probabilities=p))
        for t in range(200):
            who = np.flatnonzero(rng.random(8) < p)
            rule.combine(state, fs.Round(t, who, (optimum + noise * rng.normal(size=(8, 40)))[who]))
        return state.report["beta"]

    assert last_beta(2.0, 0.1, 0.5) > last_beta(0.2, 0.1, 0.5) > last_beta(0.2, 1.0, 0.5)
    assert last_beta(2.0, 0.1, 0.5) > last_beta(2.0, 0.1, 0.05)


def test_theory_with_given_moments_is_the_minimiser_of_the_bound() -> None:
    p = np.array([1.0, 0.3, 0.1])
    rule = fs.FedStale(beta=betas.Theory(sigma2_over_K=0.2, sigma_g2=3.0, drift=0.001))
    state = rule.init(fs.Federation(3, 2, probabilities=p))
    rule.combine(state, fs.Round(0, [], []))
    assert state.report["beta"] == theory.optimal_beta_from_moments(0.2, 3.0, p, drift=0.001)


def test_theory_takes_the_moments_of_the_objective() -> None:
    """What it remembers is what the estimator makes of the round, weighted by N α_i/p_i, with the rounds since."""
    rng = np.random.default_rng(5)
    alpha, p = rng.dirichlet(np.ones(N)), np.array([1.0, 0.9, 0.7, 0.4, 0.3, 0.2])
    rule = fs.FedStale(beta="theory")
    state = rule.init(fs.Federation(N, D, weights=alpha), memory="ram:float64")
    estimator, h, last = theory.MomentEstimator(), np.zeros((N, D)), np.full(N, -1)
    expected = estimator.init()
    for t, who in enumerate(([0, 1, 2], [0, 3, 5], [1, 2, 3, 5])):
        updates = rng.normal(size=(len(who), D))
        rule.combine(state, fs.Round(t, who, updates, probabilities=p[who]))
        weights = N * alpha[who] / p[who]
        mean = weights / weights.sum() @ updates
        seen = theory.Observation(
            fresh_sq=np.sum(updates**2, axis=1),
            inner=np.sum(updates * h[who], axis=1),
            stale_sq=np.sum(h[who] ** 2, axis=1),
            gap=np.where(last[who] >= 0, t - last[who], 0),
            mean_sq=float(mean @ mean),
            weights=weights,
        )
        expected = estimator.update(expected, seen)
        h[who], last[who] = updates, t
        assert state.own(StaleState).beta.arrays()["moments"] == pytest.approx(expected, rel=1e-12)
    known = np.where(last >= 0)[0]
    noise, spread = theory.noise_and_heterogeneity(expected)
    best = theory.optimal_beta_from_moments(noise, spread, p[known], alpha=state.federation.alpha()[known])
    rule.combine(state, fs.Round(3, [0], np.ones((1, D)), probabilities=[1.0]))
    assert state.report["beta"] == pytest.approx(best)


def test_own_terms_count_as_soon_as_there_are_any() -> None:
    inner, norm, count = np.array([0.2, 0.0, 0.9]), np.array([0.4, 0.0, 0.3]), np.array([2.0, 0.0, 6.0])
    found = betas.shrunk(inner, norm, count, 0.8, 2.0)
    assert found == pytest.approx([0.5 * 0.5 + 0.5 * 0.8, 0.8, 1.0])  # half and half, the common one, clipped
    assert betas.shrunk(-inner, norm, count, 0.0, 2.0) == pytest.approx([0.0, 0.0, 0.0])


def test_any_beta_has_a_value_for_single_clients() -> None:
    state = fs.FedStale().init(fs.Federation(N, D))
    assert betas.make(0.3).of_clients(state, np.array([4, 1])).tolist() == [0.3, 0.3]


def test_schedules() -> None:
    for spec in ({0: 1.0, 10: 0.5}, lambda t: 1.0 - t / 20):
        rule = fs.FedStale(beta=spec)
        state = rule.init(fs.Federation(2, 2))
        rule.combine(state, fs.Round(5, [], []))
        assert state.report["beta"] == pytest.approx(0.75)
    wrong = fs.FedStale(beta=lambda t: 7.0)
    state = wrong.init(fs.Federation(2, 2))
    with pytest.raises(fs.InvalidInput, match="beta of round 3 = 7"):
        wrong.combine(state, fs.Round(3, [], []))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: betas.Auto(forget=0.0), "^forget = 0.0"),
        (lambda: betas.Auto(forget=1.5), "^forget = 1.5"),
        (lambda: betas.Auto(start=2.0), "start = 2.0"),
        (
            lambda: betas.Theory(sigma_g2=1.0),
            "^sigma_g2 = 1.0: sigma2_over_K and sigma_g2 are given together or not at all$",
        ),
        (lambda: betas.Theory(start=2.0), "^start = 2.0"),
        (lambda: betas.Theory(drift=-1.0), "^drift = -1.0"),
        (lambda: betas.AutoPerClient(prior=-1.0), "^prior = -1.0"),
        (lambda: betas.Constant(1.5), "^beta = 1.5"),
        (lambda: betas.Schedule({}), r"^beta = \{\}: a schedule needs at least one \{round: beta\}$"),
        (lambda: betas.Schedule({-1: 0.5}), "^round of a beta schedule = -1"),
        (lambda: betas.Schedule({4: 1.5}), "^beta of round 4 = 1.5"),
        (lambda: betas.Theory(sigma_g2=-1.0, sigma2_over_K=1.0), r"sigma_g2 = -1.0"),
        (lambda: betas.make(None), "beta = None"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        call()


@pytest.mark.parametrize(("beta", "other"), combinations([0.0, "auto", 1.0, 0.5], list(RARE)))
def test_library_and_second_opinion_agree(beta: float | str, other: str) -> None:
    problem, lr, came = Quadratic.figure1(), 0.003, CAME[other][:700, :1]
    second = TwoClients(lr, beta, came, RARE[other])
    second.run(keep=True)
    rule = fs.FedStale(beta=beta)
    state = rule.init(fs.Federation(2, 2, probabilities=RARE[other]), memory="ram:float64", model=problem.start)
    for t in range(700):
        who = np.flatnonzero(came[t, 0])
        assert state.model is not None
        rule.step(state, fs.Round(t, who, problem.local_updates(state.model, who, K, lr)))
        assert state.model == pytest.approx(second.models[t][0], rel=1e-9)
        assert state.report["beta"] == pytest.approx(second.betas[t][0], rel=1e-9)
    assert came[:, 0, 1].sum() > 3


@functools.cache
def mean_excess(lr: float, beta: float | str, other: str = "always") -> float:
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(TwoClients(lr, beta, CAME[other], RARE[other]).run().mean(), nan=np.inf))


@pytest.mark.parametrize("lr", [0.003, *(pytest.param(lr, marks=pytest.mark.slow) for lr in (3e-4, 1e-3, 2e-3, 5e-3))])
def test_auto_is_within_five_percent_of_the_best_constant(lr: float) -> None:
    """Mean excess loss over 4000 rounds and 40 runs, p = (1, 0.01), at rates at which some β is stable."""
    best = min(mean_excess(lr, beta) for beta in (0.0, 0.2, 0.5, 0.8, 1.0))
    assert mean_excess(lr, "auto") <= 1.05 * best


def test_auto_is_not_misled_by_the_other_client() -> None:
    """p = (.5, .01): the sums before were the frequent client's, and cost 1.4 times the loss of β = 0 and more."""
    assert mean_excess(0.004, "before", "often") > 1.3 * mean_excess(0.004, 0.0, "often")
    assert mean_excess(0.004, "auto", "often") < mean_excess(0.004, 0.0, "often")


def test_auto_stays_bounded_where_every_constant_above_zero_diverges() -> None:
    lr = 0.008
    assert all(mean_excess(lr, beta) > 1e6 for beta in (0.2, 1.0))
    assert mean_excess(lr, "auto") < 1.1 * mean_excess(lr, 0.0) < 20


def test_per_client_reports_the_mean_of_the_participants() -> None:
    """The β of the report is the mean β_i that the round used; where nobody came, the common β̂."""
    rng = np.random.default_rng(11)
    rule = fs.FedStale(beta="auto-per-client")
    state = rule.init(fs.Federation(3, D, probabilities=0.5), memory="ram:float64")
    steady = rng.normal(size=(3, D))
    for t in range(6):
        who = np.array([0, 1, 2])[: 1 + t % 3]
        used = state.of_rule.arrays()["beta/value"][who].mean()
        rule.combine(state, fs.Round(t, who, steady[who] + rng.normal(size=(len(who), D))))
        assert state.report["beta"] == pytest.approx(used)
    rule.combine(state, fs.Round(6, [], []))
    common = float(betas.common(sums_of(state), 0.0))
    assert state.report["beta"] == pytest.approx(common)
    assert abs(common - used) > 1e-3


@pytest.mark.parametrize("beta", ["auto", "auto-per-client", "theory"])
@pytest.mark.parametrize(("stale", "fresh"), [(1e150, 1e200), (1e160, 1.0)], ids=["inner product", "norm"])
def test_a_round_whose_squares_overflow_teaches_nothing(beta: str, stale: float, fresh: float) -> None:
    """⟨Δ_i, h_i⟩ or ‖h_i‖² of one client is infinite: nothing is learned from the round, and its update is finite."""
    rule = fs.FedStale(beta=beta)
    state = rule.init(fs.Federation(2, D, probabilities=0.5), memory="ram:float64")
    first = np.stack([np.full(D, stale), np.ones(D)])
    rule.combine(state, fs.Round(0, [0, 1], first))
    before = {path: array.copy() for path, array in state.of_rule.arrays().items()}
    delta = np.asarray(rule.combine(state, fs.Round(1, [0, 1], np.stack([np.full(D, fresh), np.ones(D)]))))
    assert np.isfinite(delta).all()
    after = state.of_rule.arrays()
    assert all(np.array_equal(array, after[path]) for path, array in before.items())


@pytest.mark.parametrize("beta", ["auto", "auto-per-client", "theory"])
@pytest.mark.filterwarnings("error")
def test_a_round_in_which_nobody_came_teaches_nothing(beta: str) -> None:
    rng = np.random.default_rng(12)
    rule = fs.FedStale(beta=beta)
    state = rule.init(fs.Federation(3, D, probabilities=0.5), memory="ram:float64")
    for t in range(4):
        rule.combine(state, fs.Round(t, [0, 1, 2], rng.normal(size=(3, D))))
    before = {path: array.copy() for path, array in state.of_rule.arrays().items()}
    rule.combine(state, fs.Round(4, [], []))
    after = state.of_rule.arrays()
    assert all(np.array_equal(array, after[path]) for path, array in before.items())


def test_weights_of_clients_move_the_beta_of_the_bound() -> None:
    p, alpha = np.array([1.0, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    rule = fs.FedStale(beta=betas.Theory(sigma2_over_K=0.2, sigma_g2=3.0, drift=0.001))
    state = rule.init(fs.Federation(3, 2, weights=alpha, probabilities=p))
    rule.combine(state, fs.Round(0, [], []))
    best = theory.optimal_beta_from_moments(0.2, 3.0, p, alpha=alpha, drift=0.001)
    assert state.report["beta"] == best
    assert best != theory.optimal_beta_from_moments(0.2, 3.0, p, drift=0.001)


def test_a_beta_that_changes_has_the_value_of_the_round_for_single_clients() -> None:
    state = fs.FedStale().init(fs.Federation(N, D))
    state.round = 5
    assert betas.Schedule({0: 0.0, 10: 1.0}).of_clients(state, np.array([4, 1])).tolist() == [0.5, 0.5]
    auto = fs.FedStale(beta="auto").init(fs.Federation(N, D))
    auto.own(StaleState).beta = betas.AutoState(sums=np.array([1.0, 4.0]))
    inside = auto.inside(auto.own(StaleState).beta)
    assert betas.Auto().of_clients(inside, np.array([0, 2, 3])).tolist() == [0.25] * 3


@pytest.mark.filterwarnings("error")
def test_several_runs_have_their_sums_side_by_side() -> None:
    """Two runs with the terms of three clients each; what overflows in one of them leaves the other alone."""
    sums = np.array([[1.0, 2.0], [4.0, 8.0]])
    weight, inner, norm = np.array([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]]), np.full((2, 3), 3.0), np.full((2, 3), 5.0)
    assert betas.with_terms(sums, weight, inner, norm).tolist() == [[10.0, 11.0], [19.0, 23.0]]
    assert betas.with_terms(sums, weight, inner, norm, 0.5).tolist() == [[9.5, 10.0], [17.0, 19.0]]
    norm[1, 0] = 1e308
    assert betas.with_terms(sums, 10 * weight, inner, norm).tolist() == [[91.0, 2.0], [154.0, 8.0]]
    inner[0] = 1e308, -1e308, 0.0
    assert betas.with_terms(sums, 1e9 * weight, inner, norm).tolist() == sums.tolist()  # ∞ − ∞ in the first


def test_a_round_without_a_term_does_not_let_the_past_fade() -> None:
    sums = np.array([1.0, 4.0])
    assert betas.with_terms(sums, np.zeros(2), np.ones(2), np.ones(2), forget=0.5).tolist() == [1.0, 4.0]


@pytest.mark.filterwarnings("error")
def test_the_common_beta_lies_between_zero_and_one() -> None:
    sums = np.array([[-1.0, 1.0, 3.0, 0.0], [2.0, 2.0, 2.0, 0.0]])
    assert betas.common(sums, 0.3).tolist() == [0.0, 0.5, 1.0, 0.3]


@pytest.mark.filterwarnings("error")
def test_the_weight_of_a_term_may_overflow_in_silence() -> None:
    """1/p² of a p that is allowed is infinite: such a term is left out by `with_terms`."""
    alpha, p = np.array([0.5, 0.25, 0.5, 1e-3]), np.array([0.5, 1.0, 1e-200, 1e-154])
    weight = betas.term_weights(alpha, p, 2)
    assert weight == pytest.approx([3 * 0.25 * 0.5 / 0.25, 0.0, np.inf, 3e302])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_terms_of_a_client_count_however_short_its_updates_are(scale: float) -> None:
    rule = fs.FedStale(beta=betas.AutoPerClient(prior=0.0))
    state = rule.init(fs.Federation(2, D, probabilities=0.5), memory="ram:float64")
    for t, size in enumerate((1.0, 0.5, 0.25)):
        rule.combine(state, fs.Round(t, [0], np.full((1, D), scale * size)))
    own = state.own(StaleState).beta
    assert isinstance(own, betas.AutoPerClientState)
    assert own.count.tolist() == [2.0, 0.0]
    assert own.value == pytest.approx([0.5, 0.0])


@pytest.mark.filterwarnings("error")
def test_a_client_whose_sums_overflow_keeps_them_and_the_others_go_on() -> None:
    rule = fs.FedStale(beta="auto-per-client")
    state = rule.init(fs.Federation(2, D, probabilities=0.5), memory="ram:float64")
    first = np.stack([np.full(D, 1e153), np.ones(D)])  # ‖h‖² is finite, and (t + 1)‖h‖² is not
    rule.combine(state, fs.Round(0, [0, 1], first))
    state.round = 1_000
    rule.combine(state, fs.Round(1_000, [0, 1], first))
    own = state.own(StaleState).beta
    assert isinstance(own, betas.AutoPerClientState)
    assert own.count.tolist() == [0.0, 1.0]
    assert own.norm == pytest.approx([0.0, 1001.0 * D])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("p", "length", "learns"),
    [(1e-120, 1.0, True), (1e-160, 1e-50, False), (1e-160, 1.0, False), (1e-100, 1e60, False), (0.5, 1.0, True)],
)
def test_theory_leaves_out_a_round_whose_products_overflow(p: float, length: float, learns: bool) -> None:
    """The moments hold products of two weights 1/p_i and a square."""
    rule = fs.FedStale(beta="theory")
    state = rule.init(fs.Federation(3, D), memory="ram:float64")
    rng = np.random.default_rng(1)
    before = state.own(StaleState).beta.arrays()["moments"].copy()
    rule.combine(state, fs.Round(0, [0, 1], length * rng.normal(size=(2, D)), probabilities=[p, 1.0]))
    after = state.own(StaleState).beta.arrays()["moments"]
    assert np.isfinite(after).all()
    assert (not np.array_equal(after, before)) == learns


def test_theory_leaves_out_a_round_whose_stale_updates_are_too_long() -> None:
    rule = fs.FedStale(beta="theory")
    state = rule.init(fs.Federation(3, D), memory="ram:float64")
    rule.combine(state, fs.Round(0, [0, 1], np.full((2, D), 1e100), probabilities=[1.0, 1.0]))
    before = state.own(StaleState).beta.arrays()["moments"].copy()
    rule.combine(state, fs.Round(1, [0, 1], np.ones((2, D)), probabilities=[1e-60, 1.0]))
    assert np.array_equal(state.own(StaleState).beta.arrays()["moments"], before)


@pytest.mark.parametrize(
    ("text", "made"),
    [("0.25", betas.Constant(0.25)), ("auto", betas.Auto()), ("theory", betas.Theory())],
)
def test_a_beta_written_as_text(text: str, made: betas.Beta) -> None:
    assert betas.make(text) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [("1.5", "^beta = 1.5: must"), ("xyz", r"^unknown beta 'xyz': known: a number in \[0, 1\], auto, auto")],
)
def test_a_beta_written_wrongly(text: str, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        betas.make(text)
