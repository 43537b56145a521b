"""What the board reads: only for reading, only what changed, and by indexes."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from fedstale.board import source as source_module
from fedstale.board.source import Source
from fedstale.store import Store, StoreError, Watch
from fedstale.store import watch as watch_module

from .conftest import fill_full, record, start_running


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PAUSE", 0.0)


def test_a_watch_sees_what_is_new_what_changed_and_what_is_gone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, Store.open(tmp_path, read_only=True) as reader:
        watch = Watch(reader)
        assert watch.refresh() == set()
        run = store.start({"a": 1}, name="one")
        (key,) = watch.refresh()
        assert watch.runs[key].status == "running"
        assert watch.refresh() == set()
        run.record(0, {"loss": 2.0})
        run.flush()
        assert watch.refresh() == {key}
        assert watch.runs[key].summary == {"loss": 2.0}
        run.release()  # as a killed process does: the store is not told
        assert watch.refresh() == {key}
        assert watch.runs[key].status == "interrupted"
        store.delete(run.id)
        assert watch.refresh() == {key}
        assert watch.runs == {}


def test_a_watch_needs_no_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path) as store:
        first = store.start({"a": 1})
        watch = Watch(store)
        watch.refresh()
        monkeypatch.setattr(time, "time", lambda: 1.0)  # the clock goes back to 1970
        second = store.start({"a": 2})
        assert len(watch.refresh()) == 1
        second.record(0, {"x": 1.0})
        second.finish()
        assert len(watch.refresh()) == 1
        first.finish()


def plan(folder: Path, query: str, values: tuple[object, ...] = ()) -> str:
    with sqlite3.connect(folder / "store.sqlite") as connection:
        return "; ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values))


def test_every_query_goes_by_an_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedstale.store.database import Database

    asked: list[tuple[str, tuple[object, ...]]] = []
    read = Database.read

    def spy(self: Database, query: str, kinds: str, values: object = ()) -> list[tuple[object, ...]]:
        asked.append((query, tuple(values)))  # type: ignore[arg-type]
        return read(self, query, kinds, values)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "read", spy)
    opened = Source(folder)
    for info in list(opened.runs.values())[:3]:
        opened.series(info, ["accuracy", "beta"])
        opened.participants(info)
        opened.clients(info, "probability")
    opened.look()
    opened.close()
    queries = {query: values for query, values in asked if query.startswith("SELECT")}
    assert len(queries) >= 5
    for query, values in queries.items():
        steps = plan(folder, query, values).split("; ")
        assert all("USING" in step for step in steps if step.startswith(("SCAN", "SEARCH"))), f"{query}: {steps}"
    assert "COVERING INDEX run_state" in plan(folder, watch_module._STATES)
    assert "INTEGER PRIMARY KEY" in plan(folder, watch_module._rows_query(3), (1, 2, 3))


def test_new_rounds_are_seen_and_runs_come_newest_first(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        fill_full(store)
        run = start_running(store)
        opened = Source(tmp_path)
        assert next(iter(opened.runs)) == run.id
        assert opened.pace(run.id) is None
        assert opened.series(opened.runs[run.id], ["accuracy"])["accuracy"].rounds.tolist() == [0, 1, 2, 3, 4]
        before = opened.version
        record(run, 5)
        opened.look()
        assert opened.version == before + 1
        assert opened.series(opened.runs[run.id], ["accuracy"])["accuracy"].rounds.tolist() == [0, 1, 2, 3, 4, 5]
        assert (opened.pace(run.id) or 0) > 0
        opened.look()
        assert opened.version == before + 1
        run.finish()
        opened.close()


def test_nothing_can_be_written_through_it(folder: Path, source: Source) -> None:
    with pytest.raises(StoreError, match="reading only"):
        source.store.start({"a": 1})
    with pytest.raises(StoreError, match="attempt to write a readonly database"):
        source.store.database.read("DELETE FROM run", "")


def test_a_store_that_goes_and_comes_back(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        fill_full(store)
    opened = Source(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    opened.look()
    assert "there is no store" in opened.trouble
    assert len(opened.runs) == 1  # what was seen stays
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    opened.look()
    assert opened.trouble == ""
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    opened.look()
    assert opened.trouble
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        fill_full(store)
    opened.look()
    assert opened.trouble == ""
    assert len(opened.runs) == 2
    opened.close()


def test_a_locked_store_is_said_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PATIENCE", 0.05)
    for name in ("store", "other"):
        with Store.open(tmp_path / name) as store:
            fill_full(store)
    opened = Source(tmp_path / "store")
    other = sqlite3.connect(tmp_path / "other" / "store.sqlite", isolation_level=None)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN EXCLUSIVE")
    (tmp_path / "other" / "store.sqlite").replace(tmp_path / "store" / "store.sqlite")
    opened.look()
    assert "locked" in opened.trouble
    assert len(opened.runs) == 1
    other.execute("ROLLBACK")
    other.close()
    opened.look()
    assert opened.trouble == ""
    opened.close()


def test_the_file_itself_may_be_named(folder: Path) -> None:
    opened = Source(folder / "store.sqlite")
    assert opened.folder == folder
    opened.close()
