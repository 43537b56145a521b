"""Files are replaced whole, also by a power cut, and have one writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.durable import FileInUse, Lock, is_locked, replacing
from fedstale.participation import Trace
from fedstale.store import Store


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is synced and renamed, by inode, in order."""
    seen: list[tuple[str, int]] = []
    sync, rename = os.fsync, os.replace

    def synced(file: int) -> None:
        seen.append(("sync", os.fstat(file).st_ino))
        sync(file)

    def renamed(source: Path, target: Path) -> None:
        seen.append(("rename", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return seen


def export(folder: Path) -> Path:
    with Store.open(folder / "s") as store:
        store.start({}).finish()
        store.export_csv(folder / "out.csv")
    return folder / "out.csv"


def result(folder: Path) -> Path:
    fs.simulate("quadratic", num_clients=2, rounds=2).to_csv(folder / "out.csv")
    return folder / "out.csv"


def log(folder: Path) -> Path:
    """One that is cut short would be read as a log in which fewer clients came."""
    Trace(2, 3, [0, 2], [0, 1]).to_csv(folder / "out.csv")
    return folder / "out.csv"


def checkpoint(folder: Path) -> Path:
    fs.FedStale().init(fs.Federation(2, 3), model=np.zeros(3)).save(folder)
    return folder / "state.safetensors"


@pytest.mark.skipif(os.name != "posix", reason="folders are synced on POSIX only")
@pytest.mark.parametrize("write", [export, result, log, checkpoint])
def test_content_is_synced_before_the_name_and_the_name_before_going_on(
    write: Callable[[Path], Path], calls: list[tuple[str, int]], tmp_path: Path
) -> None:
    file = write(tmp_path)
    whole = file.stat().st_ino
    at = calls.index(("rename", whole))
    assert ("sync", whole) in calls[:at]
    assert ("sync", file.parent.stat().st_ino) in calls[at:]


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")

    def fail() -> None:
        with replacing(tmp_path / "x") as whole:
            whole.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_what_a_killed_process_was_writing_is_gone_after_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".state.safetensors.1234567.tmp").write_bytes(b"half")
    checkpoint(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".rows"}


def test_a_lock_has_one_holder_and_is_free_afterwards(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock", "the thing")
    assert is_locked(tmp_path / "lock")
    with pytest.raises(FileInUse, match="the thing is already being written by this process"):
        Lock(tmp_path / "lock", "the thing")
    lock.release()
    assert not is_locked(tmp_path / "lock")
    Lock(tmp_path / "lock", "the thing").release()
