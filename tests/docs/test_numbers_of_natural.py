"""The table of natural federations (docs/simulator.md) is that of the files in docs/results/natural."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

DOCS = Path(__file__).parents[2] / "docs"


TASKS = ("wisdm", "heart-disease", "shakespeare")


def accuracies(name: str) -> tuple[str, float, list[float]]:
    """The task, its accuracy at the best rate on pooled data, and the federation's by seed."""
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    with open(DOCS / "results" / "natural" / f"{name}.csv", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            runs[line["data"], line["lr"]].append(float(line["accuracy"]))
            task = line["task"]
    pooled = max(mean(values) for (data, _), values in runs.items() if data == "pooled")
    (federation,) = (values for (data, _), values in runs.items() if data == "federation")
    return task, pooled, federation


def rows() -> list[str]:
    """A line for each task: the best rate on pooled data, the federation, and how many seeds there are."""
    return [
        f"| `{task}` | {100 * pooled:.1f} | {100 * mean(federation):.1f} | {len(federation)} |"
        for task, pooled, federation in map(accuracies, TASKS)
    ]


def test_the_table_is_that_of_the_files() -> None:
    page = (DOCS / "simulator.md").read_text(encoding="utf-8").splitlines()
    assert not [line for line in rows() if line not in page]


@pytest.mark.parametrize("name", TASKS)
def test_a_federation_is_within_three_points_of_its_ceiling(name: str) -> None:
    _, pooled, federation = accuracies(name)
    assert mean(federation) >= pooled - 0.03
