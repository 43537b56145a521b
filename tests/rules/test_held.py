"""Memory that the clients hold: the same updates as with the server's, from sums alone, and what a lost row does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.memory.client_row import Row, answer, counted
from fedstale.rules import held
from tests.enumeration import participation_sets

N, D = 5, 4
P = np.array([1.0, 0.8, 0.5, 0.3, 0.1])
SIZES = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
ALPHA = SIZES / SIZES.sum()
chance = np.random.default_rng(5)
UPDATES = chance.normal(size=(N, D))
RULES: list[fs.Rule] = [
    fs.FedStale(beta=0.4),
    fs.FedStale(beta="auto"),
    fs.FedStale(beta={0: 0.2, 20: 1.0}),
    fs.FedStale(beta=fs.beta.Auto(start=0.5)),
    fs.UnbiasedFedVARP(),
    fs.rules.TemperedFedStale(theta=0.5, refresh=0.25, stand_in=False),
    fs.rules.TemperedFedStale(theta=0.0, beta=fs.beta.Auto(start=0.5), refresh=0.0, stand_in=False),
    fs.rules.TemperedFedStale(theta=1.0, beta={0: 0.2, 20: 1.0}, stand_in=False),
    fs.rules.TemperedFedStale(),
    fs.rules.TemperedFedStale(theta=0.25, beta="auto", refresh=0.1),
    fs.rules.TemperedFedStale(stand_in=False),
    fs.rules.ServerAdam(fs.FedStale(beta=0.7)),
    fs.rules.Guarded(fs.FedStale(beta=0.5), max_weight=4.0),
]


class Clients:
    """The clients' side: each has its rows, and does not know whether its last answer counted."""

    def __init__(self, dtype: Any = np.float64) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.dtype = dtype

    def answer(self, client: int, order: Any, update: NDArray[Any], mass: float) -> Any:
        row = counted(self.rows.get(client, []), order)
        found, new = answer(order, row, update.astype(self.dtype), mass)
        self.rows[client] = [new] if row is None else [row, new]
        return found


