import csv
import io
import math
import sys
from pathlib import Path

import pytest

from fedstale.durable import FileTrouble
from fedstale.store import Store, StoreError

HEADER = [
    "run",
    "name",
    "sweep",
    "status",
    "diverged_in",
    "config.rule.beta",
    "config.rule.gap",
    "round",
    "accuracy",
    "loss",
]


@pytest.fixture
def two(store: Store) -> tuple[str, str]:
    with store.start({"rule": {"beta": 0.5, "gap": 1}, "task": "digits"}, name='<b>, "x"', sweep="s") as first:
        first.record(0, {"loss": 0.1})
        first.record(2, {"loss": math.nan, "accuracy": 0.25})
    with store.start({"rule": {"beta": "auto", "gap": None}, "task": "digits"}) as second:
        second.record(0, {"loss": math.inf})
        second.finish("diverged", diverged_in=2)
    return first.id, second.id


def test_csv_has_a_line_per_round_and_the_settings_that_differ(store: Store, two: tuple[str, str]) -> None:
    stream = io.StringIO()
    store.export_csv(stream)
    assert list(csv.reader(io.StringIO(stream.getvalue()))) == [
        HEADER,
        [two[1], "", "", "diverged", "2", "auto", "", "0", "", "inf"],
        [two[0], '<b>, "x"', "s", "finished", "", "0.5", "1", "0", "", "0.1"],
        [two[0], '<b>, "x"', "s", "finished", "", "0.5", "1", "2", "0.25", "nan"],
    ]


def test_csv_of_chosen_runs_in_their_order(store: Store, two: tuple[str, str], tmp_path: Path) -> None:
    store.export_csv(tmp_path / "out.csv", runs=[two[0], store.run(two[1]).info()])
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == [two[0], two[0], two[1]]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.csv"]


def test_csv_keeps_every_bit_of_a_number(store: Store) -> None:
    values = [1 / 3, 1e-308, 123456789.123456789, -0.0, 2.0**60]
    with store.start({}) as run:
        for round, value in enumerate(values):
            run.record(round, {"x": value})
    stream = io.StringIO()
    store.export_csv(stream, runs=[run.id])
    rows = csv.DictReader(io.StringIO(stream.getvalue()))
    assert [float(row["x"]).hex() for row in rows] == [value.hex() for value in values]


def test_no_run_gives_the_header_alone(store: Store) -> None:
    stream = io.StringIO()
    store.export_csv(stream)
    assert stream.getvalue() == "run,name,sweep,status,diverged_in,round\n"


def test_a_failed_export_leaves_the_old_file(store: Store, two: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("old")
    store.database._usable_connection().execute("UPDATE block SET data = x'00' WHERE run = 1")
    with pytest.raises(StoreError, match=f"the metrics of run {two[0]} are damaged"):
        store.export_csv(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.csv"]
    with pytest.raises(FileTrouble, match="No such file"):
        store.export_csv(tmp_path / "missing" / "out.csv")


def test_parquet_has_the_same_table_with_types(store: Store, two: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow.parquet import read_table

    store.export_parquet(tmp_path / "out.parquet")
    table = read_table(tmp_path / "out.parquet")
    assert table.column_names == HEADER
    columns = table.to_pydict()
    assert columns["run"] == [two[1], two[0], two[0]]
    assert columns["name"] == [None, '<b>, "x"', '<b>, "x"']
    assert columns["config.rule.beta"] == ["auto", "0.5", "0.5"]
    assert columns["config.rule.gap"] == [None, 1.0, 1.0]
    assert columns["diverged_in"] == [2, None, None]
    assert columns["round"] == [0, 0, 2]
    assert columns["accuracy"] == [None, None, 0.25]
    assert columns["loss"][:2] == [math.inf, 0.1]
    assert math.isnan(columns["loss"][2])


def test_without_pyarrow_one_line_says_what_to_install(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match="pyarrow is not installed: pip install 'pyarrow>="):
        store.export_parquet(tmp_path / "out.parquet")


@pytest.mark.parametrize("name", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)"])
def test_text_is_no_formula_to_a_spreadsheet(name: str, store: Store) -> None:
    with store.start({"note": name, "level": -1.5}, name=name) as run:
        run.record(0, {"loss": -2.0, "=evil": 1.0})
    with store.start({"note": "", "level": 2}) as run:
        run.record(0, {"loss": float("-inf")})
    text = io.StringIO()
    store.export_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert {row["name"] for row in rows} == {"", f"'{name}"}
    assert {row["config.note"] for row in rows} == {"", f"'{name}"}
    assert {row["config.level"] for row in rows} == {"-1.5", "2"}
    assert {row["loss"] for row in rows} == {"-2.0", "-inf"}
    assert "'=evil" in rows[0]
