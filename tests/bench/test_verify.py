"""`bench verify` and `bench table` on tables that somebody forged or spoilt: found, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedstale.bench import Seeds, ends_again, following, gap_ends, page, read, rerun, without_ends
from fedstale.bench import suite as suites
from fedstale.bench.results import MEASURED, ResultRow
from fedstale.checks import InvalidInput
from fedstale.cli.app import app
from fedstale.spreadsheet import _read_table, write_table
from tests.bench import tiny
from tests.command_line import ok

Row = dict[str, str]


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tiny settings are the suite."""
    monkeypatch.setattr(suites, "SUITE", tiny.SETTINGS)
    monkeypatch.chdir(tmp_path)


def call(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def edited(table: Path, edit: Callable[[list[Row]], Any]) -> Path:
    """Copy a table with changed lines, or with those that the edit returns."""
    rows = _read_table(table)
    kept = edit(rows)
    rows = rows if kept is None else kept
    write_table(Path("x.csv"), list(rows[0]), [list(row.values()) for row in rows])
    return Path("x.csv")


def times(row: Row, column: str, factor: float) -> None:
    row[column] = " ".join(repr(factor * float(cell)) for cell in row[column].split())


def forged_gap(row: Row) -> None:
    """U-FedAvg three times as bad as it is, and everything that follows from that."""
    times(row, "plain_by_seed", 3.0)
    for check in following([ResultRow(row)]):
        if check.what.startswith("gap_closed"):
            row[check.what] = repr(check.found)
        elif check.what == "has_gap":
            row["has_gap"] = str(bool(check.found))


def tempered(row: Row) -> bool:
    return row["setting"] == "tiny/two-groups" and row["rule"] == "tempered"


def test_a_forged_gap_and_forged_costs_are_found(table: Path) -> None:
    """Every run comes out the same, and every number of the line follows from its seeds."""

    def forge(rows: list[Row]) -> None:
        row = next(filter(tempered, rows))
        forged_gap(row)
        row |= {"update_noise": "1e-09", "update_bias": "2", "bytes_per_round": "1", "server_bytes": "1"}

    file = edited(table, forge)
    lines = read([file])
    assert all(check.holds for check in following(lines))
    wrong = [check for check in gap_ends(lines, lines) if not check.holds]
    assert {(check.where, check.what) for check in wrong} == {
        (f"tiny/two-groups, tempered, seed {seed}", "plain_by_seed") for seed in tiny.SEEDS.judging
    }
    line = next(one for one in lines if tempered(dict(one.row)))
    assert {check.what for check in rerun(line, 0) if not check.holds} == set(MEASURED)
    done = call("verify", file, "--sample", 100, "--seed", 0)
    assert done.exit_code == 1
    assert "6 wrong numbers of" in done.output
    for column in ("plain_by_seed", *MEASURED):
        assert f"{column} is stated as" in done.output


def test_whichever_seed_is_drawn_the_costs_are_looked_at(table: Path) -> None:
    file = edited(table, lambda rows: [{**row, "bytes_per_round": "1"} for row in rows if row["rule"] != "impossible"])
    for seed in range(4):
        done = call("verify", file, "--sample", 1, "--seed", seed)
        assert done.exit_code == 1
        assert "bytes_per_round is stated as 1.0" in done.output


@pytest.mark.parametrize("forge", [False, True])
def test_ends_that_the_table_has_not_are_run_again(table: Path, forge: bool) -> None:
    def only(rows: list[Row]) -> list[Row]:
        kept = [row for row in rows if tempered(row)]
        if forge:
            forged_gap(kept[0])
        return kept

    file = edited(table, only)
    (line,) = lines = read([file])
    assert without_ends(lines, lines) == lines
    assert without_ends(lines, read([file, table])) == []
    assert gap_ends(lines, lines) == []
    made = ends_again(line)
    assert [one.rule for one in made] == ["u-fedavg", "everybody"]
    checks = gap_ends(lines, made)
    assert len(checks) == 4
    assert [check.what for check in checks if not check.holds] == ["plain_by_seed"] * 2 * forge
    done = call("verify", file, "--sample", 1, "--seed", 0)
    assert (done.exit_code, "they are run again" in done.output) == (int(forge), True)
    other = call("verify", file, table, "--sample", 1, "--seed", 0)  # another table may have them
    assert (other.exit_code, "they are run again" in other.output) == (int(forge), False)


def test_a_line_that_hides_its_gap_is_found(table: Path) -> None:
    def hide(rows: list[Row]) -> None:
        nothing = dict.fromkeys(("plain_by_seed", "everybody_by_seed", "has_gap"), "")
        next(filter(tempered, rows)).update(nothing | {"gap_closed": "nan", "gap_closed_error": "nan"})

    lines = read([edited(table, hide)])
    assert all(check.holds for check in following(lines))
    assert len([check for check in gap_ends(lines, lines) if not check.holds]) == 4


@pytest.mark.parametrize(("factor", "holds"), [(1.2, True), (3.0, False)])
def test_elsewhere_noise_may_differ_a_little(table: Path, factor: float, holds: bool) -> None:
    def there(rows: list[Row]) -> None:
        for row in rows:
            row["machine"] = "another"
            row["update_noise"] = repr(factor * float(row["update_noise"] or "nan"))

    line = next(one for one in read([edited(table, there)]) if tempered(dict(one.row)))
    assert all(check.holds for check in rerun(line, 0)) == holds
    twice = ResultRow({**line.row, "server_bytes": repr(2 * line.number("server_bytes"))})
    assert "server_bytes" in {check.what for check in rerun(twice, 0) if not check.holds}


@pytest.mark.parametrize("factor", [1.0001, 3.0])
def test_ends_from_another_version_may_be_rounded_otherwise(table: Path, factor: float) -> None:
    def there(rows: list[Row]) -> None:
        row = next(filter(tempered, rows))
        row["version"] = "0.0.9"
        times(row, "plain_by_seed", factor)

    lines = read([edited(table, there)])
    assert all(check.holds for check in gap_ends(lines, lines)) == (factor < 2)


def test_only_the_seeds_of_the_suite_count(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = tuple(replace(one, seeds=Seeds((3,), (5, 6, 7))) for one in tiny.SETTINGS)
    monkeypatch.setattr(suites, "SUITE", longer)
    with pytest.raises(
        InvalidInput, match=r"results.csv, line 2, seeds = '5 6': must be .* 5 6 7 \(the whole\) or 20 21"
    ):
        ok("bench", "verify", table)
    monkeypatch.setattr(suites, "QUICK", tiny.SEEDS)
    assert "10 lines of --quick: not for the leaderboard" in ok("bench", "verify", table, "--sample", 1, "--seed", 0)
    with pytest.raises(InvalidInput, match=r"results.csv, line 2, seeds = '5 6': the page takes no lines of --quick"):
        page([table], tiny.SETTINGS)
    assert "half-step" in ok("bench", "table", table)  # a look at it is allowed


def in_row(column: str, value: str) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        rows[1][column] = value

    return edit


def without(column: str) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        for row in rows:
            del row[column]

    return edit


CELLS = [
    ("lr", "abc", "a finite number above 0"),
    ("lr", "inf", "a finite number above 0"),
    ("lr", "nan", "a finite number above 0"),
    ("lr", "-1", "a finite number above 0"),
    ("lr", "", "a finite number above 0"),
    ("seeds", "x y", "whole numbers"),
    ("seeds", "5 5", "different whole numbers"),
    ("seeds", "", "whole numbers"),
    ("objective_by_seed", "foo", "for each of 2 seeds"),
    ("objective_by_seed", "0.1", "for each of 2 seeds"),
    ("accuracy_by_seed", "0.1 inf", "a finite number"),
    ("plain_by_seed", "0.1 foo", "for each of 2 seeds"),
    ("plain_by_seed", "", "if and only if"),
    ("gap_closed", "foo", "a finite number"),
    ("update_noise", "-inf", "a finite number"),
    ("server_bytes", "1 kB", "a finite number"),
    ("has_gap", "?", "True, False or nothing"),
    ("at_edge", "left", "low, high, both or nothing"),
    ("label", "a\x1b[31m", "printable"),
    ("machine", "", "must not be empty"),
]


@pytest.mark.parametrize("command", ["verify", "table"])
@pytest.mark.parametrize(("column", "value", "said"), CELLS)
def test_a_cell_that_holds_something_else_is_named(
    table: Path, command: str, column: str, value: str, said: str
) -> None:
    done = call(command, edited(table, in_row(column, value)))
    assert isinstance(done.exception, InvalidInput), done.exception
    assert str(done.exception).startswith(f"x.csv, line 3, {column} = {value!r}: ")
    assert said in str(done.exception)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("setting", "tiny", "must be a setting of the suite: tiny/two-groups, tiny/bursts"),
        ("rule", "temperd", "did you mean tempered"),
        ("rule", "mifa,fedavg", "must be one rule"),
        ("config", "0" * 12, "hash differs"),
    ],
)
def test_a_line_that_no_run_has_written_is_named(table: Path, column: str, value: str, said: str) -> None:
    done = call("verify", edited(table, in_row(column, value)))
    assert isinstance(done.exception, InvalidInput), done.exception
    assert str(done.exception).startswith(f"x.csv, line 3, {column} = {value!r}: ")
    assert said in str(done.exception)


