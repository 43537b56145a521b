"""Measured connections: read in bytes a second, and refused in one line where a file is something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedstale as fs
from fedstale.simulation import TimedSimulation, build, make_settings
from fedstale.tasks.device_speeds import read_speeds
from tests.shared_data import shared_file

ONE = {"phone": {"down_u": 8.0, "down_sigma": 0.8, "up_u": 1.6, "up_sigma": 0.0}}


def test_kbit_become_bytes(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    path.write_text(json.dumps(ONE))
    assert read_speeds(path).tolist() == [[1000.0, 100.0, 200.0, 0.0]]
    common = {"task": "quadratic", "num_clients": 3, "server": "synchronous", "devices": "measured", "rounds": 2}
    simulation = build(make_settings(**common, device_options={"file": str(path), "spread": 0.0}))
    assert isinstance(simulation, TimedSimulation)
    assert simulation.devices.speeds(0, 3, 0).up.tolist() == [200.0] * 3
    simulation.run()
    assert simulation.clock.now > 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1}', '{"a": {"down_u": 1}}', "\x00"])
def test_another_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    path.write_text(text)
    with pytest.raises(fs.InvalidInput) as caught:
        read_speeds(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(fs.InvalidInput, match="there is no file"):
        read_speeds(tmp_path / "none.json")


def test_the_file_by_its_other_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedstale.tasks import data

    given = shared_file("flash-device-speeds.json")
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path))
    data.fetch("device-speeds", source=given.parent)
    assert read_speeds().tolist() == read_speeds(given).tolist()
    with pytest.raises(data.DataUnavailable, match=r"has no speed_distri.json or flash-device-speeds.json$"):
        data.fetch("device-speeds", source=tmp_path / "device-speeds" / "..")


def test_the_data_set_is_not_a_task() -> None:
    from fedstale.tasks import data

    with pytest.raises(fs.InvalidInput, match="holds no samples"):
        data.load("device-speeds")
