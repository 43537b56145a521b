"""Days of a log drawn again, the fitted model, and the phones of the FLASH study where their file is there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.checks import InvalidInput
from fedstale.participation import (
    Bootstrap,
    DailyMarkov,
    LogSummary,
    Participation,
    Process,
    Trace,
    UniformSample,
    make,
    read_phones,
    summarise,
)
from fedstale.participation import phones as phones_module  # the function; its module is looked up below
from fedstale.participation.groups import groups_text, halves, quantile_groups, quantiles_text
from tests.shared_data import shared_file

DAYS = ["110?", "0011", "?100", "1?01", "0010", "101?"]
"""Two days of three rounds, four devices; the third device's first unknown has one other day."""


def small() -> Bootstrap:
    return Bootstrap(Trace.from_matrix(DAYS), [0, 1, 2, 3, 0], 3)


def law(process: Bootstrap, round: int) -> dict[tuple[int, ...], float]:
    """Who is there at a time of the day, by going through every order of the days and every day taken instead."""
    there = process.trace.matrix().reshape(2, 3, -1)
    known = process.trace.known().reshape(2, 3, -1)
    found: dict[tuple[int, ...], float] = {}
    hour = round % 3
    for shared, own in product(range(2), repeat=2):
        choices = []
        for client, device in enumerate(np.asarray(process.members)):
            day = own if client == 4 else shared
            if known[day, hour, device]:
                choices.append([there[day, hour, device]])
            else:
                orders = permutations(range(2))
                choices.append(
                    [next(there[d, hour, device] for d in order if known[d, hour, device]) for order in orders]
                )
        for who in product(*choices):
            share = 0.25 / np.prod([len(choice) for choice in choices])
            key = tuple(int(x) for x in who)
            found[key] = found.get(key, 0.0) + float(share)
    return found


@pytest.mark.parametrize("round", [0, 1, 2, 4])
def test_probabilities_of_the_bootstrap_are_exact(round: int) -> None:
    process, everything = small(), law(small(), round)
    x, share = np.array(list(everything)), np.array(list(everything.values()))
    np.testing.assert_allclose(process.probabilities(round), share @ x)
    np.testing.assert_allclose(process.pairwise(round), (x * share[:, None]).T @ x)
    asked = UniformSample(2).inclusion(np.maximum(x.sum(axis=1), 1))
    sampled = Participation(process, UniformSample(2))
    np.testing.assert_allclose(sampled.probabilities(round), share @ (x * asked[:, None]), atol=1e-12)


def test_long_runs_of_the_bootstrap_have_its_probabilities() -> None:
    process = small()
    drawn = Trace.record(process, 3, 12_000)
    np.testing.assert_allclose(drawn.probabilities(), process.probabilities(), atol=0.02)
    np.testing.assert_allclose(drawn.pairwise(), process.pairwise(), atol=0.02)
    # Within as many days as the log has, every day comes once: a device that came on one day comes.
    one_day = Bootstrap(Trace.from_matrix(["1", "0", "0"]), [0], 1)
    assert all(sum(len(one_day.available(seed, t)) for t in range(3)) == 1 for seed in range(10))


def test_the_bootstrap_is_a_function_of_seed_and_round() -> None:
    ahead, behind = small(), small()
    forward = [ahead.available(5, t).tolist() for t in range(12)]
    assert [behind.available(5, t).tolist() for t in reversed(range(12))] == forward[::-1]
    assert any(small().available(6, t).tolist() != who for t, who in enumerate(forward))


def test_clients_are_drawn_from_the_log() -> None:
    trace = Trace.from_matrix(["100", "010"])
    assert sorted(np.asarray(Bootstrap.sample(trace, 7, period=1).members).tolist()).count(0) in (2, 3)
    assert set(np.asarray(Bootstrap.sample(trace, 4, period=1, only_seen=True).members).tolist()) == {0, 1}
    with pytest.raises(InvalidInput, match="no device of the log ever came"):
        Bootstrap.sample(Trace.from_matrix(["0"]), 1, period=1, only_seen=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"period": None}, "has no times"), ({"period": 9}, "less than one day"), ({"members": [7]}, "0 … 3")],
)
def test_a_bootstrap_that_cannot_be(given: dict[str, object], message: str) -> None:
    options: dict[str, object] = {"trace": Trace.from_matrix(DAYS), "members": [0], "period": 3, **given}
    with pytest.raises(InvalidInput, match=message):
        Bootstrap(**options)  # type: ignore[arg-type]


