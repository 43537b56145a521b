"""docs/leaderboard.md is what `fedstale bench table` writes from the tables in docs/results/bench."""

from __future__ import annotations

from pathlib import Path

from fedstale.bench import page, result_files

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_that_of_the_tables() -> None:
    files = result_files(DOCS / "results" / "bench")
    assert files
    assert (DOCS / "leaderboard.md").read_text(encoding="utf-8") == page(files)
