"""Updates that come after their round: put into the memory between rounds, and nothing becomes biased by it."""

from __future__ import annotations

import numpy as np
import pytest

import fedstale as fs
from fedstale.rules import RULES, Guarded, Rule, ServerAdam
from tests.enumeration import expectation

N, D = 5, 4
rng = np.random.default_rng(11)
P = np.array([1.0, 0.7, 0.4, 0.1, 0.02])
UPDATES, OLD, LATE = (rng.normal(size=(N, D)) for _ in range(3))
ALPHA = np.arange(1, N + 1) / 15
UNBIASED = [
    *(fs.FedStale(beta=beta) for beta in (0.0, 0.5, 1.0, "auto", "auto-per-client", "theory")),
    fs.UnbiasedFedVARP(),
    fs.rules.TemperedFedStale(theta=1.0, beta=0.3),
    fs.rules.UnbiasedFedSteer(),
]


def after_late(rule: Rule, memory: str = "ram", never_came: int | None = None, *, told: bool = True) -> fs.State:
    """A state after two rounds, into whose memory a late update of clients 2 and 4 was put."""
    state = rule.init(fs.Federation(N, D, weights="sample", sizes=np.arange(1, N + 1)), memory=memory)
    for t in range(2):
        who = np.array([i for i in range(N) if i != never_came])
        rule.combine(state, fs.Round(t, who, OLD[who] + t, probabilities=P[who]))
    late = np.array([2, 4])
    rule.remember_late(state, fs.Round(2, late, LATE[late], probabilities=P[late] if told else None, ages=[1, 1]))
    return state


@pytest.mark.parametrize("never_came", [None, 4])
@pytest.mark.parametrize("rule", UNBIASED, ids=repr)
def test_unbiased_with_a_late_update_in_the_memory(rule: Rule, never_came: int | None) -> None:
    """E[Δ] = Σ α_i Δ_i, summed over all 2^N sets: also where the late update is all that is known of a client."""
    for told in (True, False):
        mean = expectation(rule, lambda told=told: after_late(rule, never_came=never_came, told=told), UPDATES, P)  # type: ignore[misc]
        assert mean == pytest.approx(ALPHA @ UPDATES, abs=1e-10)


@pytest.mark.parametrize("memory", ["ram", "ram:float32", "ram:bfloat16"])
@pytest.mark.parametrize("name", [name for name, kind in RULES.items() if kind.takes_late])
def test_the_row_and_the_running_sum_follow(name: str, memory: str) -> None:
    rule = RULES[name]()
    state = after_late(rule, memory)
    [stale] = state.of_rule.memories().values()
    rows = stale.rows(np.arange(N))
    mean = (OLD[4] + (OLD[4] + 1)) / 2  # of the two rounds before; the tempered rule then takes half of each
    assert rows[4] == pytest.approx((mean + LATE[4]) / 2 if name == "tempered" else LATE[4], abs=0.02)
    assert stale.total == pytest.approx(stale.masses @ rows, abs=1e-9)


def test_who_never_comes_in_time_counts_with_its_late_update() -> None:
    """With β = 1 a round moves by α_i times what it sent last, as often as there are rounds."""
    rule = fs.UnbiasedFedVARP()
    state = rule.init(fs.Federation(2, 1))
    rule.remember_late(state, fs.Round(0, [1], [np.array([3.0])]))
    for t in range(3):
        delta = rule.combine(state, fs.Round(t, [0], [np.array([1.0])], probabilities=[1.0]))
        assert delta == pytest.approx([(1.0 + 3.0) / 2])


def test_wrappers_pass_it_on_and_bounds_hold() -> None:
    rule = ServerAdam(Guarded(fs.FedStale(beta=1.0), clip_norm=1.0))
    assert rule.takes_late
    state = after_late(rule)
    assert np.linalg.norm(state.memory.rows([4])) == pytest.approx(1.0)


def test_a_rule_without_such_a_memory_says_so_and_numbers_must_be_finite() -> None:
    rule = fs.UnbiasedFedAvg()
    assert not rule.takes_late
    with pytest.raises(ValueError, match="has no memory that an update could be put into"):
        rule.remember_late(rule.init(fs.Federation(2, 1)), fs.Round(0, [0], [np.ones(1)]))
    for remembering in (fs.FedStale(), fs.rules.TemperedFedStale(), fs.rules.MIFA()):
        state = remembering.init(fs.Federation(2, 1))
        with pytest.raises(ValueError, match=r"^updates = 'non-finite numbers': every update must be finite$"):
            remembering.remember_late(state, fs.Round(0, [0], [np.array([np.nan])]))
        assert state.memory.seen.size == 0


