"""The first hour: stretches that add up to what the ledger has, and a picture of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.simulation import Timeline

COMMON: dict[str, Any] = {"task": "quadratic", "num_clients": 6, "p_min": 0.5, "lr": 0.02, "rounds": 40}
SLOW: dict[str, Any] = {"devices": "log-normal", "device_options": {"spread": 1.2}, "rule": "mifa"}


@pytest.mark.parametrize(
    "server",
    [
        {"server": "synchronous", "deadline": 0.6},
        {"server": "synchronous", "deadline": 0.6, "slot_seconds": 0.5},
        {"server": "buffered", "server_options": {"size": 3}, "slot_seconds": 0.5},
    ],
    ids=str,
)
def test_what_the_devices_did(server: dict[str, Any]) -> None:
    timeline = Timeline(seconds=12.0)
    run = fs.simulate(**COMMON, **SLOW, **server, callbacks=[timeline])
    end = min(12.0, float(run.metrics["virtual_seconds"][-1]))
    assert timeline.steps == [step for step in run.metrics["virtual_seconds"] if step <= 12.0]
    for device in range(6):
        work = sorted(one for one in timeline.stretches if one.device == device and one.what != "there")
        there = [one for one in timeline.stretches if one.device == device and one.what == "there"]
        assert all(a.end <= b.begin + 1e-9 for a, b in pairwise(work))
        assert all(0 <= one.begin <= one.end <= end + 1e-9 for one in (*work, *there))
        if "slot_seconds" in server:  # nobody works who is not there
            for one in work:
                covered = sum(max(0.0, min(one.end, t.end) - max(one.begin, t.begin)) for t in there)
                assert covered == pytest.approx(one.end - one.begin, abs=1e-6)
    assert {one.what for one in timeline.stretches} >= {"there", "used"}


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timeline = Timeline(seconds=5.0)
    fs.simulate(**COMMON, **SLOW, server="synchronous", deadline=0.6, slot_seconds=0.5, callbacks=[timeline])
    axis = timeline.plot()
    assert "virtual time" in axis.get_xlabel()
    shown = {text.get_text() for text in axis.get_legend().get_texts()}
    assert "work that was used" in shown
    axis.figure.savefig(tmp_path / "hour.png")
    assert (tmp_path / "hour.png").stat().st_size > 1000


def test_rounds_have_no_timeline() -> None:
    with pytest.raises(fs.InvalidInput, match="needs a server that knows time"):
        fs.simulate(**COMMON, callbacks=[Timeline()])
    with pytest.raises(fs.InvalidInput, match="seconds"):
        Timeline(seconds=float(np.nan))
