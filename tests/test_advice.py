"""`advise`: the answer follows from the table above it, and it may be no."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedstale as fs
from fedstale.advice import _NEGLIGIBLE, _WORTH, Advice, advise
from fedstale.advice_words import percent_text, size_text
from fedstale.analysis import Estimate
from fedstale.checks import InvalidInput
from fedstale.cli.app import app
from fedstale.log_noise import noise_limits, share_seen
from fedstale.measured import MeasuredCorrelation, MeasuredGain, PilotedRule
from fedstale.participation import Bernoulli, Trace, frequencies
from fedstale.simulation.pilot import _Runs, run_pilot, stored_pilot
from tests.command_line import ok
from tests.docs.blocks import shape
from tests.shared_data import shared_file

chances = st.lists(st.floats(0.001, 1.0) | st.just(0.0) | st.just(1.0), min_size=1, max_size=30).filter(any)
known = (
    st.none()
    | st.floats(-1.0, 1.0)
    | st.builds(
        MeasuredCorrelation, st.floats(-1.0, 1.0), st.floats(0.0, 0.5), st.none() | st.floats(-1, 1), st.just("a pilot")
    )
)


def piloted(plain: list[float], memory: list[float], diverged: tuple[bool, bool] = (False, False)) -> MeasuredGain:
    """What a pilot would have found with these objectives on the seeds for judging."""
    rows = []
    for rule, values, lost in zip(("u-fedavg", "tempered"), (plain, memory), diverged, strict=True):
        ended = [7 if lost and not k else None for k in range(len(values))]
        rows.append(PilotedRule(rule, {0.03: 2.0, 0.1: 1.0, 0.3: float("nan")}, 0.1, Estimate.of(values, ended)))
    gain = Estimate.of(np.subtract(plain, memory)) if not any(diverged) else Estimate(float("nan"), float("nan"))
    return MeasuredGain(rows[0], rows[1], gain, "a pilot")


def test_a_rate_at_the_edge_of_those_tried_decides_nothing() -> None:
    gain = piloted([3.0, 3.1, 2.9], [1.0, 1.1, 0.9])
    assert advise([0.1] * 4, 10, gain=gain).verdict == "keep"
    untuned = replace(gain, memory=replace(gain.memory, rate=0.03))
    found = advise([0.1] * 4, 10, gain=untuned)
    assert found.verdict == "cannot tell"
    assert '"tempered" at rate 0.03 (at the edge of those tried)' in found.sentence


losses = st.lists(st.floats(0.0, 10.0), min_size=3, max_size=3)


@given(chances, known, st.builds(piloted, losses, losses, st.tuples(st.booleans(), st.booleans())))
def test_with_a_pilot_the_answer_follows_from_what_it_measured(
    p: list[float], correlation: float | MeasuredCorrelation | None, gain: MeasuredGain
) -> None:
    found = advise(p, 10, correlation, gain=gain)
    if found.noise <= _NEGLIGIBLE:
        assert found.verdict == "do not bother"
        return
    lost = bool(gain.plain.objective.diverged), bool(gain.memory.objective.diverged)
    ahead = gain.gain.mean > 2 * gain.gain.error or lost == (True, False)
    behind = -gain.gain.mean > 2 * gain.gain.error or lost == (False, True)
    assert found.verdict == ("keep" if ahead else "do not bother" if behind else "cannot tell")
    assert found.rule == ("u-fedavg" if behind else "tempered")
    assert found.beta is None
    assert f'"{found.rule}"' in found.sentence
    for rule in (gain.plain, gain.memory):
        assert f"{rule.objective:.3g}" in found.sentence
    beginning = {"keep": "Keep stale", "do not bother": "Do not bother", "cannot tell": "Cannot tell"}[found.verdict]
    assert found.sentence.startswith(beginning)


def test_no_advice_against_the_default_rule_that_nobody_measured() -> None:
    """On the phones the pilot said do not bother, take u-fedavg; the leaderboard has U-FedAvg far behind there."""
    p = [1.0] * 12 + [0.05] * 12
    assert "unbiased" in advise(p, correlation=0.1).sentence
    assert advise(p, correlation=0.1, gain=piloted([0.8, 0.9, 1.0], [0.1, 0.1, 0.1])).verdict == "keep"
    assert advise(p, correlation=0.9, gain=piloted([0.1, 0.1, 0.1], [0.8, 0.9, 1.0])).verdict == "do not bother"


@given(chances, known, st.none() | st.integers(1, 5000), st.none() | st.floats(0.0, 10.0), st.integers(1, 10**9))
def test_the_answer_follows_from_the_table(
    p: list[float],
    correlation: float | MeasuredCorrelation | None,
    rounds: int | None,
    together: float | None,
    size: int,
) -> None:
    found = advise(p, size, correlation, rounds=rounds, noise_together=together)
    gains = [1.0 - line.fedstale for line in found.table]
    noisy = max(found.noise, together or 0.0) > _NEGLIGIBLE
    expected = (
        "do not bother" if not noisy or max(gains) < _WORTH else "keep" if min(gains) >= _WORTH else "cannot tell"
    )
    assert found.verdict == expected
    # What the sentence says is what the table has.
    beginning = {"keep": "Keep stale", "do not bother": "Do not bother", "cannot tell": "Cannot tell"}[found.verdict]
    assert found.sentence.startswith(beginning)
    assert f'"{found.rule}"' in found.sentence
    assert (found.rule == "fedstale") == (found.beta == "auto") == (found.verdict != "do not bother")
    assert size_text(4 * found.num_clients * size) in found.sentence
    assert f"{size:,} parameters" in found.sentence
    if found.verdict == "keep":
        assert min(line.beta for line in found.table) > 0.0
        assert percent_text(min(gains), min(gains), _WORTH) in found.sentence
        assert correlation is not None  # p alone never says that a memory helps
    for line in found.table:
        assert line.fedstale <= min(1.0, line.fedvarp) + 1e-12
        assert line.beta == pytest.approx(np.clip(line.correlation, 0.0, 1.0))
    assert found.num_clients + found.never == len(p)


def test_no_keep_where_the_table_says_zero() -> None:
    found = advise([1.0] * 12 + [0.05] * 12, correlation=0.0)
    assert [line.beta for line in found.table] == [0.0]
    assert found.verdict == "do not bother"
    assert found.rule == "u-fedavg"


@pytest.mark.parametrize(
    ("p", "options", "verdict", "words"),
    [
        ([1.0] * 3, {}, "do not bother", "every client always comes"),
        ([0.5] * 2000, {}, "do not bother", "only 0.0005 of a client's squared update"),
        ([0.05] * 24, {"seen": 0.0}, "do not bother", "a correlation of 0.9 would take away only 0% of the noise"),
        ([1.0] * 3, {"noise_together": 1.0, "correlation": 0.9}, "keep", "takes away 81% of the noise"),
        ([0.05] * 24, {"rounds": 5}, "do not bother", "of the noise in 5 rounds: "),
        ([1.0] * 12 + [0.05] * 12, {}, "cannot tell", "correlation above 0.33"),
        ([1.0] * 12 + [0.05] * 12, {"correlation": 0.8}, "keep", "at β = 0.80"),
        (
            [1.0] * 12 + [0.05] * 12,
            {"correlation": MeasuredCorrelation(0.33, 0.05, None, "x")},
            "cannot tell",
            "too uncertain: a memory pays from 0.33 on",
        ),
        (
            [1.0] * 12 + [0.05] * 12,
            {"correlation": MeasuredCorrelation(0.7, 0.02, None, "x")},
            "keep",
            "measured correlation",
        ),
    ],
)
def test_answers(p: list[float], options: dict[str, object], verdict: str, words: str) -> None:
    found = advise(p, **options)  # type: ignore[arg-type]
    assert found.verdict == verdict
    assert words in found.sentence


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (["1111"], "Cannot tell"),
        (["1111"] * 20, "Cannot tell"),
        (["1110"] * 20, "Cannot tell"),
        (["1" * 12] * 400, "Do not bother"),
    ],
)
def test_a_log_that_is_too_short_decides_nothing(lines: list[str], verdict: str, tmp_path: Path) -> None:
    """It said for sure that every client always comes, below a table by which that may be one round in five."""
    log = tmp_path / "log.txt"
    log.write_text("\n".join(lines))
    for more in ([], ["--correlation", "0.9"]):
        said = " ".join(ok("advise", log, *more).split())
        assert f"{verdict} " in said
        assert ("too short to say whether there is noise" in said) == (verdict == "Cannot tell")
    log.write_text("\n".join(["1" * 12, "1" * 11 + "0", *["1" * 12] * 3]))
    assert "too short to say whether there is noise" in " ".join(ok("advise", log, "--correlation", "0.9").split())


def test_limits_of_the_noise() -> None:
    """As often as they promise, the noise is between them; and of no absence in n rounds they leave about 4/n."""
    p = np.linspace(0.2, 1.0, 12)
    true = ((1 - p) / p).sum() / 144
    logs = [frequencies(Trace.record(Bernoulli(p), seed, 100)) for seed in range(200)]
    held = np.mean([low <= true <= high for low, high in map(noise_limits, logs)])
    assert 0.9 < held < 0.99
    low, high = noise_limits(frequencies(Trace.from_matrix(["1"] * 100)))
    assert low == 0.0
    assert high == pytest.approx(0.0384, abs=1e-4)


def test_the_share_of_clients_seen_before() -> None:
    """Against counting: of rounds 1 … T, those before which a client with p came."""
    p, rounds = 0.2, 7
    expected = np.mean([1 - (1 - p) ** t for t in range(rounds)])
    assert advise([p] * 3, rounds=rounds).seen == pytest.approx(expected)


@given(st.integers(0, 100), st.integers(1, 30))
def test_in_a_log_it_is_counted_who_was_seen_before(seed: int, rounds: int) -> None:
    """It was reckoned as if rounds were independent: 65% on the phones, which stay and so are new for longer: 58%."""
    rng = np.random.default_rng(seed)
    lines = rng.choice([-1, 0, 0, 1], (12, 5))
    lines[0, lines.max(axis=0) < 0] = 0
    trace = Trace.from_matrix(lines)
    p = frequencies(trace).probabilities
    shares = []
    for client in np.flatnonzero(p > 0):
        known = lines[lines[:, client] >= 0, client]
        fresh = (np.argmax(known) + 1) * 12 / len(known)  # rounds until it was seen
        shares.append(max(0.0, 1 - fresh / rounds))
    odds = (1 - p[p > 0]) / p[p > 0]
    expected = odds @ shares / odds.sum() if odds.any() else 1.0
    assert share_seen(trace, p, rounds) == pytest.approx(expected)


def test_what_is_said_of_who_was_seen_before(tmp_path: Path) -> None:
    assert "due to clients seen before, if rounds were independent" in " ".join(ok("advise", "--p", "3x0.5").split())
    log = tmp_path / "log.txt"
    log.write_text("\n".join(["00", "00", "00", "11"] * 2))
    said = " ".join(ok("advise", log).split())
    assert "8 rounds; 50% of the noise is due to clients seen before, as in the log" in said
    said = " ".join(ok("advise", log, "--rounds", "16").split())
    assert "16 rounds; 75% of the noise" in said


@pytest.mark.parametrize("correlation", [0.332, 0.3315, 0.3317, 0.33165])
def test_no_ten_percent_that_is_less_than_ten_percent(correlation: float) -> None:
    found = advise([1.0] * 12 + [0.1] * 12, correlation=correlation)
    assert found.verdict == "do not bother"
    words = re.search(r"takes away ([0-9.]+)% of the noise, less than 10%", found.sentence)
    assert words is not None
    assert float(words[1]) < 10.0


def test_a_pilot_measures() -> None:
    p = np.array([1.0] * 6 + [0.3] * 6)
    pilot = run_pilot("digits", p, rounds=30)
    assert pilot.measured is not None
    assert 0.0 < pilot.measured.correlation <= 1.0
    assert 0.0 < pilot.measured.error < 0.3
    assert pilot.measured.alike is not None
    assert pilot.num_params == 2410
    assert pilot.gain is not None
    for rule in (pilot.gain.plain, pilot.gain.memory):
        assert rule.rate == min(rule.tried, key=rule.tried.__getitem__)
        assert len(rule.tried) >= 4
        assert 0.0 < rule.objective.error < rule.objective.mean
    difference = pilot.gain.plain.objective.mean - pilot.gain.memory.objective.mean
    assert pilot.gain.gain.mean == pytest.approx(difference)


def test_pilots_repeat() -> None:
    p = np.array([1.0] * 3 + [0.3] * 3)
    assert run_pilot("quadratic", p, rounds=30) == run_pilot("quadratic", p, rounds=30)


@pytest.mark.parametrize(("p", "rounds"), [(np.full(12, 0.01), 2), (np.ones(12), 3)])
def test_a_pilot_without_a_correlation_keeps_what_it_measured(p: np.ndarray, rounds: int) -> None:
    pilot = run_pilot("quadratic", p, rounds=rounds)
    assert pilot.measured is None
    assert pilot.gain is not None
    assert pilot.num_params == 10
    found = advise([0.1] * 4, 10, gain=pilot.gain)
    assert found.verdict == "cannot tell"


def test_no_pilot_is_run_where_nothing_can_be_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran for nothing, and ended with an error where there is an answer without it."""
    monkeypatch.setattr("fedstale.simulation.pilot.run_pilot", None)
    done = CliRunner().invoke(app, ["advise", "--p", "12x1", "--pilot", "digits", "--rounds", "3"])
    assert done.exit_code == 0
    assert "Do not bother to keep stale updates: every client always comes" in done.stdout
    assert "no pilot was run on digits" in done.stderr


