"""The table of what the rules gain (docs/howto/which-rule.md) is that of the files in docs/results/rules."""

from __future__ import annotations

import csv
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def rows() -> list[str]:
    """The table's lines, one for each task and method, the best method of a task first."""
    found = []
    for path in sorted((DOCS / "results" / "rules").glob("*-mean.csv")):
        with open(path, encoding="utf-8", newline="") as file:
            means = sorted(csv.DictReader(file), key=lambda row: -float(row["gap_closed_mean"]))
        for row in means:
            numbers = {name: f"{100 * float(value):.1f}" for name, value in row.items() if name != "method"}
            found.append(
                f"| {path.name.removesuffix('-mean.csv')} | {row['method']} "
                f"| {numbers['gap_closed_mean']} ± {numbers['error_over_cells']} | {numbers['median']} "
                f"| {numbers['least']} | {numbers['pooled']} ± {numbers['pooled_error']} |"
            )
    return found


def test_the_table_is_that_of_the_files() -> None:
    page = (DOCS / "howto" / "which-rule.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in page if line.startswith(("| mnist-", "| digits-")) and line.count("|") == 7]
    assert shown == rows()
