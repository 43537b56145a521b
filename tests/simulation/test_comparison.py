"""A comparison with its yardstick: what everybody in every round would give, and how much of the gap is closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.figures import comparison_picture
from fedstale.simulation import Comparison, Method, compare_settings, make_settings
from fedstale.simulation.methods import EVERYBODY

pytestmark = pytest.mark.filterwarnings("ignore")
PLAIN, TEMPERED = Method("u-fedavg"), Method("tempered")


@pytest.fixture(scope="module")
def found() -> Comparison:
    settings = make_settings(p_min=0.2, swap=0.6, lr=0.3, rounds=20, engine="vmap")
    return compare_settings(settings, [PLAIN, TEMPERED, EVERYBODY], seeds=2)


def test_everybody_takes_part_in_every_round(found: Comparison) -> None:
    for run in found.results[EVERYBODY].values():
        assert all(len(who) == 24 for who in run.participants)
    assert any(len(who) < 24 for run in found.results[PLAIN].values() for who in run.participants)


def test_gap_closed_runs_from_u_fedavg_to_everybody(found: Comparison) -> None:
    plain, tempered = found.gap_closed(PLAIN), found.gap_closed(TEMPERED)
    assert plain is not None
    assert tempered is not None
    assert plain.mean == 0.0
    objective = [np.mean([run.tail("objective") for run in found.results[m].values()]) for m in found.methods]
    assert tempered.mean == pytest.approx((objective[0] - objective[1]) / (objective[0] - objective[2]))
    assert found.gap_closed(EVERYBODY) is None
    assert [row["gap closed"] == tempered for row in found.rows()] == [False, True, False]


def test_without_the_yardstick_there_is_no_gap(found: Comparison) -> None:
    part = Comparison(found.settings, [PLAIN, TEMPERED], found.seeds)
    part.results = {method: found.results[method] for method in part.methods}
    assert part.gap_closed(TEMPERED) is None


def test_the_picture_shows_it(found: Comparison, tmp_path: Path) -> None:
    png, svg = comparison_picture(found, tmp_path / "picture")
    assert png.stat().st_size > 10_000
    assert "gap closed" in svg.read_text(encoding="utf-8")


def test_a_narrow_table_has_the_worst_tenth_and_no_empty_column(found: Comparison) -> None:
    assert "worst" in str(found)
    assert "gap closed" in str(found)
    part = Comparison(found.settings, [TEMPERED], found.seeds, {TEMPERED: found.results[TEMPERED]})
    assert "gap" not in str(part)


def test_curves_are_drawn_over_the_time_of_a_clock(found: Comparison, tmp_path: Path) -> None:
    common: dict[str, Any] = {"num_clients": 4, "lr": 0.02, "rounds": 12, "seeds": 1, "progress": False}
    in_time: dict[str, Any] = {"server": "synchronous", "deadline": 0.4, "devices": "log-normal"}
    timed = fs.compare(
        "quadratic", "fedavg,mifa", participation=fs.Bernoulli([1.0, 0.9, 0.8, 0.7]), **common, **in_time
    )
    drawn = [comparison_picture(one, tmp_path / "picture")[1].read_text(encoding="utf-8") for one in (timed, found)]
    assert ["virtual time (seconds)" in svg for svg in drawn] == [True, False]
    assert ["rare half comes with" in svg for svg in drawn] == [False, True]
    assert {"virtual seconds", "late", "lost", "wasted seconds"} <= timed.records()[0].keys() - found.records()[
        0
    ].keys()


def test_nothing_to_compare_is_refused(found: Comparison) -> None:
    with pytest.raises(fs.InvalidInput, match="at least one method"):
        compare_settings(found.settings, [])


def test_what_a_target_costs() -> None:
    """Of a run with a clock, seconds and bytes until the target; one that not all seeds reach is a dash."""
    common: dict[str, Any] = {"num_clients": 4, "lr": 0.02, "rounds": 40, "seeds": 2, "progress": False}
    found = fs.compare("quadratic", "fedavg,fedbuff", server="buffered", server_options={"size": 2}, **common)
    assert "rounds to target" not in found.records()[0]
    first = found["FedAvg"][0].metrics["excess_loss"]
    found.target = float(first.max())
    for row in found.records():
        assert row["virtual seconds to target"] > 0
        assert row["bytes to target"] > 0
        assert row["rounds to target"] <= 40
    assert "s to target" in str(found)
    found.target = -1.0
    assert all(np.isnan(row["virtual seconds to target"]) for row in found.records())
