"""The walk of a round in docs/architecture.md is what `benchmarks/walk.py` counts, and it does not grow unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import walk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("evaluated", [False, True])
def test_the_page_has_the_walk_of_a_round(engine: str, evaluated: bool) -> None:
    found = walk.walk(engine, evaluated=evaluated, store=False)
    files = len({file for file, _ in found})
    line = f"| {engine} engine{', evaluated' * evaluated} | {files} | {len(found)} |"
    assert line in PAGE.read_text(encoding="utf-8"), "run benchmarks/walk.py and write its numbers into the page"
