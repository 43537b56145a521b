"""Estimators of p_i: FedAU by hand and against the naive algorithm, frequencies, saving, growing, bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedstale.checks import InvalidInput
from fedstale.participation import (
    Bernoulli,
    BetaFrequency,
    Cyclic,
    DailyFrequency,
    Estimator,
    EstimatorState,
    FedAUEstimator,
    Forgetting,
    KnownProbabilities,
    Markov,
    Participation,
    Trace,
    averaging_weights,
)
from tests.enumeration import participation_sets

ESTIMATORS: list[Estimator] = [
    KnownProbabilities(np.linspace(0.1, 1.0, 8)),
    FedAUEstimator(),
    FedAUEstimator(cutoff=5),
    FedAUEstimator(cutoff=None),
    BetaFrequency(),
    Forgetting(decay=0.9),
    DailyFrequency(period=6, bins=3),
]


def weights(estimator: Estimator, pattern: str) -> list[float]:
    """1/p̂ of one client before each round of a pattern such as "1..1"."""
    state = estimator.init(1)
    seen = []
    for t, mark in enumerate(pattern):
        seen.append(1.0 / float(estimator.probabilities(state, [0])[0]))
        estimator.observe(state, [0] if mark == "1" else [], t)
    return seen


def test_fedau_without_cutoff_by_hand() -> None:
    # round      0  1  2  3  4  5    6    7      8        9
    # takes part 1  .  .  1  1  .    1    .      .        .
    # interval   1        3  1       2
    # Before round 4 the intervals are 1, 3 (mean 2); before 5: 1, 3, 1 (5/3); from round 7 on: 1, 3, 1, 2 (7/4).
    expected = [1, 1, 1, 1, 2, 5 / 3, 5 / 3, 7 / 4, 7 / 4, 7 / 4]
    assert weights(FedAUEstimator(cutoff=None), "1..11.1...") == pytest.approx(expected)


def test_fedau_with_cutoff_by_hand() -> None:
    # Cutoff 3. round   0  1  2  3  4    5    6    7    8     9     10
    # takes part        .  .  .  1  .    .    .    .    1     1     .
    # gap after it      1  2  0* 0  1    2    0*   1    0     0     1      (* appended 3)
    # intervals         –  –  3  1            3         2     1
    # Before 3: 3; before 4: 3, 1; before 7: 3, 1, 3; before 9: 3, 1, 3, 2; before 10: 3, 1, 3, 2, 1.
    expected = [1, 1, 1, 3, 2, 2, 2, 7 / 3, 7 / 3, 9 / 4, 2]
    assert weights(FedAUEstimator(cutoff=3), "...1....11.") == pytest.approx(expected)


def test_fedau_cutoff_of_one_calls_everybody_present() -> None:
    assert weights(FedAUEstimator(cutoff=1), "..1.1..") == [1.0] * 7


def test_fedau_default_cutoff_is_that_of_the_paper() -> None:
    seen = weights(FedAUEstimator(), "." * 101)
    assert seen[49] == 1.0
    assert seen[50] == seen[100] == 50.0


class NaiveFedAU:
    """The algorithm of spec §4 word for word: a list of intervals and a gap that is counted every round."""

    def __init__(self, cutoff: int | None) -> None:
        self.cutoff, self.gap, self.intervals = cutoff, 0, list[int]()

    def weight(self) -> float:
        return sum(self.intervals) / len(self.intervals) if self.intervals else 1.0

    def count(self, takes_part: bool) -> None:
        if takes_part:
            self.intervals.append(self.gap + 1)
            self.gap = 0
        else:
            self.gap += 1
            if self.gap == self.cutoff:
                self.intervals.append(self.gap)
                self.gap = 0


@given(
    rounds=st.lists(st.sets(st.integers(0, 3)), max_size=60),
    cutoff=st.one_of(st.none(), st.integers(1, 12)),
    lonely=st.floats(0, 1),
)
def test_lazy_fedau_is_the_naive_algorithm(rounds: list[set[int]], cutoff: int | None, lonely: float) -> None:
    estimator, naive = FedAUEstimator(cutoff), [NaiveFedAU(cutoff) for _ in range(4)]
    state = estimator.init(4)
    # Many empty rounds in a row, so that absences pass several cutoffs.
    rounds = [present if i >= lonely * len(rounds) else set() for i, present in enumerate(rounds)]
    for t, present in enumerate(rounds):
        p = estimator.probabilities(state, np.arange(4))
        # Exact but for the last bit: one divides count by sum, the other takes 1 over the mean.
        np.testing.assert_allclose(p, [1.0 / client.weight() for client in naive], rtol=4e-16)
        estimator.observe(state, np.array(sorted(present), dtype=np.int64), t)
        for i, client in enumerate(naive):
            client.count(i in present)


def test_fedau_learns_the_probabilities() -> None:
    p = np.array([1.0, 0.5, 0.2, 0.1])
    process, estimator = Bernoulli(p), FedAUEstimator(cutoff=None)
    state = estimator.init(4)
    for t in range(5_000):
        estimator.observe(state, process.available(0, t), t)
    np.testing.assert_allclose(estimator.probabilities(state, np.arange(4)), p, rtol=0.15)
    # The cutoff keeps 1/p̂ at no more than K_c, at the price of a bias for clients rarer than 1/K_c.
    capped = FedAUEstimator(cutoff=5)
    state = capped.init(4)
    for t in range(2000):
        capped.observe(state, process.available(0, t), t)
    assert capped.probabilities(state, [3])[0] > 0.15


def test_beta_frequency_is_the_posterior_mean() -> None:
    estimator = BetaFrequency(prior_a=2.0, prior_b=3.0)
    state = estimator.init(2)
    np.testing.assert_allclose(estimator.probabilities(state, [0, 1]), [0.4, 0.4])
    for t, present in enumerate([[0], [0, 1], [], [0]]):
        estimator.observe(state, present, t)
    np.testing.assert_allclose(estimator.probabilities(state, [1, 0]), [3 / 9, 5 / 9])


@given(st.lists(st.booleans(), max_size=80), st.floats(0.05, 0.999), st.floats(0.1, 3.0), st.floats(0.0, 3.0))
def test_forgetting_is_the_discounted_frequency(pattern: list[bool], decay: float, a: float, b: float) -> None:
    estimator = Forgetting(decay, a, b)
    state = estimator.init(1)
    hits = rounds = 0.0
    for t, present in enumerate(pattern):
        p = estimator.probabilities(state, [0])[0]
        assert p == pytest.approx(min((a + hits) / (a + b + rounds), 1.0), rel=1e-12)
        assert 0.0 < p <= 1.0
        estimator.observe(state, [0] if present else [], t)
        hits, rounds = decay * hits + present, decay * rounds + 1.0


def test_forgetting_follows_a_change_that_the_frequency_misses() -> None:
    forgetting, beta = Forgetting(decay=0.98), BetaFrequency()
    states = [forgetting.init(1), beta.init(1)]
    process = [Bernoulli([0.9]), Bernoulli([0.1])]
    for t in range(4000):
        present = process[t // 2000].available(0, t)
        forgetting.observe(states[0], present, t)
        beta.observe(states[1], present, t)
    assert forgetting.probabilities(states[0], [0])[0] < 0.25
    assert beta.probabilities(states[1], [0])[0] > 0.45


def test_forgetting_bounds_the_weight_of_a_client_that_stayed_away() -> None:
    estimator = Forgetting(decay=0.99)
    state = estimator.init(1)
    estimator.observe(state, [0], 0)
    state.round = 10_000_000
    assert 1 / estimator.probabilities(state, [0])[0] == pytest.approx(102.0)


@pytest.mark.parametrize("decay", [0.9, 0.99])
def test_forgetting_never_exceeds_one(decay: float) -> None:
    """Rounding alone does, by 4e-16, for a client that always comes: a p above 1 is refused where it is used."""
    estimator = Forgetting(decay=decay, prior_b=0.0)
    state = estimator.init(1)
    for t in range(100):
        estimator.observe(state, [0], t)
        assert estimator.probabilities(state, [0])[0] <= 1.0


def test_without_a_prior_for_absence_everybody_who_always_came_has_probability_one() -> None:
    estimator = BetaFrequency(prior_b=0.0)
    state = estimator.init(2)
    for t in range(3):
        estimator.observe(state, [0], t)
    np.testing.assert_array_equal(estimator.probabilities(state, [0, 1]), [1.0, 0.25])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_what_is_counted_is_kept_in_integers(estimator: Estimator) -> None:
    """Nothing rounds, on any platform, however long a federation runs; only a discounted sum is a fraction."""
    fractions = {name for name, column in estimator.init(8).columns.items() if column.dtype != np.int64}
    assert fractions <= {"weight"}


def test_known() -> None:
    known = KnownProbabilities([0.5, 0.01, 1.0])
    state = known.init(3)
    np.testing.assert_array_equal(known.probabilities(state, [2, 1]), [1.0, 0.01])
    known.observe(state, [1], 0)
    np.testing.assert_array_equal(known.probabilities(state, [2, 1]), [1.0, 0.01])
    single = KnownProbabilities(0.3)
    state = single.init(2)
    single.grow(state, 5)
    np.testing.assert_array_equal(single.probabilities(state, [0, 4]), [0.3, 0.3])


@pytest.mark.parametrize("p", [1.0, 0.5, 0.1, 0.02, 0.002])
@pytest.mark.parametrize("cutoff", [1, 7, 50])
def test_the_limit_of_fedau_is_the_mean_of_a_cut_off_interval(p: float, cutoff: int) -> None:
    # By enumeration of the round in which the client comes, or the cutoff if it does not before.
    chances = p * (1 - p) ** np.arange(cutoff)
    mean = chances @ np.arange(1, cutoff + 1) + (1 - p) ** cutoff * cutoff
    assert FedAUEstimator(cutoff).limit([p])[0] == pytest.approx(mean, rel=1e-9)
    assert FedAUEstimator(None).limit([p])[0] == pytest.approx(1 / p)


def test_the_weights_of_fedau_tend_to_their_limit_and_not_to_one_over_p() -> None:
    p, clients, rounds = 0.02, 400, 3000
    rng = np.random.default_rng(5)
    estimator = FedAUEstimator()
    state = estimator.init(clients)
    for t in range(rounds):
        estimator.observe(state, np.flatnonzero(rng.random(clients) < p), t)
    weights = 1.0 / estimator.probabilities(state, np.arange(clients))
    error = weights.std() / clients**0.5
    limit = float(estimator.limit([p])[0])
    assert limit == pytest.approx(31.79, abs=0.01)
    assert abs(weights.mean() - limit) < 4 * error + 0.1  # of the order of one interval over all rounds
    assert weights.mean() < 0.7 / p


@pytest.mark.parametrize("p", [[1.0, 0.5], [1.0, 0.9, 0.5, 0.3, 0.1, 0.02], [0.3] * 5])
def test_what_averaging_whoever_came_weighs(p: list[float]) -> None:
    exact = np.zeros(len(p))
    for chance, clients in participation_sets(np.array(p)):
        exact[clients] += chance / max(1, len(clients))
    np.testing.assert_allclose(averaging_weights(p), exact, rtol=1e-12)
    assert exact.sum() == pytest.approx(1 - np.prod(1 - np.array(p)))
    if p == [1.0, 0.5]:
        np.testing.assert_allclose(exact, [0.75, 0.25])


def test_the_table_of_methods_is_what_the_formula_gives() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    p = np.array([0.5, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002])
    limit = FedAUEstimator().limit(p)
    for name, row in (("limit of ω", limit), ("share", limit * p)):
        assert f"| {name} | {' | '.join(f'{value:.3f}' for value in row)} |" in page


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_the_present_round_counts_from_the_next_on(estimator: Estimator) -> None:
    process = Markov(np.linspace(0.05, 1.0, 8), 0.7)
    state = estimator.init(8)
    for t in range(60):
        ids = process.available(0, t)
        before = estimator.probabilities(state, np.arange(8))
        assert ((before > 0) & (before <= 1)).all()
        # Asking changes nothing, and the order of the clients is that of the question.
        np.testing.assert_array_equal(estimator.probabilities(state, ids), before[ids])
        np.testing.assert_array_equal(estimator.probabilities(state, ids[::-1]), before[ids[::-1]])
        estimator.observe(state, ids[::-1], t)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_saved_state_goes_on_with_the_same_bits(estimator: Estimator, tmp_path: Path) -> None:
    process = Bernoulli(np.linspace(0.05, 1.0, 8))
    state = estimator.init(8)
    resumed: EstimatorState | None = None
    for t in range(120):
        if t == 67:
            save_file(state.arrays(), tmp_path / "state.safetensors")
            resumed = EstimatorState.from_arrays(load_file(tmp_path / "state.safetensors"))
        for each in (state, resumed):
            if each is not None:
                estimator.observe(each, process.available(0, t), t)
    assert resumed is not None
    assert resumed.round == state.round == 120
    first, second = state.arrays(), resumed.arrays()
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert array.tobytes() == second[name].tobytes()


def test_saved_arrays_are_copies() -> None:
    estimator = BetaFrequency()
    state = estimator.init(2)
    arrays = state.arrays()
    copy = EstimatorState.from_arrays(arrays)
    estimator.observe(state, [0, 1], 0)
    assert arrays["count"].sum() == 0
    assert copy.columns["count"].sum() == 0


@pytest.mark.parametrize(
    "estimator", [FedAUEstimator(), FedAUEstimator(cutoff=4), BetaFrequency(), Forgetting(0.9)], ids=repr
)
def test_clients_that_join_start_fresh(estimator: Estimator) -> None:
    def run(state: EstimatorState, ids: NDArray[np.int64], first: int) -> list[NDArray[np.float64]]:
        seen = []
        for t in range(30):
            seen.append(estimator.probabilities(state, ids))
            estimator.observe(state, ids[process.available(0, t)], first + t)
        return seen

    process = Bernoulli([0.3, 0.6])
    grown = estimator.init(3)
    for t in range(25):
        estimator.observe(grown, [0], t)
    old = estimator.probabilities(grown, [0, 1, 2])
    estimator.grow(grown, 5)
    assert grown.num_clients == 5
    np.testing.assert_array_equal(estimator.probabilities(grown, [0, 1, 2]), old)
    late = run(grown, np.array([3, 4]), 25)
    fresh = run(estimator.init(2), np.array([0, 1]), 0)
    np.testing.assert_array_equal(late, fresh)


def test_a_round_costs_the_participants_only() -> None:
    estimator = FedAUEstimator()
    state = estimator.init(1_000_000)
    before = {name: column.copy() for name, column in state.columns.items()}
    estimator.observe(state, np.arange(10), 0)
    for name, column in state.columns.items():
        assert (column[10:] == before[name][10:]).all()


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: FedAUEstimator(cutoff=0), "cutoff = 0"),
        (lambda: FedAUEstimator(cutoff=2.5), "cutoff = 2.5"),  # type: ignore[arg-type]
        (lambda: KnownProbabilities([0.5, 0.0]), r"p\[1\] = 0.0"),
        (lambda: KnownProbabilities(1.5), "p"),
        (lambda: KnownProbabilities(float("nan")), "p"),
        (lambda: KnownProbabilities([0.5, 0.5]).init(3), "num_clients = 3"),
        (lambda: KnownProbabilities([0.5, 0.5]).grow(KnownProbabilities([0.5, 0.5]).init(2), 3), "num_clients = 3"),
        (lambda: FedAUEstimator().limit([0.0]), r"^p\[0\] = 0.0"),
        (lambda: BetaFrequency(prior_a=0.0), "^prior_a = 0.0"),
        (lambda: BetaFrequency(prior_b=-1.0), "^prior_b = -1.0"),
        (
            lambda: Forgetting(decay=1.0),
            r"^decay = 1.0: must lie in \(0, 1\); BetaFrequency is the estimator that .*g$",
        ),
        (lambda: Forgetting(decay=0.0), "^decay = 0.0"),
        (lambda: Forgetting(decay=1.5), "^decay = 1.5"),
        (lambda: Forgetting(prior_a=0.0), "^prior_a = 0.0"),
        (lambda: Forgetting(prior_b=-1.0), "^prior_b = -1.0"),
        (lambda: FedAUEstimator().init(0), "num_clients = 0"),
        (lambda: FedAUEstimator().grow(FedAUEstimator().init(3), 2), "num_clients = 2"),
        (lambda: FedAUEstimator().observe(FedAUEstimator().init(3), [3], 0), r"participants\[0\] = 3"),
        (lambda: FedAUEstimator().observe(FedAUEstimator().init(3), [1, 1], 0), "participants"),
        (lambda: FedAUEstimator().observe(FedAUEstimator().init(3), [1], 1), "round = 1.*the next is 0"),
        (lambda: FedAUEstimator().probabilities(FedAUEstimator().init(3), [-1]), r"clients\[0\] = -1"),
        (lambda: FedAUEstimator().probabilities(BetaFrequency().init(3), [0]), "a state of FedAU"),
        (lambda: EstimatorState.from_arrays({"round": np.array([1])}), "num_clients"),
        (
            lambda: EstimatorState.from_arrays(
                {"round": np.array([1]), "num_clients": np.array([2]), "count": np.zeros(3)}
            ),
            "count",
        ),
    ],
)
def test_bad_input_names_the_argument(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidInput, match=argument):
        make()


def test_a_refused_round_changes_nothing() -> None:
    estimator = FedAUEstimator()
    state = estimator.init(3)
    estimator.observe(state, [1], 0)
    before = state.arrays()
    for participants, t in [([5], 1), ([0], 0), ([0], 2)]:
        with pytest.raises(InvalidInput):
            estimator.observe(state, participants, t)
    for name, array in state.arrays().items():
        np.testing.assert_array_equal(array, before[name])


LEARNING = [estimator for estimator in ESTIMATORS if not isinstance(estimator, KnownProbabilities)]


@pytest.mark.parametrize("estimator", LEARNING, ids=repr)
def test_a_round_that_does_not_count_for_a_client_leaves_it_as_it_was(estimator: Estimator) -> None:
    """Client 1 sees rounds 0, 1, 4, 5, 6 only, as in a federation that has only these; client 0 sees them all."""
    if isinstance(estimator, DailyFrequency):  # its rounds have a time of day
        pytest.skip("a round that is left out is a time of day that is left out")
    with_gap, without = estimator.init(2), estimator.init(2)
    for t, came in enumerate(([1], [], [0], [0], [0], [1], [])):
        estimator.observe(with_gap, came, t, skipped=[1] if t in (2, 3) else [])
    for t, came in enumerate(([1], [], [], [1], [])):
        estimator.observe(without, came, t)
    assert estimator.probabilities(with_gap, [1]) == pytest.approx(estimator.probabilities(without, [1]))
    whole = estimator.init(2)
    for t, came in enumerate(([1], [], [0], [0], [0], [1], [])):
        estimator.observe(whole, came, t)
    assert estimator.probabilities(with_gap, [0]) == estimator.probabilities(whole, [0])


@pytest.mark.parametrize("estimator", LEARNING, ids=repr)
def test_a_client_that_was_forgotten_is_as_one_that_joins(estimator: Estimator) -> None:
    state, joined = estimator.init(3), estimator.init(2)
    for t in range(5):
        estimator.observe(state, [0, 2], t)
        estimator.observe(joined, [0], t)
    estimator.forget(state, [2])
    estimator.grow(joined, 3)
    assert {name: len(column) for name, column in joined.columns.items()} == dict.fromkeys(joined.columns, 3)
    for t in range(5, 9):
        for one in (state, joined):
            estimator.observe(one, [0, 2][: 1 + t % 2], t)
    np.testing.assert_array_equal(estimator.probabilities(state, [0, 2]), estimator.probabilities(joined, [0, 2]))


def test_a_federation_may_grow_by_nobody() -> None:
    estimator = FedAUEstimator()
    state = estimator.init(3)
    estimator.grow(state, 3)
    assert state.num_clients == 3


@pytest.mark.parametrize("call", ["probabilities", "observe", "grow", "forget"])
def test_the_state_of_another_estimator_is_refused(call: str) -> None:
    arguments = {"probabilities": ([0],), "observe": ([0], 0), "grow": (5,), "forget": ([0],)}[call]
    with pytest.raises(InvalidInput, match=r"a state of FedAUEstimator has the columns \['count', 'start', 'sum'\]"):
        getattr(FedAUEstimator(), call)(BetaFrequency().init(3), *arguments)


def test_known_probabilities_are_a_copy() -> None:
    given = np.array([0.5, 0.25])
    known = KnownProbabilities(given)
    given[0] = 1.0
    np.testing.assert_array_equal(known.probabilities(known.init(2), [0, 1]), [0.5, 0.25])
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(known.p)[0] = 1.0


def test_what_is_known_of_a_participation() -> None:
    """Constant p_i are an array; of p_i(t), and where somebody never comes, each round is asked for."""
    constant = KnownProbabilities.of(Participation(Bernoulli([0.5, 0.25])))
    np.testing.assert_array_equal(np.asarray(constant.p), [0.5, 0.25])
    never = KnownProbabilities.of(Participation(Trace(2, 4, [0, 2], [0, 0])))
    assert callable(never.p)
    assert never.probabilities(never.init(2), [0])[0] == pytest.approx(0.5)
    windows = KnownProbabilities.of(Participation(Cyclic.spread(2, period=4)))
    assert callable(windows.p)
    state = windows.init(2)
    found = []
    for t in range(4):
        found.append(windows.probabilities(state, [0, 1]).tolist())
        windows.observe(state, [], t)
    assert found == [windows.p(t).tolist() for t in range(4)]
    assert found[0] != found[2]
