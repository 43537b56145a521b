"""The benchmark on tiny settings: every rule a line, nothing repeated, wrong numbers found, a new rule on the page."""

from __future__ import annotations

import csv
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedstale.analysis.target import cost_to_target
from fedstale.bench import (
    SUITE,
    BenchRun,
    ResultRow,
    Standing,
    bench_methods,
    gap_ends,
    inconsistent,
    page,
    read,
    rerun,
    sampled,
    settings_named,
    standings,
)
from fedstale.bench import suite as suites
from fedstale.bench.cells import SECONDS
from fedstale.bench.contest import all_present
from fedstale.bench.results import seconds_to
from fedstale.checks import InvalidInput
from fedstale.cli.app import app
from fedstale.rules import RULES
from fedstale.simulation import make_settings, simulate
from fedstale.simulation.methods import EVERYBODY, Method
from fedstale.spreadsheet import _read_table, write_table
from fedstale.store import Store
from fedstale.sweeps.lockstep import eligible
from tests.bench import tiny
from tests.command_line import ok


def test_every_rule_has_a_line_in_every_setting(table: Path) -> None:
    lines = read([table])
    rules = ["half-step", "tempered", "scaffold", "impossible", "u-fedavg", "everybody"]
    assert [(line.setting, line.rule) for line in lines] == [
        (one.name, rule) for one in tiny.SETTINGS for rule in rules
    ]
    for line in lines:
        assert line.ran == (line.rule != "impossible")
        assert line.row["version"]
        assert len(line.row["config"]) == 12
        if line.ran:
            assert line.seeds == list(tiny.SEEDS.judging)
            assert len(line.by_seed("objective")) == 2
            assert line.number("objective") == pytest.approx(line.by_seed("objective").mean(), rel=1e-5)
            assert line.number("bytes_per_round") > 0
            assert line.number("update_noise") >= 0
            assert line.number("seconds_per_round") > 0
    assert {line.row["cannot"] for line in lines if not line.ran} == {"needs clients that are never away"}
    plain = next(line for line in lines if line.rule == "u-fedavg")
    limit = next(line for line in lines if line.rule == "everybody")
    assert plain.number("gap_closed") == 0
    assert limit.number("gap_closed") == pytest.approx(1.0)
    assert limit.number("update_noise") == pytest.approx(0.0, abs=1e-12)


def test_nothing_is_run_twice_and_the_table_is_the_same(table: Path) -> None:
    before = table.read_bytes()
    tiny.counted.clear()
    tiny.run(table.parent / "store", table)
    impossible = 2 * 2  # two rates in two settings: what failed is tried again
    assert sum(tiny.counted) == impossible
    assert table.read_bytes() == before


def test_a_table_tells_nothing_of_the_machine_but_its_kind(table: Path) -> None:
    text = table.read_text()
    for private in (socket.gethostname(), getpass.getuser(), str(Path.home()), str(table.parent), os.getcwd()):
        assert private not in text.replace("everybody", "")


def test_a_new_rule_is_on_the_leaderboard(table: Path) -> None:
    text = page([table], tiny.SETTINGS)
    assert "| half-step |" in text
    assert "impossible cannot run: needs clients that are never away" in text
    for setting in tiny.SETTINGS:
        assert f"## {setting.name}" in text
    found = standings(read([table]))
    assert {one.rule for one in found} == {"half-step", "tempered", "scaffold", "u-fedavg"}
    assert [one.rank.mean for one in found] == sorted(one.rank.mean for one in found)
    assert sum(one.rank.mean for one in found) == pytest.approx(1 + 2 + 3 + 4)
    assert found[0].behind is None


def test_a_rule_that_cannot_run_in_a_setting_is_last_there(table: Path) -> None:
    def tempered(lines: list[ResultRow]) -> Standing:
        return next(one for one in standings(lines) if one.rule == "tempered")

    lines = read([table])
    there = [line for line in lines if line.setting == "tiny/two-groups"]
    here = [line for line in lines if line.setting == "tiny/bursts"]
    refused = [ResultRow({**one.row, "cannot": "why"}) if one.rule == "tempered" else one for one in here]
    found = tempered([*there, *refused])
    assert (found.ran, found.rank.count) == (1, 2)
    assert found.rank.mean == (tempered(there).rank.mean + 4) / 2
    absent = tempered([*there, *(one for one in here if one.rule != "tempered")])
    assert (absent.ran, absent.rank.count) == (1, 1)


def test_the_same_runs_come_out_the_same(table: Path) -> None:
    lines = read([table])
    assert inconsistent(lines) == []
    assert all(check.holds for check in gap_ends(lines, lines))
    drawn = sampled(lines, 3, seed=1)
    assert [(line.rule, k) for line, k in drawn] == [(line.rule, k) for line, k in sampled(lines, 3, seed=1)]
    firsts = {id(line) for line, k in drawn if k == 0}
    assert firsts == {id(line) for line, _ in drawn}  # noise and bytes are those of the first seed
    assert len(drawn) - 3 <= len(firsts) <= 3
    for line, position in drawn:
        assert all(check.holds for check in rerun(line, position, tiny.SETTINGS))