def test_a_pilot_replays_a_log() -> None:
    trace = Trace.record(Bernoulli(np.linspace(0.1, 0.9, 40)), 0, 50)
    pilot = run_pilot("quadratic", trace)
    assert pilot.gain is not None
    assert pilot.gain.source == "quadratic, 24 clients, 50 rounds"


@pytest.mark.parametrize("who", [np.full(30, 0.5), np.array([0.0, 0.5, 1.0]), Trace.from_matrix(["101", "011"] * 4)])
@pytest.mark.parametrize(("task", "clients"), [("heart-disease", 4), ("wisdm", 36), ("shakespeare-gru", 141)])
def test_a_natural_federation_has_its_own_number_of_clients(who: Trace | np.ndarray, task: str, clients: int) -> None:
    process, _ = _Runs(task, who, 5, None)._sample(0)
    assert process.num_clients == clients
    assert process.probabilities().min() > 0.0


def test_a_pilot_on_a_natural_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTALE_DATA", str(shared_file("heart-cleveland.csv").parent))
    assert "heart-disease, 4 clients, 12 rounds" in ok(
        "advise", "--p", "6x0.5", "--rounds", "12", "--pilot", "heart-disease"
    )


def test_a_store_is_a_pilot(tmp_path: Path) -> None:
    fs.simulate("digits", rule="fedstale", beta="auto", p_min=0.5, rounds=20, store=tmp_path / "store")
    pilot = stored_pilot(tmp_path / "store")
    found = pilot.measured
    assert found is not None
    assert pilot.gain is None  # the answer is about the unbiased rules
    assert pilot.num_params == 2410
    assert 0.0 <= found.correlation <= 1.0
    assert np.isnan(found.error)  # of one run
    said = " ".join(ok("advise", "--p", "12x1,12x0.1", "--pilot", tmp_path / "store").split())
    assert "of one run, so that its error is unknown" in said
    assert "Server memory for 2,410 parameters: " in said
    fs.simulate("digits", rule="fedavg", rounds=2, store=tmp_path / "other")
    with pytest.raises(InvalidInput, match="no finished run"):
        stored_pilot(tmp_path / "other")


