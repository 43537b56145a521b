"""What single methods promise: optima reached or missed, bias measured, rounds lost, bytes counted, warnings given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules
from fedstale.participation import Bernoulli, KnownProbabilities, Participation
from fedstale.rules import OutsideCoverage, coverage
from fedstale.simulation import Simulation, build, make_settings, simulate
from fedstale.simulation.trainers import QuadraticTrainer
from fedstale.tasks.quadratic import Quadratic
from tests.enumeration import expectation

N, D = 6, 5
P = np.array([1.0, 0.9, 0.5, 0.3, 0.1, 0.02])
pytestmark = pytest.mark.filterwarnings("ignore::fedstale.rules.OutsideCoverage")


@pytest.fixture(autouse=True)
def _fresh_warnings() -> Iterator[None]:
    before = set(coverage.said)
    coverage.said.clear()
    yield
    coverage.said.update(before)


def excess(rule: fs.Rule, p: Any = 1.0, rounds: int = 400, lr: float = 0.1) -> float:
    """F(w) − F(w*) after K = 5 exact local steps a round on heterogeneous quadratics."""
    problem = Quadratic.random(N, D, 2, spread=2.0)
    p = np.full(N, p) if np.ndim(p) == 0 else np.asarray(p)
    simulation = Simulation(
        trainer=QuadraticTrainer(problem, lr, 5),
        rule=rule,
        participation=Participation(Bernoulli(p)),
        estimator=KnownProbabilities(p),
        federation=fs.Federation(N, D),
        rounds=rounds,
        memory="ram:float64",
    )
    assert simulation.run() == "finished"
    return float(problem.excess(simulation.model))


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_reaches_the_optimum_that_fedavg_misses(option: Any) -> None:
    """Full participation, exact gradients, K = 5, different Hessians: FedAvg stops at the wrong point."""
    assert excess(rules.Scaffold(option=option)) < 1e-20
    assert excess(rules.FedAvg()) > 1e-3
    assert excess(rules.FedProx(mu=0.1)) > 1e-3


def test_fedamd_goes_where_fedavg_does_not() -> None:
    """Miners start along the gradient of everybody, so that the optimum is where they stay."""
    assert excess(rules.FedAMD(anchors=0.5), lr=0.03, rounds=2000) < 1e-20


def test_feddyn_reaches_the_optimum_too() -> None:
    assert excess(rules.FedDyn(a=2.0)) < 1e-20


@pytest.mark.parametrize("rule", [rules.MIFA(), rules.FedLaAvg(), rules.AFACS(max_delay=0)], ids=repr)
def test_the_bias_of_mifa_by_enumeration(rule: fs.Rule) -> None:
    """E[Δ] = Σ α_i (p_i Δ_i + (1 − p_i) h_i) given the memory, over all 2^6 participation sets."""
    rng = np.random.default_rng(1)
    h, updates, alpha = rng.normal(size=(N, D)), rng.normal(size=(N, D)), rng.dirichlet(np.ones(N))

    def prepare() -> fs.State:
        state = rule.init(fs.Federation(N, D, weights=alpha), memory="ram:float64")
        rule.combine(state, fs.Round(0, np.arange(N), h, probabilities=1.0))
        return state

    got = expectation(rule, prepare, updates, P)
    assert got == pytest.approx(alpha @ (P[:, None] * updates + (1 - P[:, None]) * h), abs=1e-12)
    bias = np.linalg.norm(got - alpha @ updates) / np.linalg.norm(alpha @ updates)
    assert bias > 0.3
    assert expectation(rule, prepare, updates, np.ones(N)) == pytest.approx(alpha @ updates, abs=1e-12)


def test_the_bias_of_mifa_in_a_run() -> None:
    """The mean of its updates over 100 runs misses the mean update of all clients; U-FedVARP's does not."""
    problem = Quadratic.random(N, D, 2, spread=2.0)
    want = problem.local_updates(problem.optimum + 1.0, np.arange(N), 5, 0.1).mean(0)

    def measured(rule: fs.Rule) -> float:
        deltas = []
        for seed in range(100):
            state = rule.init(fs.Federation(N, D, probabilities=P))
            who, delta = Bernoulli(P), np.zeros(D)
            for t in range(12):  # the model moves towards the point at which the last round is looked at
                w = problem.optimum + 1.0 + (11 - t) / 11.0
                came = who.available(seed, t)
                delta = np.asarray(rule.combine(state, fs.Round(t, came, problem.local_updates(w, came, 5, 0.1))))
            deltas.append(delta)
        error = np.mean(deltas, axis=0) - want
        noise = np.std(deltas, axis=0) / np.sqrt(len(deltas))
        return float(np.linalg.norm(error) / np.linalg.norm(noise))

    assert measured(rules.MIFA()) > 6.0  # standard errors
    assert measured(rules.UnbiasedFedVARP()) < 3.0