@pytest.mark.parametrize("column", ["objective", "gap_closed", "accuracy_error", "has_gap", "diverged"])
def test_a_number_that_does_not_follow_from_its_seeds_is_found(table: Path, tmp_path: Path, column: str) -> None:
    wrong = tiny.changed(table, tmp_path / "wrong.csv", column, "0.25" if column != "has_gap" else "")
    assert column in {check.what for check in inconsistent(read([wrong]))}


def test_a_changed_seed_is_found(table: Path, tmp_path: Path) -> None:
    line = next(line for line in read([table]) if line.rule == "half-step")
    values = line.by_seed("objective")
    values[1] = np.nextafter(values[1], 2.0)  # one bit
    wrong = tiny.changed(table, tmp_path / "wrong.csv", "objective_by_seed", " ".join(map(repr, values.tolist())))
    found = next(line for line in read([wrong]) if line.rule == "half-step")
    assert [check.what for check in rerun(found, 1, tiny.SETTINGS) if not check.holds] == ["objective"]


@pytest.mark.parametrize("column", ["machine", "version"])
@pytest.mark.parametrize(("factor", "holds"), [(1.0001, True), (3.0, False)])
def test_elsewhere_rounding_is_allowed_and_more_is_not(
    table: Path, tmp_path: Path, column: str, factor: float, holds: bool
) -> None:
    """On another kind of machine, and with code that may sum in another order."""
    elsewhere = tiny.changed(table, tmp_path / "there.csv", column, "another")
    line = next(line for line in read([elsewhere]) if line.rule == "half-step")
    seen = " ".join(map(repr, (line.by_seed("objective") * factor).tolist()))
    other = tiny.changed(elsewhere, tmp_path / "other.csv", "objective_by_seed", seen) if factor != 1 else elsewhere
    found = next(line for line in read([other]) if line.rule == "half-step")
    assert all(check.holds for check in rerun(found, 1, tiny.SETTINGS)) == holds


def test_a_setting_that_has_changed_is_not_compared(table: Path, tmp_path: Path) -> None:
    wrong = tiny.changed(table, tmp_path / "wrong.csv", "config", "0" * 12)
    line = next(line for line in read([wrong]) if line.rule == "half-step")
    with pytest.raises(InvalidInput, match="hash differs"):
        rerun(line, 0, tiny.SETTINGS)


def test_what_is_no_table_of_results_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name, said in (("other.csv", "no column setting"), ("none.csv", "no file")):
        with pytest.raises(InvalidInput, match=said):
            read([tmp_path / name])


def test_the_command_line(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "SUITE", tiny.SETTINGS)
    monkeypatch.chdir(tmp_path)
    store = table.parent / "store"
    common = ("--store", store, "--rules", "half-step,tempered", "--workers", 0, "--quiet")
    said = ok("bench", "run", *common, "--settings", "bursts", "--out", "again.csv")
    assert "half-step" in said
    assert "1 setting in" in said
    assert max(map(len, ok("bench", "table", "again.csv", env={"COLUMNS": "80"}).splitlines())) <= 140
    rows = {row["rule"]: row for row in _read_table(Path("again.csv"))}
    before = {row["rule"]: row for row in _read_table(table) if row["setting"] == "tiny/bursts"}
    assert rows["half-step"]["objective_by_seed"] == before["half-step"]["objective_by_seed"]
    assert "0 wrong numbers" in ok("bench", "verify", "again.csv", "--sample", 1, "--seed", 0)
    wrong = tiny.changed(Path("again.csv"), Path("wrong.csv"), "accuracy", "0.5")
    failed = CliRunner().invoke(app, ["bench", "verify", str(wrong), "--sample", "1", "--seed", "0"])
    assert failed.exit_code == 1
    assert "accuracy is stated as 0.5" in failed.output
    assert ok("bench", "table", "again.csv", "--out", "board.md").strip() == "board.md"
    assert "half-step" in Path("board.md").read_text(encoding="utf-8")
    assert "tiny/bursts" in ok("bench", "list")
    assert '"cpu_seconds"' in ok("bench", "run", "--dry-run", "--json", "--rules", "tempered", "--settings", "bursts")
    with pytest.raises(InvalidInput, match="unknown setting 'tiny/burst'"):
        ok("bench", "run", "--settings", "tiny/burst")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_killed_and_given_again(table: Path, tmp_path: Path) -> None:
    code = "import sys; from tests.bench.tiny import main; main(*sys.argv[1:])"  # no script: a rule has its address
    command = [sys.executable, "-c", code, str(tmp_path / "store"), str(tmp_path / "results.csv")]
    process = subprocess.Popen(command)
    database = tmp_path / "store" / "store.sqlite"
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if (database.exists() and database.stat().st_size > 60_000) or (tmp_path / "results.csv").exists():
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert process.wait(timeout=60) != 0, "it ended before it was killed"
    subprocess.run(command, check=True, timeout=300)
    with open(table, encoding="utf-8", newline="") as whole, open(tmp_path / "results.csv", encoding="utf-8") as again:
        for one, other in zip(csv.DictReader(whole), csv.DictReader(again), strict=True):
            assert {k: v for k, v in one.items() if k != "seconds_per_round"} == {
                k: v for k, v in other.items() if k != "seconds_per_round"
            }