def test_a_store_has_the_error_and_the_number_of_the_runs_that_it_used(tmp_path: Path) -> None:
    """The error was the spread of the neighbouring values of one run, and all runs of the store were counted."""
    store = tmp_path / "store"
    ends = []
    for seed in range(3):
        run = fs.simulate("quadratic", rule="fedstale", beta="auto", rounds=30, seed=seed, store=store)
        ends.append(run.tail("beta"))
    fs.simulate("quadratic", rule="u-fedavg", rounds=2, store=store)
    pilot = stored_pilot(store)
    assert pilot.measured is not None
    assert pilot.measured.correlation == pytest.approx(np.mean(ends))
    assert pilot.measured.error == pytest.approx(np.std(ends, ddof=1) / np.sqrt(3))
    assert pilot.measured.source.endswith("in the last tenth of its rounds, 3 runs")
    assert pilot.num_params == 10
    fs.simulate("digits", rule="fedstale", beta="auto", rounds=2, store=store)
    with pytest.raises(InvalidInput, match="has runs on digits-mlp, quadratic: a pilot is of one task"):
        stored_pilot(store)


def test_of_one_run_only_what_is_clear_is_said() -> None:
    p = [1.0] * 12 + [0.05] * 12
    one = [MeasuredCorrelation(c, float("nan"), None, "one run") for c in (0.05, 0.4, 0.7)]
    assert [advise(p, correlation=c).verdict for c in one] == ["do not bother", "cannot tell", "keep"]
    assert [line.correlation for line in advise(p, correlation=one[1]).table] == pytest.approx([0.2, 0.4, 0.6])


def test_advice_on_the_phones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/availability.md shows, word for word."""
    monkeypatch.setenv("FEDSTALE_DATA", str(shared_file("availability-phones.txt").parent))
    page = (Path(__file__).parents[1] / "docs" / "availability.md").read_text(encoding="utf-8")
    shown = re.search(r"fedstale advise phones\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert ok("advise", "phones").split() == shown[1].split()


@pytest.mark.slow  # 61 runs of 200 rounds
def test_a_pilot_on_the_phones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/availability.md shows, whatever the last digits are; and it keeps, as the leaderboard would."""
    monkeypatch.setenv("FEDSTALE_DATA", str(shared_file("availability-phones.txt").parent))
    page = (Path(__file__).parents[1] / "docs" / "availability.md").read_text(encoding="utf-8")
    shown = re.search(r"--pilot digits\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert "Keep stale updates" in shown[1]
    assert shape(shown[1]) in shape(ok("advise", "phones", "--pilot", "digits"))


def test_advice_is_plain_data() -> None:
    from dataclasses import asdict

    assert isinstance(advise([0.5]), Advice)
    assert json.loads(json.dumps(asdict(advise([0.5, 0.0]))))["never"] == 1
