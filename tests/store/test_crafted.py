"""Stores that somebody wrote to do harm, with checksums that match: one line, little memory, and an end."""

import io
import json
import os
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.store import Store, StoreError
from fedstale.store.blocks import SeriesKind, decode, with_checksum
from fedstale.store.info import CHECKSUM, checksum
from tests.faults.fork_server import Done, ForkServer

Change = Callable[[sqlite3.Connection], Any]


@cache
def honest() -> bytes:
    """A store's file."""
    with tempfile.TemporaryDirectory() as folder:
        with Store.open(folder) as store, store.start({"seed": 1}, name="one") as run:
            for round in range(300):
                run.record(round, {"loss": 1.0}, participants=[0, 1], clients={"p": np.ones(2)})
        return (Path(folder) / "store.sqlite").read_bytes()


def crafted(folder: Path, change: Change, *, seal: bool = True) -> None:
    """Take a store, change it behind its back, and seal what was changed."""
    (folder / "store.sqlite").write_bytes(honest())
    with closing(sqlite3.connect(folder / "store.sqlite")) as connection, connection:
        connection.create_function("checksum_of", -1, checksum, deterministic=True)
        connection.create_function("sealed", -1, with_checksum, deterministic=True)
        change(connection)
        if seal:
            connection.execute(f"UPDATE run SET checksum = {CHECKSUM}")


def everything(folder: Path) -> None:
    """Ask all that commands and the board ask."""
    with Store.open(folder, create=False, read_only=True) as store:
        for info in store.runs():
            run = store.run(info.id)
            run.metrics()
            run.participants()
            for name in run.client_metric_names():
                run.client_metrics(name)
        store.run("one")
        store.runs(where={"seed": 1})
        store.export_csv(io.StringIO())


def refused(done: Done) -> str:
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "


