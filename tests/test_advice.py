"""`advise`: the answer follows from the table above it, and it may be no."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale.advice import _NEGLIGIBLE, _WORTH, Advice, MeasuredCorrelation, advise, size_text
from fedstale.checks import InvalidInput
from fedstale.participation import Bernoulli, Trace
from fedstale.simulation.pilot import run_pilot, stored_pilot
from tests.command_line import ok
from tests.shared_data import shared_file

chances = st.lists(st.floats(0.001, 1.0) | st.just(0.0) | st.just(1.0), min_size=1, max_size=30).filter(any)
known = (
    st.none()
    | st.floats(-1.0, 1.0)
    | st.builds(
        MeasuredCorrelation, st.floats(-1.0, 1.0), st.floats(0.0, 0.5), st.none() | st.floats(-1, 1), st.just("a pilot")
    )
)


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
        assert f"{min(gains):.0%}" in found.sentence
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
        ([0.05] * 24, {"rounds": 5}, "do not bother", "due to clients that were not seen before"),
        ([1.0] * 12 + [0.05] * 12, {}, "cannot tell", "correlation above 0.33"),
        ([1.0] * 12 + [0.05] * 12, {"correlation": 0.8}, "keep", "at β = 0.80"),
        (
            [1.0] * 12 + [0.05] * 12,
            {"correlation": MeasuredCorrelation(0.33, 0.05, None, "x")},
            "cannot tell",
            "too close to",
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


def test_the_share_of_clients_seen_before() -> None:
    """Against counting: of rounds 1 … T, those before which a client with p came."""
    p, rounds = 0.2, 7
    expected = np.mean([1 - (1 - p) ** t for t in range(rounds)])
    assert advise([p] * 3, rounds=rounds).seen == pytest.approx(expected)


def test_a_pilot_measures() -> None:
    p = np.array([1.0] * 6 + [0.3] * 6)
    pilot = run_pilot("digits", p, rounds=60)
    assert 0.0 < pilot.measured.correlation <= 1.0
    assert 0.0 < pilot.measured.error < 0.3
    assert pilot.measured.alike is not None
    assert pilot.num_params == 2410
    again = run_pilot("digits", p, rounds=60)
    assert again == pilot
    with pytest.raises(InvalidInput, match="no client came twice"):
        run_pilot("digits", np.full(12, 0.01), rounds=2)


def test_a_pilot_replays_a_log() -> None:
    trace = Trace.record(Bernoulli(np.linspace(0.1, 0.9, 40)), 0, 50)
    pilot = run_pilot("quadratic", trace)
    assert pilot.measured.source == "quadratic, 24 clients, 50 rounds"


def test_a_store_is_a_pilot(tmp_path: Path) -> None:
    fs.simulate("digits", rule="fedstale", beta="auto", p_min=0.5, rounds=20, store=tmp_path / "store")
    found = stored_pilot(tmp_path / "store").measured
    assert 0.0 <= found.correlation <= 1.0
    fs.simulate("digits", rule="fedavg", rounds=2, store=tmp_path / "other")
    with pytest.raises(InvalidInput, match="no finished run"):
        stored_pilot(tmp_path / "other")


def test_advice_on_the_phones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/availability.md shows, word for word."""
    monkeypatch.setenv("FEDSTALE_DATA", str(shared_file("availability-phones.txt").parent))
    page = (Path(__file__).parents[1] / "docs" / "availability.md").read_text(encoding="utf-8")
    shown = re.search(r"fedstale advise phones\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert ok("advise", "phones").split() == shown[1].split()


def test_advice_is_plain_data() -> None:
    from dataclasses import asdict

    assert isinstance(advise([0.5]), Advice)
    assert json.loads(json.dumps(asdict(advise([0.5, 0.0]))))["never"] == 1
