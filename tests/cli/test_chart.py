"""Charts in the terminal: they fit, they rise where the curve rises, and ASCII is enough for them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedstale.cli.chart import _BLOCKS, chart, columns, spark
from fedstale.store import Store

ROUNDS = np.arange(50.0)


def dots(line: str) -> list[int]:
    return [k for k, mark in enumerate(line) if mark.strip()]


def test_a_rising_line_rises() -> None:
    lines = chart(ROUNDS[:40], ROUNDS[:40] / 39, width=20, height=5, form="{:.0%}".format).splitlines()
    assert lines[0].startswith("100% │")
    assert lines[4].startswith("  0% │")
    body = [dots(line.partition("│")[2]) for line in lines[:5]]
    assert all(min(above) >= max(below) for above, below in pairwise(body))
    assert lines[5].strip() == "└" + "─" * 20
    assert lines[6].split() == ["1", "40"]


@pytest.mark.parametrize("width", [10, 37, 72])
def test_it_is_as_wide_as_it_is_told(width: int) -> None:
    values = np.sin(ROUNDS)
    for ascii_only in (False, True):
        lines = chart(ROUNDS, values, width=width, height=6, ascii_only=ascii_only).splitlines()
        assert len(lines) == 8
        assert {len(line) for line in lines} == {len(lines[0])}
        assert len(spark(ROUNDS, values, width=width, ascii_only=ascii_only)) == width


def test_ascii_is_ascii() -> None:
    assert (chart(ROUNDS, np.sin(ROUNDS), ascii_only=True) + spark(ROUNDS, ROUNDS, ascii_only=True)).isascii()


def test_every_column_has_a_mark() -> None:
    values = np.where(ROUNDS % 7 == 0, np.cos(ROUNDS), np.nan)  # measured now and then
    lines = chart(ROUNDS, values, width=30, height=4, ascii_only=True).splitlines()[:4]
    marked = {k for line in lines for k in dots(line.partition("|")[2])}
    assert marked == set(range(30))


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5, 0.5], [np.nan, 2.0, np.nan], [1e300, -1e300]])
def test_few_or_equal_values(values: list[float]) -> None:
    at = np.arange(float(len(values)))
    assert "│" in chart(at, np.array(values), width=12)
    assert len(spark(at, np.array(values), width=12)) == 12


def test_columns_are_means_by_round_not_by_entry() -> None:
    rounds = np.array([0.0, 1.0, 2.0, 90.0, 99.0])
    found = columns(rounds, np.array([1.0, 2.0, 3.0, 10.0, 20.0]), 10)
    assert found[0] == 2.0
    assert np.isnan(found[1:9]).all()
    assert found[9] == 15.0


def test_spark_from_low_to_high() -> None:
    assert spark(np.arange(8.0), np.arange(8.0), width=8) == _BLOCKS


def test_show_in_a_terminal_without_unicode(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store, store.start({"task": "[b]x"}, name="[red]β</b>", rounds_total=30) as run:
        for t in range(30):
            run.record(t, {"excess_loss": 30.0 - t, "beta": t / 30})

    def show(encoding: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedstale", "runs", "show", "[red]β</b>", "--store", "s"],
            cwd=tmp_path,
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode(encoding)

    rich = show("utf-8")
    assert "[red]β</b>" in rich  # a name is no markup
    assert "task [b]x" in rich
    assert "│" in rich
    assert "excess_loss over rounds" in rich
    plain = show("ascii")
    assert "+-----" in plain
    assert "beta" in plain
