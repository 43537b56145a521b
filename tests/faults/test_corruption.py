"""Damaged files in the default run: a few hundred mutations of a store, some of every other file; the rest is slow."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.durable import FileTrouble
from fedstale.store import Store, StoreError

from . import corruption, store_flips
from .fork_server import ForkServer

pytest.importorskip("torch")
pytest.importorskip("flwr")


def quietly(scene: corruption.Scene, mutations: int, seed: int) -> corruption.Tally:
    tally: corruption.Tally = {}
    wrong = corruption.campaign(scene, mutations, seed, tally)
    assert wrong == []
    return tally


@pytest.mark.parametrize("name", ["single run, quadratic, ram", "Flower server, disk"])
def test_damaged_files_are_an_error_or_make_no_difference(name: str, fork_server: ForkServer, tmp_path: Path) -> None:
    scene = corruption.set_scene(fork_server, name, tmp_path)
    tally = quietly(scene, 10, seed=1)
    assert sum(counts.total() for counts in tally.values()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", corruption.SCENES)
def test_many_damaged_files(name: str, fork_server: ForkServer, tmp_path: Path) -> None:
    scene = corruption.set_scene(fork_server, name, tmp_path)
    tally = quietly(scene, 120, seed=2)
    assert sum(counts["error"] for counts in tally.values()) > 5


@pytest.mark.parametrize("mutations", [96, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_damaged_store_tells_what_was_written_or_that_it_is_damaged(mutations: int, tmp_path: Path) -> None:
    counts, wrong = store_flips.campaign(mutations, tmp_path, seed=mutations)
    assert wrong == []
    assert counts["flip", "error"] > 0
    assert counts["flip", "same"] > 0


def test_flipped_bits_in_the_page_of_runs_are_errors_of_ours(tmp_path: Path) -> None:
    """A flipped type byte was a TypeError. One bit in 211 here; `--each-bit` flips them all."""
    counts, wrong = store_flips.each_bit(tmp_path, step=211)
    assert not wrong
    assert counts["error"] > 50


def test_a_number_changed_behind_the_stores_back_is_noticed(tmp_path: Path) -> None:
    """Damage that SQLite itself cannot see: valid pages, valid JSON, another number."""
    store_flips.written(tmp_path, runs=2)
    file = tmp_path / "store.sqlite"
    whole = file.read_bytes()
    for change in (
        "UPDATE run SET summary = replace(summary, '0.', '1.')",
        "UPDATE run SET rounds_done = rounds_done + 1",
        "UPDATE run SET config = replace(config, '\"seed\": 1', '\"seed\": 7')",
        "UPDATE run SET status = 'failed'",
        "UPDATE block SET first = first + 1 WHERE kind = 1 AND name = 'loss'",
        "UPDATE block SET name = 'gain' WHERE name = 'loss'",
        "UPDATE block SET run = 1, first = 1000 WHERE run = 2 AND kind = 1 AND name = 'loss'",
        "DELETE FROM block WHERE kind = 0 AND first > 0",
    ):
        with sqlite3.connect(file) as connection:
            connection.execute(change)
        connection.close()
        with pytest.raises(StoreError, match="damaged"):
            store_flips.read(tmp_path)
        file.write_bytes(whole)
    assert len(store_flips.read(tmp_path)["runs"]) == 2


def test_a_damaged_run_can_be_deleted(tmp_path: Path) -> None:
    store_flips.written(tmp_path, runs=2)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE run SET config = '{broken' WHERE name = 'run 0'")
    connection.close()
    with Store.open(tmp_path) as store:
        with pytest.raises(StoreError, match=r"the checksum of run .* does not match"):
            store.runs()
        store.delete("run 0")
        assert [info.name for info in store.runs()] == ["run 1"]
        assert store.runs(where={"seed": 0}) == []


def test_a_flipped_dtype_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    """The bytes of an array do not tell what they are: their dtype and shape have a checksum, too."""
    rule = fs.FedStale()
    state = rule.init(fs.Federation(3, 4), model=np.ones(4, np.float32))
    rule.step(state, fs.Round(0, [1], np.ones((1, 4), np.float32), probabilities=0.5))
    state.save(tmp_path)
    file = tmp_path / "state.safetensors"
    whole = file.read_bytes()
    for old, new in ((b'"F32"', b'"I32"'), (b'"I64"', b'"F64"'), (b'"F64"', b'"U64"')):
        at = whole.index(old)
        file.write_bytes(whole[:at] + new + whole[at + len(old) :])
        with pytest.raises(fs.InvalidInput, match="damaged"):
            fs.State.load(tmp_path)


def test_a_damaged_file_of_a_data_set_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached data sets are compared with their SHA-256 on every reading; without a source the error names the file."""
    import hashlib
    from dataclasses import replace

    from fedstale.tasks import data
    from fedstale.tasks.sources import DATA_SETS

    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path))
    entry = DATA_SETS["mnist"]
    chance, folder = random.Random(4), tmp_path / "mnist"
    folder.mkdir()
    contents = {file.name: chance.randbytes(600) for file in entry.files}
    files = tuple(
        replace(file, size=600, sha256=hashlib.sha256(contents[file.name]).hexdigest()) for file in entry.files
    )
    monkeypatch.setitem(DATA_SETS, "mnist", replace(entry, files=files, sources=()))
    for turn in range(40):
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        assert data.fetch("mnist") == folder
        victim = folder / chance.choice(files).name
        harm = (corruption.cut, corruption.flip, corruption.scramble, corruption.zero, corruption.lose)[turn % 5]
        harm(victim, victim, chance)
        if victim.exists() and victim.read_bytes() == contents[victim.name]:
            continue
        with pytest.raises(data.DataUnavailable, match="mnist: could not be downloaded"):
            data.load("mnist")


