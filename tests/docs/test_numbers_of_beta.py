"""The tables of docs/howto/which-rule.md and docs/foundation.md are what `benchmarks/noise.py` wrote."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "benchmarks"
PAGE = (DOCS / "howto" / "which-rule.md").read_text(encoding="utf-8")
FOUNDATION = (DOCS / "foundation.md").read_text(encoding="utf-8")


def places(name: str, *columns: str) -> list[list[dict[str, str]]]:
    """Return the rows of a file, those with the same values in some columns together."""
    with open(RESULTS / name, newline="", encoding="utf-8") as file:
        return [list(group) for _, group in groupby(csv.DictReader(file), lambda row: [row[name] for name in columns])]


def noise_line(cells: list[dict[str, str]]) -> str:
    shown = []
    for cell in cells:
        learned = not cell["beta"][0].isdigit()
        error = f" ± {float(cell['standard error']):.2f}" if learned else ""
        shown.append(f"{float(cell['noise over the least']):.2f}{error}")
    return f"| {cells[0]['task']} | {cells[0]['p']} | {cells[0]['swap']} | {' | '.join(shown)} |"


def figure1_line(cells: list[dict[str, str]]) -> str:
    shown = [_short(float(cell["excess"]), float(cell["excess error"])) for cell in cells]
    return f"| {cells[0]['p']} | {cells[0]['lr']} | {' | '.join(shown)} |"


def _short(mean: float, error: float) -> str:
    return f"{mean:.2f} ± {error:.2f}" if mean < 100 else f"{mean:.0e}"


def test_noise_over_the_least() -> None:
    found = places("noise.csv", "task", "p", "swap")
    assert len(found) == 20
    for cells in found:
        assert noise_line(cells) in PAGE


def test_figure_1() -> None:
    found = places("noise-figure1.csv", "p", "lr")
    assert len(found) == 10
    for cells in found:
        assert figure1_line(cells) in FOUNDATION


def test_closer_looks() -> None:
    found = places("noise-cells.csv", "p_min", "swap")
    assert len(found) == 3
    for cells in found:
        for label, column, scale, digits in (
            ("noise", "noise", 1000, 1),
            ("test loss", "loss", 1, 3),
            ("accuracy", "accuracy", 100, 1),
            ("‖Δ_i‖² of the rare", "rare", 1, 3),
        ):
            shown = [f"{scale * float(cell[column]):.{digits}f}" for cell in cells if cell["beta"] != "auto"]
            assert f"| {label} | {' | '.join(shown)} |" in PAGE
    now = next(cell for cell in found[-1] if cell["beta"] == "auto")
    ratio, noise = float(now["noise over the least"]), 1000 * float(now["noise"])
    scores = f"test loss {float(now['loss']):.3f} and accuracy {100 * float(now['accuracy']):.1f}"
    assert f"as it is now {ratio:.2f}, with noise {noise:.1f}, {scores})" in PAGE