def test_marginals_of_the_daily_model_are_exact() -> None:
    process = DailyMarkov([0.5, 0.1, 0.0, 0.9], [0.2, 1.0, 1.8, 0.4], 0.6)
    runs = [Trace.record(process, seed, 400).matrix() for seed in range(60)]
    seen = np.mean([run.reshape(100, 4, -1).mean(axis=0) for run in runs], axis=0)
    np.testing.assert_allclose(seen, [process.probabilities(t) for t in range(4)], atol=0.02)
    np.testing.assert_allclose(process.probabilities(7), process.probabilities(3))
    assert process.probabilities()[2] == 0.0
    # The recursion of the definition, over the day and round to its beginning.
    for t in range(1, 5):
        fresh = np.minimum(np.array([0.5, 0.1, 0.0, 0.9]) * np.array([0.2, 1.0, 1.8, 0.4])[t % 4] / 0.85, 1.0)
        np.testing.assert_allclose(process.probabilities(t), 0.6 * process.probabilities(t - 1) + 0.4 * fresh)
    # A first round of a run is like any other of that time of the day.
    firsts = np.mean([np.isin(np.arange(4), process.available(seed, 0)) for seed in range(2000)], axis=0)
    np.testing.assert_allclose(firsts, process.probabilities(0), atol=0.04)


def test_a_model_is_fitted_to_a_log_of_its_own() -> None:
    hours = 1.0 + 0.6 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    rates = np.random.default_rng(0).beta(0.6, 5.0, 300)
    log = replace(Trace.record(DailyMarkov(rates, hours, 0.7), 1, 240), round_seconds=3600.0)
    fitted = DailyMarkov.fit(log)
    again = replace(Trace.record(fitted, 2, 240), round_seconds=3600.0)
    close(summarise(again), summarise(log))
    assert fitted.persistence == pytest.approx(0.7, abs=0.05)
    assert DailyMarkov.fit(log, 50).num_clients == 50


@pytest.mark.parametrize(("mean", "rho"), [(0.08, 0.0), (0.2, 0.0), (0.08, 0.5), (0.2, 0.5)])
def test_persistence_is_what_is_left_when_the_day_is_taken_out(mean: float, rho: float) -> None:
    """A day alone, ρ = 0, was fitted as persistence of 0.2 and 0.32."""
    hours = np.maximum(1.0 + 1.3 * np.sin(np.arange(48) / 48 * 2 * np.pi), 0.02)
    rates = np.random.default_rng(0).beta(mean * 4, (1 - mean) * 4, 400)
    log = replace(Trace.record(DailyMarkov(rates, hours, rho), 1, 480), round_seconds=1800.0)
    assert DailyMarkov.fit(log).persistence == pytest.approx(rho, abs=0.02)
    assert summarise(log).stays > rho + 0.05
    without = summarise(replace(log, round_seconds=None))
    assert without.persistence == without.stays


@pytest.mark.parametrize(
    "rows", [np.eye(48), np.eye(48)[:, :3], np.c_[np.ones(48), np.zeros((48, 9))], np.arange(96).reshape(48, 2) % 5 > 0]
)
def test_a_model_of_an_odd_log(rows: np.ndarray) -> None:
    """Everybody once; few devices; one always and the others never; all of them most of the time."""
    log = replace(Trace.from_matrix(rows), round_seconds=3600.0)
    fitted = DailyMarkov.fit(log)
    assert fitted.probabilities().mean() == pytest.approx(log.probabilities().mean(), rel=0.02)


def test_a_log_in_which_everybody_is_always_there_has_no_model() -> None:
    log = replace(Trace.from_matrix(np.ones((48, 3))), round_seconds=3600.0)
    with pytest.raises(InvalidInput, match=r"^mean_p = 1.0: every device is always there: there is nothing to fit$"):
        DailyMarkov.fit(log)


