"""The pure parts of the comparison: tables, verdicts, the page; and that the works are what they say."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.peers import machine, page, race, tables  # noqa: E402
from benchmarks.peers.environments import ROOT, WANTED  # noqa: E402
from benchmarks.peers.work import WORKS, Clock, Shards, build  # noqa: E402

from fedstale.tasks.catalogue import TASKS  # noqa: E402


def entry(work: str, contender: str, seconds: list[float], **more: Any) -> dict[str, Any]:
    told = {"startup": 1.0, "accuracy": 0.9, "samples": WORKS[work].samples * (len(seconds) + 1), "peak": 2**20}
    return {
        "work": work,
        "contender": contender,
        "repetition": 0,
        "seconds": seconds,
        "threads": 2,
        "versions": {"torch": "2"},
        **told,
        **more,
    }


@pytest.mark.parametrize("name", list(WORKS))
def test_models_are_those_of_the_tasks(name: str) -> None:
    work = WORKS[name]
    ours = [tuple(p.shape) for p in TASKS[work.task].model().parameters()]
    assert [tuple(p.shape) for p in build(work.task).parameters()] == ours


def test_a_round_has_k_batches() -> None:
    rows = WORKS["digits"].rows(60)
    assert rows.shape == (5, 32)
    assert int(rows.max()) < 60
    epoch = WORKS["logistic"].rows(60)
    assert epoch.shape == (6, 10)
    assert sorted(epoch.flatten().tolist()) == list(range(60))


def test_results_survive_the_file(tmp_path: Path) -> None:
    written = [entry("cnn", tables.OURS, [0.5, 0.25], training_share=0.9), {**entry("cnn", "x", []), "error": "no"}]
    tables.write(tmp_path, written)
    read = tables.read(tmp_path)
    assert read[0]["seconds"] == [0.5, 0.25]
    assert read[0]["versions"] == {"torch": "2"}
    assert read[0]["training_share"] == 0.9
    assert read[1]["error"] == "no"


def test_summaries_are_medians_over_rounds_and_runs() -> None:
    results = [entry("cnn", "a", [1.0, 2.0, 3.0]), entry("cnn", "a", [5.0, 5.0, 5.0], startup=3.0)]
    found = tables.summaries(results, "cnn")["a"]
    assert isinstance(found, tables.Summary)
    assert found.seconds == 4.0
    assert found.mean == 3.5
    assert found.startup == 2.0
    assert math.isnan(found.training_share)


def test_problems_are_told() -> None:
    good = [entry("cnn", tables.YARDSTICK, [1.0, 1.0]), entry("cnn", "other", [1.0, 1.0])]
    assert tables.problems(good) == []
    far = [good[0], entry("cnn", "other", [1.0, 1.0], accuracy=0.5)]
    assert "accuracy 0.500" in tables.problems(far)[0]
    lazy = [good[0], entry("cnn", "other", [1.0, 1.0], samples=1)]
    assert "1 samples instead of" in tables.problems(lazy)[0]
    broken = [good[0], {**entry("cnn", "other", []), "error": "ImportError"}]
    assert "ImportError" in tables.problems(broken)[0]


def test_accuracies_of_runs_of_their_own_decide(tmp_path: Path) -> None:
    timed = [entry("cnn", tables.YARDSTICK, [1.0, 1.0]), entry("cnn", "other", [1.0, 1.0], accuracy=0.5)]
    longer = [entry("cnn", tables.YARDSTICK, [1.0] * 11), entry("cnn", "other", [1.0] * 11, accuracy=0.91)]
    assert tables.accuracies(tmp_path) == {}
    tables.write(tmp_path, longer, tables.ACCURACIES)
    apart = tables.accuracies(tmp_path)
    assert apart == {"cnn": (12, {tables.YARDSTICK: 0.9, "other": 0.91})}
    assert tables.problems(timed, apart) == []
    assert len(tables.problems(timed)) == 1
    text = "\n".join(page.comparison(timed, machine.about("x"), apart))
    assert "after 12 rounds" in text
    assert "| 91.0% |" in text


def test_the_page_says_what_was_met(tmp_path: Path) -> None:
    shares = {"training_share": 0.97, "evaluation_share": 0.01}
    results = [
        entry("cnn", tables.OURS, [1.0, 1.0], **shares),
        entry("cnn", tables.BETTER_FLOWER, [1.4, 1.4]),
        entry("digits", tables.OURS, [0.01, 0.01], **shares),
        entry("digits", tables.BETTER_FLOWER, [0.2, 0.2]),
        {**entry("digits", "fluke", []), "error": "RuntimeError: nms"},
    ]
    folder = tmp_path / "results" / "benchmarks"
    tables.write(folder, results)
    machine.write_about(folder / "peers-about.csv", "make bench-peers")
    page.render(tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| (a) against Flower, 2 actors × 1 thread | 1.4 | ≥ 1.5 | **not met** |" in text
    assert "| (c) against Flower, 2 actors × 1 thread | 20 | ≥ 10 | met |" in text
    assert "does not run: `RuntimeError: nms`" in text
    assert "the server's part) 2.00%" in text


def test_the_clock_counts_and_knows_when_to_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    arguments = ["--work", "cnn", "--data", str(tmp_path), "--rounds", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    clock = Clock()
    due = [clock.due for _ in clock.each()]
    assert due == [False, False, True, True]  # every third round, and the last
    assert len(clock.seconds) == 3
    clock.report()
    assert '"startup"' in out.read_text()


def test_contenders_have_their_script_and_environment() -> None:
    for one in race.CONTENDERS:
        assert one.environment in WANTED
        assert (ROOT / "benchmarks" / "peers" / f"with_{one.environment}.py").exists()
    labels = {one.label for one in race.CONTENDERS}
    assert {tables.OURS, tables.YARDSTICK, tables.BETTER_FLOWER} <= labels
    assert race.last_line("a\nValueError: b\nc\n", 1) == "ValueError: b"


def test_export_and_the_plain_loop_agree(tmp_path: Path) -> None:
    from benchmarks.peers.export import export
    from benchmarks.peers.with_fedstale import task_of

    from fedstale.training import flatten

    work = WORKS["digits"]
    export(work, tmp_path / "digits")
    shards = Shards(tmp_path / "digits")
    x, y = shards.client(3)
    assert len(x) == len(y) > 32
    start = torch.nn.utils.parameters_to_vector(shards.model(work).parameters()).detach().numpy()
    assert (start == flatten(task_of(work, shards).build(0))).all()
    assert 0.0 <= shards.accuracy(shards.model(work)) <= 0.5
