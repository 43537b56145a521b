"""A handful of kills, one per place, in the default run; more of them, and the fig2 sweep, among the slow tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from . import crashes, fig2
from .fork_server import ForkServer
from .scenarios import SCENARIOS

pytest.importorskip("torch")
pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def killer(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> crashes.Crashes:
    return crashes.Crashes(fork_server, tmp_path_factory.mktemp("crashes"), seed=7)


@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ("single run, quadratic, disk", "checkpoint"),
        ("single run, quadratic, ram", "store"),
        ("Flower server, disk", "checkpoint"),
        ("sweep, one by one, disk", "store"),
        pytest.param("single run, quadratic, disk", "training", marks=pytest.mark.slow),
        pytest.param("single run, quadratic, ram", "rule", marks=pytest.mark.slow),
        pytest.param("Flower server, ram", "store", marks=pytest.mark.slow),
    ],
)
def test_killed_at_a_place(killer: crashes.Crashes, scenario: str, place: str) -> None:
    cell = crashes.Cell(SCENARIOS[scenario], place)
    killer.hit(cell, 1)
    assert (cell.kills, cell.finished, cell.identical) == (1, 1, 1), cell.troubles
    assert cell.sound, cell.troubles


@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ("single run, quadratic, disk", "rule"),
        ("single run, quadratic, ram", "checkpoint"),
        pytest.param("single run, quadratic, ram", "training", marks=pytest.mark.slow),
        pytest.param("Flower server, disk", "rule", marks=pytest.mark.slow),
        ("sweep, one by one, disk", "store"),
    ],
)
def test_ctrl_c_at_a_place(fork_server: ForkServer, scenario: str, place: str, tmp_path: Path) -> None:
    hits = crashes.Crashes(fork_server, tmp_path, seed=7, signal=signal.SIGINT)
    cell = crashes.Cell(SCENARIOS[scenario], place)
    hits.hit(cell, 1)
    assert (cell.kills, cell.finished, cell.identical) == (1, 1, 1), cell.troubles
    assert cell.sound, cell.troubles


@pytest.mark.parametrize("scenario", ["Flower server, ram", "Flower server, disk"])
def test_a_flower_server_killed_between_checkpoint_and_store_tells_the_round_later(
    fork_server: ForkServer, killer: crashes.Crashes, scenario: str, tmp_path: Path
) -> None:
    """The checkpoint has round t, the store has not: its numbers are in the checkpoint, and nothing is asked twice."""
    expected, _, _ = killer.whole(SCENARIOS[scenario])
    saves = 3
    answer = fork_server.run(scenario, tmp_path / "f", place="saved", crossing=saves, moment="after")
    assert answer["signal"] == 9
    assert fork_server.run(scenario, tmp_path / "f")["code"] == 0
    found, rounds = SCENARIOS[scenario].read(tmp_path / "f")
    assert rounds == list(range(SCENARIOS[scenario].rounds))
    assert found == expected


@pytest.mark.parametrize(
    "crossing", [1, 3, 5, pytest.param(2, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)]
)
def test_a_flower_server_killed_in_its_first_checkpoint_starts_again(
    fork_server: ForkServer, killer: crashes.Crashes, crossing: int, tmp_path: Path
) -> None:
    scenario = SCENARIOS["Flower server, disk"]
    answer = fork_server.run(scenario.name, tmp_path / "f", place="checkpoint", crossing=crossing, moment="after")
    assert answer["signal"] == 9
    again = fork_server.run(scenario.name, tmp_path / "f")
    assert again["code"] == 0, again["log"]
    assert scenario.read(tmp_path / "f")[0] == killer.whole(scenario)[0]


def test_what_differs_is_noticed(killer: crashes.Crashes) -> None:
    """The comparison itself: a scenario measured against a truth with one other bit is not sound."""
    scenario = SCENARIOS["single run, quadratic, ram"]
    truth, _, _ = killer.whole(scenario)
    cell = crashes.Cell(scenario, "training")
    folder = killer._new()
    killer._finish(cell, folder, {**truth, "model": "another"})
    assert (cell.finished, cell.identical, cell.sound) == (1, 0, False)
    assert cell.troubles == ["different: model"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_forty_hits(number: int, tmp_path: Path) -> None:
    table = crashes.campaign(40, tmp_path, seed=3, number=number)
    assert sum(cell.kills for cell in table) == 40
    assert all(cell.sound for cell in table), [(c.scenario.name, c.place, c.troubles) for c in table if not c.sound]


@pytest.mark.slow
def test_fig2_killed_five_times(tmp_path: Path) -> None:
    seen = fig2.campaign(5, tmp_path, extent=fig2.EXTENT, seeds=fig2.SEEDS, seed=1)
    assert seen.stored == sorted(seen.stored)
    assert seen.stored[-1] < seen.runs == 360
    assert seen.repeated == 0
    assert seen.same
    assert all(seen.same.values())
