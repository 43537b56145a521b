"""Speeds: functions of (seed, device, time), with the shapes that they are said to have."""

from __future__ import annotations

import numpy as np
import pytest

import fedstale as fs
from fedstale.clock import Devices, Equal, LogNormal, Measured, Stopwatch, TwoClasses, make_devices

TABLE = [[1000.0, 200.0, 500.0, 100.0], [4000.0, 3000.0, 2000.0, 100.0]]
ALL: list[Devices] = [Equal(), TwoClasses(), LogNormal(), Measured(table=TABLE, period=10.0)]


@pytest.mark.parametrize("devices", ALL, ids=lambda devices: devices.name)
def test_seconds_depend_on_nothing_but_seed_device_and_time(devices: Devices) -> None:
    forwards, backwards = Stopwatch(devices, 3, 20), Stopwatch(devices, 3, 20)
    asked = [(device, time) for device in range(20) for time in (0.0, 9.9, 10.0, 500.0)]
    one = {key: forwards.seconds(*key, 100.0, 5.0, 100.0) for key in asked}
    assert one == {key: backwards.seconds(*key, 100.0, 5.0, 100.0) for key in reversed(asked)}
    assert min(one.values()) > 0


def test_seconds_are_download_steps_and_upload() -> None:
    watch = Stopwatch(Equal(steps_per_second=2.0, down=100.0, up=10.0), 0, 3)
    assert watch.seconds(1, 0.0, 50.0, 5.0, 20.0) == 0.5 + 2.5 + 2.0


def test_two_classes_have_so_many_slow_devices() -> None:
    speeds = TwoClasses(slow_share=0.3, slowdown=4.0, steps_per_second=8.0).speeds(1, 10, 0)
    assert sorted(speeds.steps) == [2.0] * 3 + [8.0] * 7
    assert np.array_equal(speeds.steps / 8.0, speeds.down / 500_000.0)


def test_log_normal_speeds_have_the_median_and_the_spread() -> None:
    speeds = LogNormal(spread=0.5, steps_per_second=3.0).speeds(0, 20_000, 0)
    assert np.median(speeds.steps) == pytest.approx(3.0, rel=0.03)
    assert np.log(speeds.down).std() == pytest.approx(0.5, rel=0.03)


def test_measured_connections_have_the_measured_means_and_change_with_time() -> None:
    devices = Measured(table=TABLE, period=10.0)
    several = np.array([devices.speeds(0, 2000, slot).down for slot in range(200)])
    fast = several.mean(axis=0) > 2500.0
    assert several[:, ~fast].mean() == pytest.approx(1000.0, rel=0.02)
    assert several[:, ~fast].std(axis=0).mean() == pytest.approx(200.0, rel=0.05)
    assert several.min() >= 100.0  # never below a tenth of the mean
    assert 0.4 < fast.mean() < 0.6
    assert np.array_equal(devices.speeds(0, 2000, 0).steps, devices.speeds(0, 2000, 5).steps)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("quick", {}, "unknown devices 'quick'"),
        ("equal", {"slowdown": 2}, "unknown option of devices 'equal': 'slowdown'"),
        ("two-classes", {"slowdown": 0.5}, "slowdown = 0.5: must be a finite number in [1, inf]"),
        ("equal", {"down": 0}, "down = 0: must be"),
        ("measured", {}, "must have a row of 4 numbers"),
        ("measured", {"table": [[1, -1, 1, 1]]}, "deviations not negative"),
    ],
)
def test_nonsense_is_refused_in_one_line(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(fs.InvalidInput) as caught:
        make_devices(name, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
