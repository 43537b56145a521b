"""Full disks, read-only folders, damaged and foreign files, newer versions: one clear line, nothing lost."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedstale.checks import InvalidInput
from fedstale.durable import FileTrouble
from fedstale.store import Store, StoreError


def written(folder: Path) -> str:
    with Store.open(folder) as store, store.start({"seed": 1}, name="one") as run:
        for round in range(600):
            run.record(round, {"loss": float(np.sin(round))})
    return run.id


def one_line(error: pytest.ExceptionInfo[InvalidInput]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_full_disk_is_one_error_and_nothing_is_lost(store: Store) -> None:
    run = store.start({})
    run.record(0, {"loss": 1.0})
    run.flush()
    connection = store.database._usable_connection()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    noise = np.random.default_rng(0).normal(size=(50, 1000))
    for round in range(1, 51):
        run.record(round, {"loss": 1.0 / round}, clients={"noise": noise[round - 1]})
    with pytest.raises(StoreError, match="the disk is full") as error:
        run.flush()
    one_line(error)
    with pytest.raises(StoreError, match="the disk is full"):
        run.finish()
    with Store.open(store.folder, read_only=True) as reader:
        assert reader.run(run.id).metrics()["loss"].tolist() == [1.0]
        assert reader.runs()[0].status == "running"
    connection.execute("PRAGMA max_page_count = 1000000")
    run.finish()
    np.testing.assert_array_equal(store.run(run.id).client_metrics("noise")[1], noise)
    assert store.run(run.id).metrics()["loss"].tolist() == [1.0, *(1.0 / round for round in range(1, 51))]


def test_a_disk_full_at_the_start_leaves_no_trace_of_the_run(store: Store) -> None:
    connection = store.database._usable_connection()
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreError, match="the disk is full"):
        store.start({"long": "x" * 100_000})
    assert store.runs() == []
    assert list((store.folder / "runs").iterdir()) == []


def test_the_first_error_is_told_when_a_run_ends_on_a_full_disk(tmp_path: Path) -> None:
    def work() -> None:
        with Store.open(tmp_path) as store, store.start({}) as run:
            store.database._usable_connection().execute("PRAGMA max_page_count = 1")
            run.record(0, {}, clients={"noise": np.random.default_rng(0).normal(size=10_000)})
            raise RuntimeError("the first")

    with pytest.raises(RuntimeError, match="the first"):
        work()
    with Store.open(tmp_path) as store:
        assert store.runs()[0].status == "interrupted"


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions bind root only after it has stepped down."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        os.chmod(name, 0o755)
        written(folder)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_read_only_folder_can_be_read_and_says_that_it_cannot_be_written(locked_folder: Path) -> None:
    with unprivileged():
        with Store.open(locked_folder, read_only=True) as store:
            assert store.runs()[0].status == "finished"
            assert len(store.run("one").metrics()["loss"]) == 600
            with pytest.raises(StoreError, match="opened for reading only"):
                store.start({})
            with pytest.raises(FileTrouble, match=r"opened for reading only|not writable"):
                store.delete("one")
        with pytest.raises(FileTrouble) as error, Store.open(locked_folder) as store:
            store.start({})
        assert str(locked_folder) in one_line(error)
        with pytest.raises(FileTrouble, match="not writable") as error:
            Store.open(locked_folder / "below")
        one_line(error)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_read_without_rights_shows_what_its_owner_adds(locked_folder: Path) -> None:
    with unprivileged():
        reader = Store.open(locked_folder, read_only=True)
        assert len(reader.runs()) == 1
    locked_folder.chmod(0o755)
    with Store.open(locked_folder) as store:
        store.start({}).finish()
    locked_folder.chmod(0o555)
    with unprivileged():
        assert len(reader.runs()) == 2
    reader.close()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_store_names_both_versions(tmp_path: Path, create: bool, read_only: bool) -> None:
    written(tmp_path)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE version SET format = 7, written_by = '9.9.9'")
    connection.close()
    with pytest.raises(StoreError, match=r"has format 7, written by fedstale 9.9.9; .* reads format 4") as error:
        Store.open(tmp_path, create=create, read_only=read_only)
    one_line(error)


@pytest.mark.parametrize("read_only", [True, False])
def test_an_older_store_is_refused_and_kept(tmp_path: Path, read_only: bool) -> None:
    written(tmp_path)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE version SET format = 2")
    connection.close()
    with pytest.raises(StoreError, match=r"has format 2, .* choose another folder") as error:
        Store.open(tmp_path, read_only=read_only)
    one_line(error)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        assert connection.execute("SELECT format FROM version").fetchall() == [(2,)]
    connection.close()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("content", [b"this is no database" * 500, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes, read_only: bool) -> None:
    (tmp_path / "store.sqlite").write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|cannot be opened") as error:
        Store.open(tmp_path, read_only=read_only)
    assert str(tmp_path) in one_line(error)
    assert (tmp_path / "store.sqlite").read_bytes() == content


def test_a_store_cut_short_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "store.sqlite"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StoreError, match="damaged") as error, Store.open(tmp_path, read_only=True) as store:
        store.runs()
    one_line(error)


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "store.sqlite"
    content = bytearray(file.read_bytes())
    content[4096 * 2 :] = os.urandom(len(content) - 4096 * 2)
    file.write_bytes(content)
    with pytest.raises(StoreError, match="damaged") as error, Store.open(tmp_path) as store:
        store.runs()
    one_line(error)


def test_another_programs_database_is_not_touched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(StoreError, match="is not a store of fedstale"):
        Store.open(tmp_path)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


def test_a_missing_store_is_not_made_by_looking(tmp_path: Path) -> None:
    for arguments in ({"read_only": True}, {"create": False}):
        with pytest.raises(StoreError, match="there is no store at"):
            Store.open(tmp_path / "none", **arguments)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        Store.open(tmp_path / "file")
    with pytest.raises(FileTrouble, match="a file has its name"):
        Store.open(tmp_path / "file" / "below")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.runs()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_to_open_its_own(store: Store) -> None:
    run = store.start({})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.runs()
        except StoreError as error:
            os.write(write, str(error).encode())
        finally:
            run.release()
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert b"open it again in this one" in os.read(read, 1000)
    os.close(read)
    assert store.runs()[0].status == "running"  # the child letting go does not free the parent's lock