def test_rounds_lost_while_waiting() -> None:
    """MIFA loses every round before the last client is first seen, SVRG all of them for each anchor."""
    for rule in ("mifa-wait", "svrg"):
        run = simulate(task="quadratic", num_clients=6, p_min=0.1, lr=0.05, rounds=150, rule=rule)
        seen: set[int] = set()
        first = next(t for t, came in enumerate(run.participants) if len(seen := seen | set(came.tolist())) == 6)
        lost = run.metrics["rounds_lost"]
        assert lost[first] == first > 0
        assert (run.metrics["update_norm"][:first] == 0).all()
        assert run.metrics["update_norm"][first] > 0
        if rule == "mifa-wait":
            assert lost[-1] == first
        else:
            assert np.array_equal(np.diff(lost) == 1, run.metrics["update_norm"][1:] == 0)
            assert lost[first + 20] == first
            assert lost[first + 21] == first + 1  # the next anchor begins
    share = simulate(task="quadratic", num_clients=6, p_min=0.1, lr=0.05, rounds=150, rule="spider")
    assert 0 < share.metrics["rounds_lost"][-1] < lost[-1]


def test_waiting_for_everybody_who_counts() -> None:
    """A client of weight 0 that never comes is not waited for; one of any other weight is."""
    rule = rules.WaitingMIFA()
    state = rule.init(fs.Federation(4, 2, weights=[0.5, 0.0, 0.375, 0.125]), memory="ram:float64")
    rounds = [(0, [1.0, 2.0], 1, [0.0, 0.0]), (2, [4.0, 6.0], 2, [0.0, 0.0]), (3, [8.0, -8.0], 2, [3.0, 2.25])]
    for t, (client, update, lost, want) in enumerate([*rounds, rounds[-1]]):
        delta = rule.combine(state, fs.Round(t, [client], [update], probabilities=1.0))
        assert np.array_equal(np.asarray(delta), want)
        assert state.report["rounds_lost"] == lost


def test_bytes_on_the_wire() -> None:
    common: dict[str, Any] = {"task": "quadratic", "num_clients": 6, "p_min": 0.2, "lr": 0.05, "rounds": 60}
    sums = {}
    for name in rules.RULES:
        run = simulate(**common, rule=name)
        sums[name] = run.metrics["bytes_up"].sum(), run.metrics["bytes_down"].sum()
    plain = sums["fedavg"]
    assert plain == (sum(len(came) for came in run.participants) * 10 * 8,) * 2
    for name in set(rules.RULES) - {"scaffold", "fedamd", "svrg", "scsg", "sarah", "spider"}:
        assert sums[name] == plain
    assert sums["scaffold"] == (2 * plain[0], 2 * plain[1])
    run = simulate(**common, rule="fedamd")
    miners = np.array([len(came) for came in run.participants]) - run.metrics["anchors"]
    assert sums["fedamd"] == (plain[0], plain[1] + miners.sum() * 80)
    run = simulate(**common, rule="svrg")
    moving = run.metrics["update_norm"] > 0
    between = moving & np.r_[False, moving[:-1]]  # the round that completes an anchor is not between two
    sizes = np.array([len(came) for came in run.participants])
    assert np.array_equal(run.metrics["bytes_up"][between], sizes[between] * 80.0)
    assert np.array_equal(run.metrics["bytes_down"][between], sizes[between] * 160.0)
    waiting = run.metrics["bytes_up"][~between]
    assert waiting.sum() == run.metrics["bytes_down"][~between].sum()
    assert waiting.sum() < (sizes[~between] * 80).sum()  # who has contributed to an anchor is not asked again


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("fedavg", 0.0),
        ("fedprox", 0.0),
        ("afa-cd", 0.0),
        ("mifa", 8 + 1),
        ("fedlaavg", 1.0),
        ("scaffold", 1.0),
        ("feddyn", 1.0),
        ("fedamd", 8 + 1),
        ("fedawe", 0.0),
        ("svrg", 3.0),
        ("fedstale+adam", 8 + 1 + 2),
    ],
)
def test_server_memory(name: str, vectors: float) -> None:
    """In vectors of length d beside the model; what clients keep is not the server's."""
    d = 1000
    rule = rules.make(name)
    state = rule.init(fs.Federation(8, d), memory="ram:float64", model=np.zeros(d))
    updates = np.random.default_rng(0).normal(size=(8, d))
    for t in range(2):
        rule.step(state, fs.Round(t, np.arange(8), updates, probabilities=0.5, steps=5, lr=0.1, second_pass=updates))
    assert state.nbytes == pytest.approx(vectors * d * 8, abs=300)
    assert (rule.client_memory == 1) == (name in ("fedlaavg", "scaffold", "feddyn", "fedawe"))