def test_exports_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_flips.written(tmp_path / "s", runs=1)
    target = tmp_path / "out.csv"
    with Store.open(tmp_path / "s") as store:
        store.export_csv(target)
        whole = target.read_bytes()

        def crash(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", crash)
            with pytest.raises(FileTrouble, match="disk is full"):
                store.export_csv(target)
    assert target.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_the_tables_of_a_sweep_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process leaves that dies while it writes a table is the table before."""
    from fedstale.analysis import MeasuredRun
    from fedstale.simulation import make_settings
    from fedstale.sweeps import write_csv

    table = [MeasuredRun(make_settings(seed=seed), 0.5, {"accuracy": 0.5}) for seed in range(3)]
    write_csv(tmp_path / "t.csv", table)
    before = (tmp_path / "t.csv").read_bytes()

    def die(value: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(import_module("fedstale.sweeps.results"), "number_cell", die)
        with pytest.raises(KeyboardInterrupt):
            write_csv(tmp_path / "t.csv", table[:2])
    assert (tmp_path / "t.csv").read_bytes() == before


@pytest.mark.parametrize("seed", range(6))
def test_an_older_store_under_a_newer_journal_is_noticed(seed: int, tmp_path: Path) -> None:
    """Who restores store.sqlite and leaves the -wal beside it mixes pages of two moments, which SQLite cannot see."""
    chance = random.Random(seed)

    def add(store: Store, runs: int) -> None:
        for _ in range(runs):
            config = {"seed": chance.random(), "note": "y" * chance.randrange(500)}
            with store.start(config, sweep="flips") as run:
                for t in range(chance.randint(1, 200)):
                    run.record(t, {"accuracy": chance.random()}, participants=[1, 2])

    live, torn = tmp_path / "live", tmp_path / "torn"
    with Store.open(live) as store:
        add(store, 4)
    torn.mkdir()
    shutil.copyfile(live / "store.sqlite", torn / "store.sqlite")
    with Store.open(live) as store:
        add(store, 4)
    with Store.open(live) as store:
        add(store, 2)
        shutil.copyfile(live / "store.sqlite-wal", torn / "store.sqlite-wal")
        truth = store_flips.read(live)
    try:
        found = store_flips.read(torn)
    except StoreError as error:
        found = None
        text = str(error)
    assert found == truth if found is not None else str(torn) in text