def one_round(
    rule: fs.Rule,
    state: fs.State,
    clients: Clients,
    index: int,
    who: NDArray[Any],
    updates: NDArray[Any],
    fade: float = 1.0,
    unheard: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """One round through orders and sums; answers of `unheard` clients get lost on the way."""
    asked = who if unheard is None else np.union1d(who, unheard)
    orders = dict(zip(asked, held.orders_for(rule, state, index, asked, P[asked], fade=fade), strict=True))
    masses = state.federation.masses(asked)
    answers = {i: clients.answer(i, orders[i], updates[i], a) for i, a in zip(asked, masses, strict=True)}
    lost = np.array([i for i in who if orders[i].counted >= 0 and not answers[i].remembered], dtype=np.int64)
    sums = held.gathered([orders[i] for i in who], [answers[i] for i in who], D)
    had = held.memory_of(state).slots[lost] >= 0
    assert had.all()
    round = fs.Round(index, who, [], probabilities=P[who])
    delta, _ = held.step(rule, state, round, sums, lost, fade=fade, model=False)
    return np.asarray(delta, dtype=np.float64)


def federation() -> fs.Federation:
    return fs.Federation(N, D, weights="sample", sizes=SIZES)


def noise(t: int) -> NDArray[Any]:
    return UPDATES + 0.3 * np.random.default_rng([1, t]).normal(size=UPDATES.shape)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_same_updates_as_with_rows_on_the_server(rule: fs.Rule) -> None:
    ours, theirs = rule.init(federation(), memory="clients"), rule.init(federation(), memory="ram:float64")
    clients, draw = Clients(), np.random.default_rng(2)
    for t in range(40):
        came = np.flatnonzero(draw.random(N) < P) if t != 7 else np.empty(0, dtype=np.int64)
        unheard = np.setdiff1d(np.flatnonzero(draw.random(N) < 0.3), came)
        delta = one_round(rule, ours, clients, t, came, noise(t), unheard=unheard)
        expected = rule.combine(theirs, fs.Round(t, came, noise(t)[came], probabilities=P[came]))
        np.testing.assert_allclose(delta, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.memory.total, theirs.memory.total, rtol=1e-9, atol=1e-12)
    assert ours.report == pytest.approx(theirs.report)
    assert ours.memory.nbytes == 0 < theirs.memory.nbytes


def test_what_needs_single_answers_says_what_to_give_where_there_are_sums_alone() -> None:
    for rule, words in (
        (fs.rules.TemperedFedStale(), "give stand_in=False, theta=0.5"),
        (fs.rules.TemperedFedStale(theta=0.0), "give stand_in=False"),
        (fs.rules.ServerAdam(fs.rules.TemperedFedStale(stand_in=False)), "give theta=0.5"),
        (fs.rules.TemperedFedStale(stand_in=False, theta=0.5), ""),
        (fs.FedStale(), ""),
    ):
        why = held.needs_single_answers(rule, rule.init(federation(), memory="clients"))
        assert why.endswith(words)
        assert bool(why) == bool(words)


def test_with_equal_updates_every_step_is_the_same_whoever_comes_and_whatever_is_lost() -> None:
    """A client that lost its row is a newcomer again: with the others it stands in for whom nothing is remembered."""
    rule, same = fs.rules.TemperedFedStale(), np.tile(UPDATES[0], (N, 1))
    state, clients = rule.init(federation(), memory="clients"), Clients()
    for t, came in enumerate(([1], [0, 2], [2], [0, 1, 3], [4])):
        delta = one_round(rule, state, clients, t, np.array(came), same)
        np.testing.assert_allclose(delta, UPDATES[0], rtol=1e-9)
    del clients.rows[4]  # with more than a tenth of all masses: the memory starts anew after this round
    one_round(rule, state, clients, 5, np.array([4]), same)
    assert (state.memory.slots == -1).all()
    np.testing.assert_allclose(one_round(rule, state, clients, 6, np.array([2]), same), UPDATES[0], rtol=1e-9)


def test_float32_rows_do_not_drift() -> None:
    rule = fs.rules.TemperedFedStale(theta=0.5, refresh=0.25, stand_in=False)
    state, clients = rule.init(federation(), memory="clients"), Clients(np.float32)
    draw = np.random.default_rng(3)
    for t in range(400):
        one_round(rule, state, clients, t, np.flatnonzero(draw.random(N) < P), noise(t))
    kept = sum(rows[-1].mass * rows[-1].values.astype(np.float64) for rows in clients.rows.values())
    np.testing.assert_allclose(state.memory.total, kept, rtol=0, atol=1e-6 * np.abs(kept).max())


def test_a_size_that_changes_is_followed() -> None:
    """The stale term counts a client with the mass of the round, as the server's memory does."""
    rule = fs.FedStale(beta=0.6)
    state, clients = rule.init(federation(), memory="clients"), Clients()
    everybody = np.arange(N)
    one_round(rule, state, clients, 0, everybody, UPDATES)
    sizes = SIZES * np.array([1, 2, 1, 3, 1])
    state.federation = fs.Federation(N, D, weights="sample", sizes=sizes)
    came, fresh = np.array([1, 3]), noise(1)
    delta = one_round(rule, state, clients, 1, came, fresh)
    alpha = sizes / sizes.sum()
    expected = 0.6 * alpha @ UPDATES + (alpha / P)[came] @ (fresh - 0.6 * UPDATES)[came]
    np.testing.assert_allclose(delta, expected, rtol=1e-9)
    np.testing.assert_allclose(state.memory.total, sizes @ np.where(np.isin(everybody, came)[:, None], fresh, UPDATES))


def expected_update(prepare: Callable[[], tuple[fs.State, Clients]], rule: fs.Rule, fade: float = 1.0) -> NDArray[Any]:
    total = np.zeros(D)
    for probability, came in participation_sets(P):
        if probability:
            state, clients = prepare()
            total += probability * one_round(rule, state, clients, state.round, came, UPDATES, fade)
    return total


@pytest.mark.parametrize("fade", [1.0, 0.9])
@pytest.mark.parametrize(
    "rule", [fs.FedStale(beta=0.4), fs.rules.TemperedFedStale(theta=1.0, refresh=0.25, stand_in=False)], ids=repr
)
def test_unbiased_whatever_is_remembered_and_however_it_fades(rule: fs.Rule, fade: float) -> None:
    def prepare() -> tuple[fs.State, Clients]:
        state, clients = rule.init(federation(), memory="clients"), Clients()
        for t, came in enumerate(([0, 1, 2, 3, 4], [0, 3], [], [1, 2])):
            one_round(rule, state, clients, t, np.array(came, dtype=np.int64), noise(t), fade, np.array([4]))
        return state, clients

    np.testing.assert_allclose(expected_update(prepare, rule, fade), ALPHA @ UPDATES, atol=1e-12)


def lossy(lost: list[int], rounds: int, fade: float) -> Callable[[], tuple[fs.State, Clients]]:
    """After a round of everybody, some clients lose their rows and come back; some rounds later."""
    rule = fs.FedStale(beta=0.4)

    def prepare() -> tuple[fs.State, Clients]:
        state, clients = rule.init(federation(), memory="clients"), Clients()
        one_round(rule, state, clients, 0, np.arange(N), noise(0), fade)
        for client in lost:
            del clients.rows[client]
        one_round(rule, state, clients, 1, np.array(lost), noise(1), fade)
        for t in range(2, 2 + rounds):
            one_round(rule, state, clients, t, np.array([0]), noise(t), fade)
        return state, clients

    return prepare


def test_the_ghost_of_a_lost_row_is_all_the_bias_there_is_and_it_fades() -> None:
    """Client 1 has a fourteenth of the masses: too little to start anew for."""
    rule = fs.FedStale(beta=0.4)
    for rounds, fade in ((0, 1.0), (3, 0.5), (60, 0.5)):
        bias = expected_update(lossy([1], rounds, fade), rule, fade) - ALPHA @ UPDATES
        ghost = fade ** (2 + rounds) * SIZES[1] * noise(0)[1]
        np.testing.assert_allclose(bias, 0.4 * ghost / SIZES.sum(), atol=1e-12)


def test_many_ghosts_are_not_waited_for() -> None:
    """Client 0 has a fifth: the memory starts anew, everybody is told so, and nothing of the bias is left."""
    rule = fs.FedStale(beta=0.4)
    prepare = lossy([0], 0, 1.0)
    state, _ = prepare()
    assert not state.memory.total.any()
    assert [order.counted for order in held.orders_for(rule, state, 2, np.arange(N), P)] == [-1] * N
    np.testing.assert_allclose(expected_update(prepare, rule), ALPHA @ UPDATES, atol=1e-12)


def test_a_client_that_leaves_is_a_ghost_too() -> None:
    state, _ = lossy([1], 0, 1.0)()
    before = state.memory.total.copy()
    state.forget(np.array([3]))
    np.testing.assert_array_equal(state.memory.total, 0 * before)  # two of fourteen are more than a tenth
    assert (state.memory.slots == -1).all()


def test_saved_and_loaded(tmp_path: Any) -> None:
    rule = fs.FedStale(beta="auto")
    state, clients = rule.init(federation(), memory="clients"), Clients()
    for t in range(3):
        one_round(rule, state, clients, t, np.array([0, 1, 2]), noise(t))
    state.save(tmp_path)
    again = fs.State.load(tmp_path)
    a = one_round(rule, state, Clients(), 3, np.array([3]), noise(3))
    b = one_round(rule, again, Clients(), 3, np.array([3]), noise(3))
    np.testing.assert_array_equal(a, b)
    assert [*tmp_path.glob("*.rows")] == []


@pytest.mark.parametrize(
    "rule",
    [
        fs.FedVARP(),
        fs.rules.MIFA(),
        fs.FedStale(beta="auto-per-client"),
        fs.FedStale(beta="theory"),
        fs.rules.TemperedFedStale(self_normalised=True),
        fs.rules.Guarded(fs.FedStale(beta=0.5), clip_norm=1.0),
        fs.rules.Robust(fs.FedStale(beta=0.5)),
    ],
    ids=repr,
)
def test_a_rule_that_needs_single_updates_is_refused(rule: fs.Rule) -> None:
    state = rule.init(federation(), memory="clients")
    with pytest.raises(InvalidInput, match="clients"):
        held.orders_for(rule, state, 0, np.arange(N), P)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            fs.rules.TemperedFedStale(self_normalised=True),
            "rule = 'tempered': the clients hold the memory, and weigh themselves: give self_normalised=False",
        ),
        (fs.FedStale(beta="theory"), r"beta = Theory\(.*\): fedstale with Theory needs single updates: give a number"),
        (
            fs.rules.TemperedFedStale(theta=1.0, beta="theory", stand_in=False),
            r"beta = Theory\(.*\): tempered with Theory needs single updates: give a number",
        ),
    ],
    ids=repr,
)
def test_and_told_what_to_give_instead(rule: fs.Rule, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}"):
        held.orders_for(rule, rule.init(federation(), memory="clients"), 0, np.arange(N), P)


