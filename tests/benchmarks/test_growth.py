"""The pure parts of the growth curves and of the million-client run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.peers import growing, machine

from benchmarks import growth, million


def test_a_curve_has_every_memory(tmp_path: Path) -> None:
    rows = growth.servers("clients", "Clients", {20: (20, 5, 30), 40: (40, 5, 30)}, 2)
    assert {row["series"] for row in rows} == set(growth.MEMORIES)
    assert all(float(str(row["seconds"])) > 0 and float(str(row["bytes"])) > 0 for row in rows)
    machine.write(tmp_path / "growth.csv", rows)
    machine.write_about(tmp_path / "growth-about.csv", "x")
    growth.draw(rows, tmp_path)
    assert (tmp_path / "growth-clients.png").stat().st_size > 10_000
    text = "\n".join(growing.growth(tmp_path, tmp_path, lambda facts: facts["command"]))
    assert "### Clients" in text
    assert "| low-rank | " in text


def test_series_are_measured_again_in_their_place() -> None:
    before = [{"curve": "a", "series": s, "value": "1", "seconds": "1", "bytes": "0"} for s in ("x", "y")]
    now: list[dict[str, object]] = [{"curve": "a", "series": "x", "value": 1, "seconds": 2.0, "bytes": 0.0}]
    merged = growth.merged(before, now)
    assert [row["seconds"] for row in merged] == [2.0, "1"]


def test_generated_clients_are_functions_of_seed_and_client() -> None:
    trainer = million.Generated(block=3)
    model = trainer.initial()
    together = trainer.updates(model, np.array([4, 9, 2, 7]), 0)
    alone = million.Generated(block=1).updates(model, np.array([2]), 5)
    assert np.allclose(together[2], alone[0], atol=1e-6)
    assert not np.allclose(together[0], together[1])
    better = model - 0.5 * together.mean(0)
    assert trainer.evaluate(better).metrics["accuracy"] > trainer.evaluate(model).metrics["accuracy"]


def test_resume_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "PARTICIPANTS", 4)
    whole = million.simulation(50, 4, tmp_path / "a", [])
    whole.run()
    first = million.simulation(50, 4, tmp_path / "b", [million.Report(tmp_path / "b", 2)])
    first.run(until=3)
    first.state.close()
    second = million.simulation(50, 4, tmp_path / "b", [], resume=True)
    assert second.state.round == 2
    second.run()
    assert million.digest(second.state) == million.digest(whole.state)
    second.state.close()
    whole.state.close()


def test_the_million_part_of_the_page(tmp_path: Path) -> None:
    names = ["clients", "rounds", "own bytes at most", "mapped bytes at most", "bytes on disk", "N = 2000", "N = 9000"]
    rows: list[dict[str, object]] = [{"what": name, "value": float(k + 1)} for k, name in enumerate(names)]
    rows[-1]["value"] = 9.0
    machine.write(tmp_path / "million.csv", rows)
    machine.write_about(tmp_path / "million-about.csv", "x")
    text = "\n".join(growing.million(tmp_path, lambda facts: facts["command"]))
    assert "Largest over smallest: 1.50×; bar: flat in N to within 1.3×: **not met**." in text
