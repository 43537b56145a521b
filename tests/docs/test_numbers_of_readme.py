"""The first table of the README is that of docs/results/demo.csv, which `make demo` writes (demo/comparison.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = ("FedAvg", "U-FedAvg", "FedVARP", "Tempered FedStale")
LIMIT = "everybody, always"


def measured(path: Path = ROOT / "docs" / "results" / "demo.csv") -> dict[str, dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def cells(method: str, row: dict[str, str]) -> list[str]:
    loss, error, gap, spread = (float(row[f"{name}"]) for name in COLUMNS)
    closed = "0 %" if method == "U-FedAvg" else f"{100 * gap:.0f} ± {100 * spread:.0f} %".replace("-", "−")
    return [f"{loss:.3f} ± {error:.3f}", closed]


COLUMNS = ("objective", "objective error", "gap closed", "gap closed error")


def test_the_first_table_is_that_of_the_demo() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| rule |"))
    table = [line.strip("| ").split(" | ") for line in lines[start + 2 : start + 2 + len(SHOWN)]]
    found = {row[0].split(":")[0]: [cell.strip("*") for cell in row[1:]] for row in table}
    demo = measured()
    assert found == {method: cells(method, demo[method]) for method in SHOWN}
    limit = f"would end at a loss of {float(demo[LIMIT]['objective']):.3f} here"
    assert limit in " ".join(lines)


@pytest.mark.slow  # the whole demo: 40 s of computing
def test_the_demo_gives_these_numbers(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedstale.cli.app import app

    done = CliRunner().invoke(app, ["compare", "--folder", str(tmp_path), "--store", str(tmp_path / "runs"), "--quiet"])
    assert done.exit_code == 0, done.output
    for method, row in measured(tmp_path / "comparison.csv").items():
        for name in COLUMNS:
            assert float(row[name]) == pytest.approx(float(measured()[method][name]), rel=0.02, nan_ok=True)