def close(found: LogSummary, wanted: LogSummary) -> None:
    """Whether the statistics of a made log are those of a real one, as far as a few hundred devices can tell."""
    assert found.mean_p == pytest.approx(wanted.mean_p, rel=0.1)
    assert found.median_p == pytest.approx(wanted.median_p, rel=0.25)
    assert found.share_never == pytest.approx(wanted.share_never, abs=0.05)
    assert found.inverse_p == pytest.approx(wanted.inverse_p, rel=0.2)  # phones: 29.0 ± 1.6 on twelve seeds, log 32.6
    assert found.online == pytest.approx(wanted.online, abs=0.12 * wanted.online[1])
    assert found.stays == pytest.approx(wanted.stays, abs=0.05)
    assert found.persistence == pytest.approx(wanted.persistence, abs=0.05)
    assert found.lag1 == pytest.approx(wanted.lag1, abs=0.07)
    assert found.mean_abs_correlation == pytest.approx(wanted.mean_abs_correlation, abs=0.015)
    assert found.mean_correlation == pytest.approx(wanted.mean_correlation, abs=0.01)
    assert found.profile is not None
    assert wanted.profile is not None
    assert np.corrcoef(found.profile, wanted.profile)[0, 1] > 0.9
    np.testing.assert_allclose(found.profile, wanted.profile, atol=0.03)


# --- the phones -------------------------------------------------------------------------------------------------


def phones_path() -> Path:
    return shared_file("availability-phones.txt")


def test_what_is_known_of_the_phones() -> None:
    seen = summarise(read_phones(phones_path()))
    assert (round(seen.mean_p, 3), round(seen.median_p, 3)) == (0.080, 0.042)
    assert round(723 * seen.share_never) == 211
    assert seen.online == (14, 97)
    assert (round(seen.lag1, 2), round(seen.mean_abs_correlation, 2)) == (0.58, 0.09)


@pytest.mark.parametrize("kind", ["replay", "bootstrap", "model"])
def test_every_kind_of_phones_has_the_statistics_of_the_trace(kind: str) -> None:
    """Compared where the trace is known: what is not known of it says nothing about a made log either."""
    real = read_phones(phones_path())
    made = Trace.record(make("phones", path=phones_path(), kind=kind), 1, real.num_rounds)
    seen = Trace.from_matrix(np.where(real.known(), made.matrix(), -1))
    close(summarise(replace(seen, round_seconds=1800.0)), summarise(real))


def test_the_model_that_needs_no_file_is_the_one_of_the_file() -> None:
    fitted, shipped = DailyMarkov.fit(read_phones(phones_path())), make("phones", kind="model")
    assert isinstance(shipped, DailyMarkov)
    np.testing.assert_allclose(np.asarray(shipped.rates), np.asarray(fitted.rates), atol=2e-3)
    np.testing.assert_allclose(np.asarray(shipped.shape), np.asarray(fitted.shape), atol=1e-3)
    assert shipped.persistence == pytest.approx(fitted.persistence, abs=1e-4)


@pytest.mark.parametrize("count", [24, 723, 5000])
def test_the_model_has_phones_that_never_come_and_none_of_which_no_trace_knows(count: int) -> None:
    """All of them came, with p down to 8e-8: the mean of 1/p was 24,000 for 723 phones, and grew with their number."""
    p = make("phones", kind="model", num_clients=count).probabilities()
    comes = p[p > 0.0]
    assert (1.0 / comes).mean() == pytest.approx(32.59, abs=0.01)
    assert 1 / 200 < comes.min() < 0.006
    assert p.mean() == pytest.approx(0.0805, rel=0.02)
    # Of the 29 % that the trace never saw some are rare.
    missed = (1 - p) * (1 - (1 - 0.6875) * p) ** 197
    assert missed.mean() == pytest.approx(0.2918, abs=0.02)
    assert (p == 0.0).mean() == pytest.approx(0.184, abs=0.02)
    assert (make("phones", kind="model", num_clients=count, only_seen=True).probabilities() > 0.0).all()


def test_the_model_and_the_days_have_the_same_mean_of_1_over_p() -> None:
    means = []
    for kind in ("bootstrap", "model"):
        p = make("phones", path=phones_path(), kind=kind).probabilities()
        means.append((1.0 / p[p > 0.0]).mean())
    assert means[1] == pytest.approx(means[0], rel=0.04)