@pytest.mark.parametrize("command", ["verify", "table"])
@pytest.mark.parametrize("column", ["machine", "has_gap", "version", "objective", "plain_by_seed", "diverged"])
def test_a_column_that_is_missing_is_named(table: Path, command: str, column: str) -> None:
    done = call(command, edited(table, without(column)))
    assert isinstance(done.exception, InvalidInput), done.exception
    assert str(done.exception) == f"x.csv is not a table of fedstale bench: it has no column {column}"


@pytest.mark.parametrize("command", ["verify", "table"])
def test_a_line_twice_is_refused(table: Path, command: str) -> None:
    done = call(command, edited(table, lambda rows: [*rows, rows[0]]))
    assert isinstance(done.exception, InvalidInput), done.exception
    number = 2 + len(_read_table(table))
    assert str(done.exception).startswith(f"x.csv, line {number}, rule = 'half-step'")
    assert "tiny/two-groups has a line of this rule already, line 2" in str(done.exception)


@pytest.mark.parametrize("command", ["verify", "table"])
def test_what_holds_no_results_is_refused(table: Path, command: str) -> None:
    def impossible(rows: list[Row]) -> list[Row]:
        return [row for row in rows if row["rule"] == "impossible"]

    whole = table.read_bytes()
    heading, first = whole.splitlines(keepends=True)[:2]
    Path("folder.csv").mkdir()
    for content, said in (
        (b"", f"nothing to {'verify' if command == 'verify' else 'show'}"),
        (b"\n\n", "nothing to"),
        (heading, "nothing to"),
        (edited(table, impossible).read_bytes(), "nothing to"),
        (b"hello world", "it has no column setting"),
        (np.arange(256, dtype=np.uint8).tobytes(), "is no text"),
        (b"a,b\n1,\0\n", "it has no column setting"),
        (heading + first.rstrip() + b",1,2\r\n", "line 2: it has more cells"),
        (heading + first[:60] + b"\r\n", "line 2: it has fewer cells"),
        (heading + b'"' + b"x" * 200_000 + b'"', "line 2"),
    ):
        Path("y.csv").write_bytes(content)
        done = call(command, "y.csv")
        assert isinstance(done.exception, InvalidInput), (content[:20], done.exception)
        assert said in str(done.exception)
        assert "y.csv" in str(done.exception)
    for name, said in (("folder.csv", "folder.csv is a folder"), ("none.csv", "there is no file none.csv")):
        with pytest.raises(InvalidInput, match=said):
            ok("bench", command, name)
