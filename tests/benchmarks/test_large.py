"""The pages' parts about the server's pass and about large models: bars as met or missed, rows of other sizes kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from benchmarks.peers import large, machine

from benchmarks import large_models


def combine(memory: str, clients: int, ms: float) -> dict[str, object]:
    facts: dict[str, object] = {"processor": large.THIS, "rule": "tempered", "memory": memory, "loops": "numba"}
    return facts | {
        "clients": clients,
        "ms": ms,
        "low ms": ms,
        "high ms": ms,
        "over memcpy": ms / 4,
        "first touch ms": 1.5 * ms,
    }


def test_the_pass_is_held_against_its_bars(tmp_path: Path) -> None:
    kinds = {"float32": 8.0, "bfloat16": 9.0, "float16": 12.0, "float32 on disk": 9.0}
    rows = [combine(memory, n, ms) for memory, ms in kinds.items() for n in (24, 100_000)]
    machine.write(tmp_path / "server-step.csv", rows)
    machine.write_about(tmp_path / "server-step-about.csv", "x")
    text = "\n".join(large.server_pass(tmp_path, lambda facts: facts["command"]))
    assert "| float32, tempered, compiled, over a memcpy | 2.00 | ≤ 1.5 | **missed** |" in text
    assert "| bfloat16, tempered, compiled, over a memcpy | 2.25 | ≤ 2.5 | met |" in text
    assert "| float16, tempered, compiled, first touch over the steady state | 1.50 | ≤ 2 | met |" in text
    assert "| float32 on disk, tempered, compiled, N = 100,000 over N = 24 | 1.00 | ≤ 1.1 | met |" in text


def contender(name: str, params: int, cpu: float, peak: float, rows: int) -> dict[str, object]:
    times = dict.fromkeys(("wall", "save wall", "save cpu", "resume wall", "resume cpu", "first cpu"), 1.0)
    facts: dict[str, object] = {"contender": name, "params": params, "clients": 10, "rounds": 5, "cpu": cpu, **times}
    return facts | {"peak": peak, "own": peak, "resume peak": 0.0, "disk": 1e9, "row bytes": 4.0 * params * rows}


def test_sizes_measured_before_stay(tmp_path: Path) -> None:
    assert large.large_models(tmp_path, str) == []
    large_models.keep(tmp_path, [contender(large_models.DISK, 250_000_000, 5.0, 11e9, 4)])
    for cpu in (3.0, 1.5):  # the second one takes the place of the first
        pair = [contender(large_models.BASE, 25_000_000, 1.0, 2e9, 0)]
        large_models.keep(tmp_path, [*pair, contender(large_models.OURS, 25_000_000, cpu, 4e9, 23)])
    text = "\n".join(large.large_models(tmp_path, lambda facts: facts["command"]))
    assert "| 25M × 10, FedStale: processor time over FedAvg's | 1.50 | ≤ 2 | met |" in text
    assert "| 25M × 10, FedStale: memory [GB] | 4.00 | ≤ 3.5 | **missed** |" in text
    assert "| 25M × 10, FedStale: rows on disk | 23.00 | ≤ 22 | **missed** |" in text
    assert "| 250M × 10, FedStale, rows on disk, checkpoint: memory [GB] | 11.00 | ≤ 10 | **missed** |" in text