def test_only_announced_weights_are_taken() -> None:
    """And a round that is refused leaves the memory as it was; plain rounds have no rows to work with."""
    rule = fs.FedStale(beta=0.4)
    state, clients = rule.init(federation(), memory="clients"), Clients()
    one_round(rule, state, clients, 0, np.arange(N), UPDATES)
    before = state.memory.total.copy()
    orders = held.orders_for(rule, state, 1, np.arange(N), P)
    sums = held.gathered(orders, [clients.answer(i, o, UPDATES[i], SIZES[i]) for i, o in enumerate(orders)], D)
    with pytest.raises(InvalidInput, match="announced"):
        held.step(
            rule,
            state,
            fs.Round(1, np.arange(N), [], probabilities=P**2),
            sums,
            np.empty(0, int),
            fade=0.5,
            model=False,
        )
    np.testing.assert_array_equal(state.memory.total, before)
    with pytest.raises(InvalidInput, match="clients"):
        rule.combine(state, fs.Round(1, np.arange(N), UPDATES, probabilities=P))


def test_sent_on_a_grid_the_row_is_what_the_sum_holds() -> None:
    rule = fs.FedStale(beta=0.4)
    state = rule.init(federation(), memory="clients")
    (order,) = held.orders_for(rule, state, 0, np.array([2]), P[[2]])
    sent, row = answer(order, None, UPDATES[2], SIZES[2], grid=(2.0**-10, 3.0))
    assert np.abs(sent.change).max() <= 3.0
    np.testing.assert_array_equal(sent.change % 2.0**-10, 0.0)
    np.testing.assert_allclose(row.values * row.mass, sent.change, rtol=1e-15)
