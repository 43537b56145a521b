"""The load test in small: `python -m tests.faults.load` is the large one, with its figures in docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.flower import deployment

from . import load


@pytest.mark.usefixtures("usual_garbage_collection")
def test_the_strategy_alone_does_not_grow(tmp_path: Path) -> None:
    """120 rounds with nodes that come back under new ids: what is kept per round or per node would show."""
    options = load.parse(["--memory", "--nodes", "8", "--rounds", "120", "--ask", "4", "--parameters", "100000"])
    rounds = load.memory_only(options)
    assert [line["round"] for line in rounds] == list(range(1, 121))
    assert sum(line["asked"] for line in rounds) > 300
    assert sum(line["rejected"] for line in rounds) > 0
    assert sum(line["silent"] for line in rounds) > 0
    assert load.growth(rounds) < 0.05
    load.write_csv(tmp_path / "rounds.csv", rounds)
    assert (tmp_path / "rounds.csv").read_text().startswith("round,seconds,rss,")


def test_a_round_that_does_not_add_up_is_found() -> None:
    options = load.parse(["--memory", "--nodes", "4", "--rounds", "4", "--ask", "2", "--parameters", "100"])
    rounds = load.memory_only(options)
    with pytest.raises(AssertionError, match="does not add up"):
        load.flat([{**rounds[0], "silent": 7}])
    with pytest.raises(AssertionError, match="does not name everybody"):
        load.flat([{**rounds[0], "asked_nodes": rounds[0]["asked_nodes"][:-1]}])


@pytest.mark.slow
@pytest.mark.skipif(not deployment.possible(), reason="needs the right to make namespaces (unshare)")
def test_nodes_that_come_and_go_on_a_real_superlink(tmp_path: Path) -> None:
    words = "--nodes 6 --hosts 3 --rounds 12 --ask 3 --every 3 --parameters 50000 --timeout 60"
    report = load.run(load.parse(words.split()), tmp_path)
    rounds, stored = report["rounds"], report["stored"]
    assert report["status"] == "finished:completed"
    assert [line["round"] for line in rounds] == list(range(1, 13))
    assert sum(line["contributed"] for line in rounds) > 20
    assert sum(report["events"].values()) >= 3
    # The store has every round, with the same numbers and as many participants.
    assert stored["round"] == list(range(12))
    for theirs, ours in (
        ("asked", "asked"),
        ("participants", "contributed"),
        ("failed", "failed"),
        ("silent", "silent"),
    ):
        assert stored[theirs] == [line[ours] for line in rounds]
    assert stored["came"] == [line["contributed"] for line in rounds]
    # Nobody is counted who did not answer: the nodes' own records have at least as many replies.
    assert all(report["answered"][str(line["round"])] >= line["contributed"] for line in rounds)
