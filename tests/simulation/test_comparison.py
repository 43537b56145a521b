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
