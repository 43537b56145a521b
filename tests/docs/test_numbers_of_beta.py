"""The tables of docs/howto/choose-beta.md are what `benchmarks/noise.py` wrote."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "benchmarks"
PAGE = (DOCS / "howto" / "choose-beta.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with open(RESULTS / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_noise_over_the_least() -> None:
    places = [(key, list(group)) for key, group in groupby(rows("noise.csv"), _place)]
    assert len(places) == 12
    for (p_min, swap), cells in places:
        shown = []
        for cell in cells:
            error = f" ± {float(cell['standard error']):.2f}" if cell["beta"].startswith("auto") else ""
            shown.append(f"{float(cell['noise over the least']):.2f}{error}")
        assert f"| {p_min} | {swap} | {' | '.join(shown)} |" in PAGE


def test_closer_looks() -> None:
    places = [list(group) for _, group in groupby(rows("noise-cells.csv"), _place)]
    assert len(places) == 3
    for cells in places:
        for label, column, scale, digits in (
            ("noise", "noise", 1000, 1),
            ("test loss", "loss", 1, 3),
            ("accuracy", "accuracy", 100, 1),
        ):
            shown = " | ".join(f"{scale * float(cell[column]):.{digits}f}" for cell in cells)
            assert f"| {label} | {shown} |" in PAGE


def _place(row: dict[str, str]) -> tuple[str, str]:
    return row["p_min"], row["swap"]
