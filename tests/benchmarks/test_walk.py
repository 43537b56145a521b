"""docs/architecture.md names every package; its walk of a round is what `benchmarks/walk.py` counts, and short."""

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


def test_the_page_names_every_package() -> None:
    packages = {file.parent.name for file in (PAGE.parents[1] / "src" / "fedstale").glob("*/__init__.py")}
    table = "".join(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    assert {name for name in packages if f"`{name}`" not in table} == set()


def test_the_walk_is_shorter_than_that_of_the_first_version() -> None:
    found = walk.walk("vmap", evaluated=True, store=False)
    assert len({file for file, _ in found}) < 27
    assert len(found) < 119