def test_fedlaavg_asks_the_least_recently_used() -> None:
    run = simulate(
        task="quadratic", num_clients=8, p_min=0.5, lr=0.05, rounds=40, rule="fedlaavg", rule_options={"m": 2}
    )
    process, last = Bernoulli.two_groups(8, 0.5), np.full(8, -1)
    for t, came in enumerate(run.participants):
        available = process.available(0, t)
        left = np.setdiff1d(available, came)
        assert len(came) == min(2, len(available))
        assert np.isin(came, available).all()
        assert last[came].max(initial=-1) <= last[left].min(initial=t)
        last[came] = t


def test_a_biased_method_says_so_once() -> None:
    updates = np.ones((2, D))
    for name in ("fedavg", "mifa", "scaffold", "fedavg+adam"):
        rule = rules.make(name)
        state = rule.init(fs.Federation(2, D))
        told: dict[str, Any] = {"steps": 5, "lr": 0.1}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rule.combine(state, fs.Round(0, [0, 1], updates, probabilities=0.3, **told))  # equal p: nothing to say
        with pytest.warns(OutsideCoverage, match=rf"{name.replace('+', '.')} .*differ between clients"):
            rule.combine(state, fs.Round(1, [0, 1], updates, probabilities=[1.0, 0.1], **told))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rule.combine(state, fs.Round(2, [0, 1], updates, probabilities=[1.0, 0.1], **told))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("u-fedavg", "u-fedvarp", "fedstale", "fedau"):
            rule = rules.make(name)
            rule.combine(rule.init(fs.Federation(2, D)), fs.Round(0, [0, 1], updates, probabilities=[1.0, 0.1]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rules.make("fedprox", mu=-1), "mu = -1"),
        (lambda: rules.make("feddyn", a=0), "a = 0"),
        (lambda: rules.make("scaffold", option="III"), "option = 'III'"),
        (lambda: rules.make("svrg", period=0), "period = 0"),
        (lambda: rules.make("scsg", share=0.0), "share = 0.0"),
        (lambda: rules.make("spider", clip=-1.0), "clip = -1.0"),
        (lambda: rules.make("afa-cd", max_delay=-1), "max_delay = -1"),
        (lambda: rules.make("fedlaavg", m=0), "m = 0"),
        (lambda: rules.make("fedau", cutoff=0), "cutoff = 0"),
        (lambda: rules.make("fedstale+adm"), "unknown server optimiser 'adm': did you mean adam"),
        (lambda: rules.make("fedstale+adam", beta3=1), "beta3 = 1: fedstale.adam takes beta, beta1, beta2"),
        (lambda: rules.ServerAdam("fedavg"), "must be a rule"),  # type: ignore[arg-type]
        (lambda: rules.ServerAdam(tau=0.0), "tau = 0.0"),
        (
            lambda: build(make_settings(task="quadratic", rule="fedavg", rule_options={"beta": 1})),
            "a setting of its own",
        ),
        (lambda: _told(lr=None), "lr = None: this rule divides by"),
        (lambda: _told(steps=None), "steps = None: this rule divides by"),
        (lambda: _told(steps=[0, 1]), "must be positive"),
        (lambda: _told("I"), "second_pass = None: this rule needs"),
    ],
)
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        call()


def _told(option: Any = "II", lr: float | None = 0.1, steps: Any = 5) -> None:
    rule = rules.Scaffold(option=option)
    rule.combine(rule.init(fs.Federation(2, 1)), fs.Round(0, [0, 1], np.ones((2, 1)), lr=lr, steps=steps))


def test_clients_that_join_have_no_past_in_fedau() -> None:
    rule = rules.FedAU(cutoff=None)
    state = rule.init(fs.Federation(1, 1))
    for t in range(10):
        rule.combine(state, fs.Round(t, [0], [[1.0]]))
    state.grow(2)
    for t, weight in ((10, 1.0), (14, 1.0), (16, 2.5)):  # intervals of client 1: 1, then 4; the last counts later
        delta = rule.combine(state, fs.Round(t, [1], np.array([[1.0]])))
        assert delta == pytest.approx([weight / 2])