def test_the_first_update_of_a_client_may_be_late() -> None:
    """It is remembered as it is, and the next one is its second: the tempered memory is then the mean of both."""
    rule = fs.rules.TemperedFedStale(refresh=0.0)
    state = rule.init(fs.Federation(N, D), memory="ram:float64")
    for update, expected in ((LATE[3], LATE[3]), (OLD[3], (LATE[3] + OLD[3]) / 2)):
        rule.remember_late(state, fs.Round(0, [3], [update]))
        assert state.memory.rows([3])[0] == pytest.approx(expected)


def test_a_late_update_weighs_in_beta_as_if_such_were_always_seen() -> None:
    """(t + 1) α² (1 − p)/p, without the further 1/p of an update that is seen with probability p only."""
    rule, p = fs.FedStale(), np.array([0.25])
    state = rule.init(fs.Federation(2, 1), memory="ram:float64")
    weight = 0.5**2 * 0.75 / 0.25
    for update, sums in ((2.0, (0.0, 4.0)), (3.0, (6.0, 8.0))):
        rule.remember_late(state, fs.Round(0, [1], [np.array([update])], probabilities=p))
        assert state.of_rule.arrays()["beta/sums"] == pytest.approx(weight * np.array(sums))


def test_a_late_update_has_a_say_in_beta() -> None:
    """Who is never in time is what β is for: its late updates agree with each other, and β goes to 1."""
    rule = fs.FedStale()
    state = rule.init(fs.Federation(2, 1))
    for t in range(8):
        rule.remember_late(state, fs.Round(t, [1], [np.array([3.0])], probabilities=0.02))
        rule.combine(state, fs.Round(t, [0], [np.array([1.0])], probabilities=[1.0]))
    assert state.report["beta"] > 0.9


def test_every_rule_that_remembers_updates_takes_late_ones() -> None:
    """The others remember something else: control variates, anchors, or models that must be those of the present."""
    others = {"area", "fedawe", "scaffold", "feddyn", "fedamd", "svrg", "scsg", "sarah", "spider", "afa-cd"}
    for name, kind in RULES.items():
        remembers = bool(kind().init(fs.Federation(N, D), model=np.zeros(D)).of_rule.memories())
        assert kind.takes_late == (remembers and name not in others), name
        assert kind.takes_late or not kind.memory


def test_the_age_of_a_late_update_counts() -> None:
    for age, active in ((4, 1.0), (5, 0.0)):
        aced = RULES["aced"](max_age=4)  # type: ignore[call-arg]
        state = aced.init(fs.Federation(2, 1), memory="ram:float64")
        aced.remember_late(state, fs.Round(5, [1], [np.array([3.0])], ages=[age]))
        delta = aced.combine(state, fs.Round(5, [], []))
        assert (delta.tolist(), state.report["active_clients"]) == ([3.0 * active], active)
    ageing = fs.rules.FedStaleAsync(beta=1.0, half_life=2.0)
    state = ageing.init(fs.Federation(1, 1), memory="ram:float64")
    ageing.remember_late(state, fs.Round(6, [0], [np.array([8.0])], ages=[4]))
    assert ageing.combine(state, fs.Round(6, [], [])) == pytest.approx([8.0 / 4])


def test_local_steps_of_a_late_update_count() -> None:
    """AFA-CS: 6 over 3 steps and 5 over 1 step are 2 and 5 a step, times the mean number of steps in time."""
    rule = fs.rules.AFACS(max_delay=0)
    state = rule.init(fs.Federation(2, 1), memory="ram:float64")
    rule.remember_late(state, fs.Round(0, [1], [np.array([6.0])], steps=[3], ages=[1]))
    assert rule.combine(state, fs.Round(0, [0], [np.array([5.0])], steps=[1])) == pytest.approx([(2 + 5) / 2])


def test_a_late_update_is_in_the_average_of_clients_that_keep_their_own() -> None:
    mifa, fedlaavg = fs.rules.MIFA(), fs.rules.FedLaAvg()
    one, other = after_late(mifa, "ram:float64"), after_late(fedlaavg, "ram:float64")
    coming = fs.Round(2, [0, 4], UPDATES[[0, 4]])
    assert fedlaavg.combine(other, coming) == pytest.approx(mifa.combine(one, coming), abs=1e-12)
