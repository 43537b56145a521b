"""`benchmarks/rules.py`: a plan over `fedstale.bench.contest`, with the command line and the columns of its tables."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from benchmarks import rules

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "rules"


def headings(path: Path) -> list[str]:
    with open(path, encoding="utf-8", newline="") as file:
        return next(csv.reader(file))


def test_a_small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rules, "PLANS", {"digits-mlp": rules.Plan((0.1, 0.01), (("share", 0.2), ("batch_size", 8)))})
    cells = [
        "--p-min",
        "0.5",
        "--swaps",
        "0.6",
        "--alphas",
        "",
        "--methods",
        "u-fedavg,mifa,fedstale,tempered,everybody",
    ]
    seeds = ["--choosing", "1", "--judging", "2"]
    command = ["rules.py", *cells, *seeds, "--out", str(tmp_path), "--store", str(tmp_path / "store")]
    monkeypatch.setattr(sys, "argv", command)
    rules.main()
    said = capsys.readouterr().out
    assert "tempered FedStale is behind MIFA by more than the error in" in said.replace("Tempered", "tempered")
    assert "of 1 cells" in said
    assert headings(tmp_path / "digits-mlp-cells.csv") == headings(RESULTS / "digits-mlp-cells.csv")
    with open(tmp_path / "digits-mlp-cells.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines][-1] == "everybody"
    assert all(len(line["objective_by_seed"].split()) == 2 for line in lines)
