"""Real Flower processes on loopback; a round takes about ten seconds whatever the model, so these are few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from . import deployment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not deployment.possible(), reason="needs the right to make namespaces (unshare)"),
]
ALL = [0, 1, 2]


def test_three_devices_without_tls(tmp_path: Path) -> None:
    report = deployment.inside("insecure", tmp_path, 3600)
    whole, killed, device = report["whole"], report["killed"], report["device"]
    assert {run["status"] for run in (whole, killed, device)} == {"finished:completed"}
    assert whole["identities"] == ["client-id:0", "client-id:1", "client-id:2"]
    assert whole["participants"] == {str(t): ALL for t in range(5)}
    assert whole["accuracy"][-1] > whole["accuracy"][0]
    assert whole["accuracy"][-1] > 0.8

    # The server run was killed and resumed: rounds go on, and not a bit differs.
    assert 2 <= report["killed_after"] < 5
    assert killed["rounds"] == [0, 1, 2, 3, 4]
    assert killed["accuracy"] == whole["accuracy"]
    assert killed["model"] == whole["model"]

    # The device was killed and restarted with a new node id: absent, then back in its row.
    assert device["identities"] == whole["identities"]
    absent = [int(t) for t, who in device["participants"].items() if 2 not in who]
    assert absent
    assert set(absent) < {2, 3, 4}
    assert device["last_seen"] == [5, 5, 5]


def test_tls_and_node_authentication(tmp_path: Path) -> None:
    report = deployment.inside("secure", tmp_path, 3600)
    assert report["status"] == "finished:completed"
    assert report["stranger"] != 0
    assert "Exit Code: 305" in report["why"]
    assert len(report["identities"]) == 3
    assert all(name.startswith("key:") for name in report["identities"])
    assert report["before"]["identities"] == report["identities"]
    assert report["round"] == 4
    assert report["last_seen"] == [3, 3, 3]


def test_devices_without_keys_that_restart(tmp_path: Path) -> None:
    report = deployment.inside("keyless", tmp_path, 3600)
    assert report["refused"] == "finished:failed"
    assert "a checkpoint needs clients that are found again" in report["why"]
    assert {report["ghosts"]["status"], report["known"]["status"]} == {"finished:completed"}
    assert len(report["ghosts"]["identities"]) == 4
    assert all(name.startswith("node:") for name in report["ghosts"]["identities"])
    assert report["known"]["identities"] == ["client-id:0", "client-id:1", "client-id:2"]


def test_a_device_that_needs_longer_than_a_round(tmp_path: Path) -> None:
    """It contributes to no round and is served all the same: what it sends goes into its row when it comes."""
    report = deployment.inside("late", tmp_path, 3600)
    assert report["status"] == "finished:completed"
    assert sorted(report["identities"]) == ["client-id:0", "client-id:1", "client-id:2"]
    slow = report["identities"].index("client-id:2")
    assert all(slow not in who for who in report["participants"].values())
    assert sum(report["late"]) >= 1
    assert report["last_seen"][slow] >= 0
    assert report["accuracy"][-1] > 0.8


def test_memory_held_by_devices(tmp_path: Path) -> None:
    """The default rule: the model of rows at the server but for rounding; a device that restarts has lost its row."""
    report = deployment.inside("held", tmp_path, 3600)
    rows, held, lost = report["rows"], report["held"], report["lost"]
    assert {run["status"] for run in (rows, held, lost)} == {"finished:completed"}
    models = [np.frombuffer(bytes.fromhex(run["model"]), dtype=np.float32) for run in (rows, held)]
    np.testing.assert_allclose(models[1], models[0], rtol=1e-3, atol=1e-5)
    assert held["memory_lost"] == [0.0] * 4
    assert all(2.0 <= vectors <= 3.0 for vectors in held["upload_vectors"])
    assert held["identities"] == ["partition-id:0", "partition-id:1", "partition-id:2"] == lost["identities"]
    assert sum(lost["memory_lost"]) >= 1
    assert lost["last_seen"] == [5, 5, 5]


def test_simulation_with_24_nodes(tmp_path: Path) -> None:
    report = deployment.inside("simulation", tmp_path, 1800)
    assert report["status"] == "finished:completed"
    assert report["round"] == 5
    assert [len(who) for who in report["participants"].values()] == [12] * 5
    assert len(report["identities"]) > 12
    assert report["accuracy"][-1] > report["accuracy"][0]


def test_the_baseline_runs(tmp_path: Path) -> None:
    report = deployment.inside("baseline", tmp_path, 1800)
    assert report["status"] == "finished:completed"
    lines = report["table"].splitlines()
    assert len(lines) == 1 + 2  # a line for each β


def test_memory_held_by_the_clients_with_and_without_secure_aggregation(tmp_path: Path) -> None:
    """In Flower's simulation: what SecAgg+ changes is its quantisation, in units of a thousand examples."""
    report = deployment.inside("tests.flower.held_simulation", tmp_path, 3600)
    plain, masked = report["plain"], report["masked"]
    for run in (plain, masked):
        assert [numbers["fedstale/participants"] for numbers in run["rounds"]] == [6, 5, 6, 5]
        assert [numbers["fedstale/memory_lost"] for numbers in run["rounds"]] == [0, 0, 0, 0]
    assert [numbers["fedstale/clipped"] for numbers in masked["rounds"]] == [0, 0, 0, 0]
    error = np.abs(np.subtract(masked["model"], plain["model"])).max()
    assert 0 < error < 2 * 4 * 6 * (1000 / 2100) * (2 * 4.0 / 2**22)
    assert np.abs(plain["model"]).min() > 0.5
