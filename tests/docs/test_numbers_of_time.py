"""The tables of docs/time.md are those of the files in docs/results/time."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.time_to_target import ENTRIES, HEADINGS, page_row

from fedstale.spreadsheet import _read_table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("task", ["mnist-mlp", "wisdm"])
def test_a_table_is_that_of_its_file(task: str) -> None:
    page = (DOCS / "time.md").read_text(encoding="utf-8").splitlines()
    limit, *rows = _read_table(DOCS / "results" / "time" / f"{task}.csv")
    assert [row["method"] for row in rows] == [entry.name for entry in ENTRIES]
    place = page.index(page_row(rows[0]))
    assert page[place - 2] == f"| {' | '.join(HEADINGS)} |"
    assert page[place : place + len(rows)] == [page_row(row) for row in rows]
    assert f"{100 * float(limit['accuracy']):.1f} %" in "\n".join(page)