@pytest.mark.parametrize("table", ["run", "version", "block", "setting"])
def test_a_view_without_an_end_in_place_of_a_table(table: str, tmp_path: Path, fork_server: ForkServer) -> None:
    def change(connection: sqlite3.Connection) -> None:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"ALTER TABLE {table} RENAME TO hidden")
        connection.execute(f"CREATE VIEW {table} AS {ENDLESS}{', '.join(f'i AS {name}' for name in columns)} FROM n")

    crafted(tmp_path, change, seal=False)
    assert "damaged" in refused(fork_server.fedstale("runs", "list", "--store", tmp_path))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER UPDATE ON run BEGIN DELETE FROM block; END",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON run (abs(created))",
        "ALTER TABLE run ADD COLUMN more CHECK (length(randomblob(1000000)) > 0)",
        "CREATE VIEW v AS SELECT 1",
        "DROP INDEX run_name",
    ],
)
def test_tables_that_are_not_ours(statement: str, tmp_path: Path) -> None:
    crafted(tmp_path, lambda connection: connection.execute(statement))
    for read_only in (True, False):
        with pytest.raises(StoreError, match="its tables are not those of a store"):
            Store.open(tmp_path, read_only=read_only)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE run SET id = x'ff00'",
        "UPDATE run SET name = x'ff00'",
        "UPDATE run SET name = CAST(x'ff61' AS TEXT)",
        "UPDATE run SET name = 5.5e300 || x'00'",
        "UPDATE run SET status = x'00'",
        "UPDATE run SET status = 'elsewhere'",
        "UPDATE run SET message = x'00ff'",
        "UPDATE run SET created = 'yesterday'",
        "UPDATE run SET created = 1e300",
        "UPDATE run SET updated = -1e300",
        "UPDATE run SET updated = x'00'",
        "UPDATE run SET rounds_done = 'many'",
        "UPDATE run SET rounds_done = -5",
        "UPDATE run SET rounds_done = 9223372036854775807",
        "UPDATE run SET rounds_total = 'many'",
        "UPDATE run SET rounds_total = 9223372036854775807",
        "UPDATE run SET config = x'7b7d'",
        "UPDATE run SET config = '[1]'",
        "UPDATE run SET config = 'null'",
        'UPDATE run SET summary = \'{"accuracy": "x"}\'',
        "UPDATE run SET summary = '[]'",
        "UPDATE run SET hash = x'00'",
        "UPDATE run SET id = id || id || id || id || id || id || id || id || id || id",
        "UPDATE block SET kind = 77 WHERE kind = 0 AND first = 0",
        "UPDATE block SET kind = 'x' WHERE kind = 0 AND first = 0",
        "UPDATE block SET name = x'00' WHERE kind = 1",
        "UPDATE block SET data = 'text'",
        "UPDATE block SET data = x''",
        "UPDATE block SET data = 7",
        "UPDATE block SET first = first + 9223372036854775000",
        "UPDATE block SET first = 'x' WHERE kind = 1 AND first = 0",
        "UPDATE setting SET key = x'ff'",
        "UPDATE version SET format = 'three'",
        "UPDATE version SET written_by = x'00'",
        "DELETE FROM version",
        "INSERT INTO version VALUES (4, '')",
        "DELETE FROM block WHERE kind = 0",
        "DELETE FROM block WHERE kind = 0 AND first = 0",
    ],
)
def test_values_of_another_type_or_without_sense(change: str, tmp_path: Path) -> None:
    crafted(tmp_path, lambda connection: connection.execute(change), seal="x'" not in change.partition("WHERE")[0])
    with pytest.raises(StoreError) as error:
        everything(tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "store.sqlite") in str(error.value)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a": ' * 200_000, '{"a": ' + "9" * 5000 + "}"], ids=["[", "{", "9"])
def test_settings_without_a_bottom(text: str, tmp_path: Path) -> None:
    crafted(tmp_path, lambda connection: connection.execute("UPDATE run SET config = ?", (text,)))
    with pytest.raises(StoreError, match="cannot be read"):
        everything(tmp_path)


def rewrite(connection: sqlite3.Connection, kind: SeriesKind, raw: bytes) -> None:
    """Put a block of this content in the place of the first one of its kind."""
    key, name = connection.execute("SELECT run, name FROM block WHERE kind = ?", (int(kind),)).fetchone()
    connection.execute("DELETE FROM block WHERE kind = ?", (int(kind),))
    place = key, int(kind), name, 0
    connection.execute("INSERT INTO block VALUES (?, ?, ?, ?, ?)", (*place, with_checksum(zlib.compress(raw), *place)))


def packed(rounds: list[int], counts: list[int], values: bytes, count: int | None = None) -> bytes:
    """A block's content, not shuffled: numbers below 256 first."""
    head = (len(rounds) if count is None else count).to_bytes(4, "little")
    numbers = [np.array(part, "<i4").view(np.uint8).reshape(-1, 4).T.tobytes() for part in (rounds, counts)]
    return head + b"".join(numbers) + values


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SeriesKind.METRIC, b""),
        (SeriesKind.METRIC, packed([], [], b"")),
        (SeriesKind.METRIC, packed([0, 1], [1, 1], bytes(16), 2**31)),
        (SeriesKind.METRIC, packed([0, 1], [1, 1], bytes(16), 2**32 - 1)),
        (SeriesKind.METRIC, packed([0, 1], [1, 1], bytes(15))),
        (SeriesKind.METRIC, packed([0, 1], [2, 0], bytes(16))),
        (SeriesKind.METRIC, packed([0, 1], [-1, 3], bytes(16))),
        (SeriesKind.METRIC, packed([0, 0], [1, 1], bytes(16))),
        (SeriesKind.METRIC, packed([0, -5], [1, 1], bytes(16))),
        (SeriesKind.METRIC, packed([7, 1], [1, 1], bytes(16))),
        (SeriesKind.METRIC, packed([0, 5000], [1, 1], bytes(16))),
        (SeriesKind.METRIC, packed([0] + [1] * 256, [1] * 257, bytes(8 * 257))),
        (SeriesKind.ROUNDS, packed([0, 299], [1, 0], bytes(8))),
        (SeriesKind.PARTICIPANTS, packed([0], [1], b"\xff" * 4)),
        (SeriesKind.PARTICIPANTS, packed([0], [1], b"\xff\xff\xff\x7f")),
        (SeriesKind.PARTICIPANTS, packed([0, 1], [2**31 - 1, 2**31 - 1], bytes(8))),
    ],
)
def test_a_block_that_no_run_can_have_written(kind: SeriesKind, raw: bytes, tmp_path: Path) -> None:
    crafted(tmp_path, lambda connection: rewrite(connection, kind, raw))
    with pytest.raises(StoreError, match="damaged"):
        everything(tmp_path)