def test_phones_of_any_number() -> None:
    path = phones_path()
    for n in (24, 1000):
        assert make("phones", path=path, num_clients=n).num_clients == n
    replay = make("phones", path=path, kind="replay", num_clients=36, repeat=True)
    np.testing.assert_array_equal(replay.available(0, 240), replay.available(0, 0))
    seen = make("phones", path=path, num_clients=100, only_seen=True)
    assert (seen.probabilities() > 0).all()
    with pytest.raises(InvalidInput, match="at most 723"):
        make("phones", path=path, kind="replay", num_clients=724)


def test_another_file_is_not_the_phones(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("10\n01\n")
    with pytest.raises(InvalidInput, match="SHA-256 differs"):
        make("phones", path=tmp_path / "x.txt")
    with pytest.raises(InvalidInput, match="must name availability-phones"):
        make("phones")
    with pytest.raises(InvalidInput, match="unknown kind of phones 'replai'"):
        make("phones", path=phones_path(), kind="replai")
    with pytest.raises(InvalidInput, match="has no end"):
        phones_module(kind="model", repeat=True)
    assert read_phones(tmp_path / "x.txt").num_clients == 2


# --- groups -----------------------------------------------------------------------------------------------------


def test_groups_are_halves_unless_there_are_two_values() -> None:
    p = np.geomspace(0.01, 1.0, 24)
    np.testing.assert_array_equal(halves(p), [1] * 12 + [0] * 12)
    np.testing.assert_array_equal(halves(np.array([1.0] * 3 + [0.1])), [0, 0, 0, 1])
    np.testing.assert_array_equal(halves(np.full(3, 0.2)), [0, 0, 0])
    # Equal ones stay together; the cut is the nearest to the middle.
    np.testing.assert_array_equal(halves(np.array([0.0, 0.0, 0.0, 0.1, 0.5])), [1, 1, 1, 0, 0])
    text = groups_text([0.0, 0.0, 0.0, 0.1, 0.5], halves(np.array([0.0, 0.0, 0.0, 0.1, 0.5])))
    assert text == "frequent: 2 clients, p 0.1 to 0.5; rare: 3 clients, p 0, 3 never"


@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0]), min_size=1, max_size=60), st.integers(2, 6)
)
def test_quantiles_are_in_the_order_of_p_and_as_equal_as_equal_p_allow(chances: list[float], count: int) -> None:
    p = np.array(chances)
    found = quantile_groups(p, count)
    numbers, sizes = np.unique(found, return_counts=True)
    assert numbers.tolist() == list(range(len(numbers)))
    assert len(numbers) <= min(count, len(set(chances)))
    for first, second in pairwise(numbers):
        assert p[found == first].min() > p[found == second].max()
    most_alike = max(np.unique(p, return_counts=True)[1])
    if len(set(chances)) > count:
        assert sizes.max() <= p.size / count + 2 * most_alike
    np.testing.assert_array_equal(quantile_groups(p, 2), halves(p))


def test_quarters_of_different_p_are_equally_large() -> None:
    p = np.random.default_rng(0).permutation(np.geomspace(0.01, 1.0, 24))
    found = quantile_groups(p, 4)
    np.testing.assert_array_equal(np.bincount(found), [6, 6, 6, 6])
    assert quantiles_text(p, found).startswith("1 (most frequent): 6 clients, p 0.367 to 1; 2: 6 clients, p ")
    assert quantiles_text(p, found).endswith("; 4 (rarest): 6 clients, p 0.01 to 0.0272")
    assert quantiles_text(p[:2], [0, 0]).startswith("1: 2 clients")


@pytest.mark.parametrize(
    "process", [small(), DailyMarkov([0.4, 0.1], [1.0, 2.0], 0.3)], ids=lambda one: type(one).__name__
)
def test_pairs_are_probabilities(process: Process) -> None:
    for round in (None, 0, 1):
        p, both = process.probabilities(round), process.pairwise(round)
        np.testing.assert_allclose(np.diag(both), p)
        np.testing.assert_allclose(both, both.T)
        assert (both <= np.minimum.outer(p, p) + 1e-12).all()