def test_a_setting_with_a_clock_is_judged_by_seconds_as_well(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "timed.csv"
    with Store.open(tmp_path / "store") as store:
        methods = bench_methods("tempered,impossible")
        work = BenchRun([tiny.TIMED], methods, store, out)
        assert list(work.run()) == [tiny.TIMED]
    lines = {line.rule: line for line in read([out])}
    plain, limit = lines["u-fedavg"], lines["everybody"]
    assert plain.gap is not None
    target = plain.gap.plain[0]
    settings = tiny.TIMED.settings(Method("u-fedavg"), plain.number("lr"), tiny.SEEDS.judging[0])
    run = simulate(**settings.record())
    reached = cost_to_target(run.metrics, "objective", target, 3)
    assert np.isnan(plain.by_seed(SECONDS)[0]) if reached is None else plain.by_seed(SECONDS)[0] == reached.seconds
    assert len(limit.by_seed(SECONDS)) == 0  # time plays no part in it
    assert tiny.TIMED.settings(EVERYBODY, 0.1, 0).server == "rounds"
    assert np.isnan(plain.number("update_noise"))
    assert inconsistent(list(lines.values())) == []
    for rule in ("tempered", "u-fedavg", "everybody"):
        assert all(check.holds for check in rerun(lines[rule], 1, [tiny.TIMED]))
    assert "| virtual s |" in page([out], [tiny.TIMED])
    assert "virtual s" not in page([table], tiny.SETTINGS)
    invented = tiny.changed(out, tmp_path / "invented.csv", f"{SECONDS}_by_seed", "1.5 2.5", "tempered")
    wrong = {line.rule: line for line in read([invented])}
    assert SECONDS in {check.what for check in inconsistent(list(wrong.values()))}
    assert [check.what for check in rerun(wrong["tempered"], 1, [tiny.TIMED]) if not check.holds] == [SECONDS]


def test_seconds_to_an_objective_are_those_of_the_first_of_three_evaluations_at_it() -> None:
    clock = (range(12), [1.5 * (t + 1) for t in range(12)])

    def seconds(values: list[float], target: float) -> float:
        return seconds_to(target, lambda name: (range(1, 12, 2), values) if name == "objective" else clock)

    assert seconds([9, 4, 7, 4, 3, 2], 4) == 1.5 * 8  # the fourth evaluation is of the eighth round
    assert seconds([4, 4, 4, 9, 9, 9], 4) == 1.5 * 2
    assert np.isnan(seconds([9, 4, 7, 9, 4, 3], 4))
    assert np.isnan(seconds_to(4, lambda name: ([], [])))


def test_a_table_that_is_older_than_the_column_of_seconds_is_consistent(table: Path, tmp_path: Path) -> None:
    rows = [{name: text for name, text in row.items() if SECONDS not in name} for row in _read_table(table)]
    write_table(tmp_path / "old.csv", list(rows[0]), [list(row.values()) for row in rows])
    assert inconsistent(read([tmp_path / "old.csv"])) == []
    tiny.run(table.parent / "store", tmp_path / "old.csv")
    assert (tmp_path / "old.csv").read_bytes() == table.read_bytes()


def test_the_suite_is_sound() -> None:
    names = [setting.name for setting in SUITE]
    assert len(set(names)) == len(names)
    for seeds in (suites.QUICK, *(setting.seeds for setting in SUITE)):
        assert not {*seeds.choosing, *seeds.yardstick} & {*seeds.judging}
        assert len(seeds.judging) >= 2
    assert {setting.who for setting in SUITE} >= {"two-groups", "log-uniform", "day-night", "bursts"}
    for setting in SUITE:
        made = setting.settings(Method("tempered"), 0.1, 0)
        assert made.total_rounds == setting.rounds
        assert setting.learned.natural or setting.timed or eligible(made)
        limit = setting.settings(EVERYBODY, 0.1, 0)
        assert (limit.participation, limit.p_min, limit.swap) == ("two-groups", 1.0, made.swap)
    assert next(one.name for one in settings_named("digits/bursts, bursts")) == "digits/bursts"
    assert {one.problem for one in settings_named("digits")} == {"digits"}
    assert set(RULES) >= {"tempered", "mifa"}


def test_everybody_is_the_setting_with_all_clients() -> None:
    given = {"participation": "markov", "participation_options": {"correlation": 0.9}, "selection": "uniform"}
    made = make_settings(**all_present({**given, "selection_options": {"m": 3}, "swap": 0.4}))
    assert (made.participation, made.p_min, made.selection, made.swap) == ("two-groups", 1.0, "all", 0.4)
    assert made.participation_options == made.selection_options == {}