def test_a_small_store_does_not_fill_the_memory(tmp_path: Path, fork_server: ForkServer) -> None:
    """A gigabyte of zeros in one megabyte: `runs show` took several of them."""

    def change(connection: sqlite3.Connection) -> None:
        stream, zeros = zlib.compressobj(9), bytes(1 << 20)
        data = stream.compress(b"\x01" + bytes(11)) + stream.flush(zlib.Z_FULL_FLUSH)
        data += (stream.compress(zeros) + stream.flush(zlib.Z_FULL_FLUSH)) * (1 << 10)  # it depends on nothing before
        place = 1, int(SeriesKind.METRIC), "loss", 0
        data = with_checksum(data + stream.flush(), *place)
        assert len(data) < 2 << 20
        connection.execute("DELETE FROM block WHERE kind = 1")
        connection.execute("INSERT INTO block VALUES (?, ?, ?, ?, ?)", (*place, data))

    crafted(tmp_path, change)
    assert "larger than a block can be" in refused(
        fork_server.fedstale("runs", "show", "one", "--store", tmp_path, memory=2 << 30)
    )


@pytest.mark.parametrize("commands", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_many_rounds_of_many_metrics_do_not_fill_the_memory(
    commands: bool, tmp_path: Path, fork_server: ForkServer
) -> None:
    """Each metric is laid beside every round: a thousand names and a million rounds would be eight gigabytes."""
    blocks, names = 4000, 1000
    rounds = zlib.compress(packed([0] + [1] * 255, [0] * 256, b""))
    one = zlib.compress(packed([0], [1], bytes(8)))

    def change(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM block")
        add = "INSERT INTO block VALUES (?, ?, ?, ?, ?)"
        places = [(1, 0, "", 256 * k) for k in range(blocks)]
        connection.executemany(add, [(*place, with_checksum(rounds, *place)) for place in places])
        more = [(1, 1, f"m{k}", 0) for k in range(names)]
        connection.executemany(add, [(*place, with_checksum(one, *place)) for place in more])
        connection.execute("UPDATE run SET rounds_done = ?", (256 * blocks,))

    crafted(tmp_path, change)
    with Store.open(tmp_path, read_only=True) as store, pytest.raises(StoreError, match="request fewer"):
        store.run("one").metrics()
    if commands:
        assert refused(fork_server.fedstale("runs", "show", "one", "--store", tmp_path, "--json", memory=2 << 30))
        assert fork_server.fedstale("runs", "show", "one", "--store", tmp_path, memory=2 << 30).returncode == 0


def test_a_wide_round_among_narrow_ones_does_not_fill_the_memory(tmp_path: Path) -> None:
    raw = packed([0] + [1] * 255, [10_000_000] + [0] * 255, bytes(80_000_000))
    crafted(tmp_path, lambda connection: rewrite(connection, SeriesKind.CLIENTS, raw))
    with Store.open(tmp_path, read_only=True) as store, pytest.raises(StoreError, match="request fewer"):
        store.run("one").client_metrics("p")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_file_of_the_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "store.sqlite")
    for read_only in (True, False):
        with pytest.raises(StoreError, match="not a regular file"):
            Store.open(tmp_path, read_only=read_only)


def test_a_damaged_line_is_not_sealed_anew_by_going_on(tmp_path: Path) -> None:
    crafted(tmp_path, lambda connection: connection.execute("UPDATE run SET rounds_total = 5"), seal=False)
    with Store.open(tmp_path) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="checksum"):
                store.resume("one")


@pytest.mark.parametrize("kind", list(SeriesKind))
def test_noise_in_a_block_is_always_the_same_kind_of_error(kind: SeriesKind) -> None:
    chance = np.random.default_rng(int(kind))
    for size in [*range(40), 100, 1000]:
        for high in (2, 256):
            raw = chance.integers(0, high, size).astype(np.uint8).tobytes()
            for head in (b"", (1).to_bytes(4, "little"), (3).to_bytes(4, "little")):
                try:
                    found = decode(kind, int(chance.integers(0, 9)), zlib.compress(head + raw))
                except ValueError:
                    continue
                assert (np.diff(found.rounds) > 0).all()
                assert found.counts.sum() == len(found.values)


def test_a_name_with_codes_for_the_terminal_is_shown_as_text(tmp_path: Path, fork_server: ForkServer) -> None:
    name = "one\x1b]0;owned\x07\x1b[2J\u202ereversed"
    crafted(
        tmp_path,
        lambda connection: connection.execute(
            "UPDATE run SET name = ?, message = ?, config = ?",
            (name, name, json.dumps({"task": name, "rule": name, "p_min": name, "seed": name})),
        ),
    )
    with Store.open(tmp_path, read_only=True) as store:
        id = store.runs()[0].id
    for words in (["runs", "list"], ["runs", "show", id], ["runs", "show", "nobody"], ["resume", id], ["report", id]):
        if words[0] == "report":
            words += ["--out", str(tmp_path / "report.html")]
        done = fork_server.fedstale(*words, "--store", tmp_path)
        told = done.stdout + done.stderr
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", told), repr(told)
        assert "Traceback" not in told
