"""A process that is killed while it makes or deletes a run: the next one cleans up, and touches nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedstale.durable import FileTrouble, Lock
from fedstale.store import Store
from fedstale.store.info import lock_file


def inside(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "runs").iterdir())


def made(root: Path, name: str = "one") -> str:
    with Store.open(root) as store:
        run = store.start({"name": name}, name=name)
        run.record(0, {"a": 1.0})
        run.finish()
        (run.folder / "checkpoint").mkdir()
        (run.folder / "checkpoint" / "state.safetensors").write_text("rows")
    return run.id


def killed(root: Path, where: str, what: str) -> None:
    """Do something in a process that dies, without a chance to do anything more, when it gets to a function."""
    program = (
        "import os, sys\nfrom importlib import import_module\nfrom fedstale.store import Store\n"
        "module, _, name = sys.argv[2].partition(':')\nowner = import_module(module)\n"
        "*parents, last = name.split('.')\n"
        "for parent in parents:\n    owner = getattr(owner, parent)\n"
        "store = Store.open(sys.argv[1])\n"
        "setattr(owner, last, lambda *_, **__: os._exit(9))\n"
        f"{what}\n"
    )
    command = [sys.executable, "-c", program, str(root), where]
    assert subprocess.run(command, check=False).returncode == 9


def test_killed_while_deleting_a_run(tmp_path: Path) -> None:
    id, other = made(tmp_path), made(tmp_path, "two")
    killed(tmp_path, "fedstale.store.database:Database.write", "store.delete('one')")
    assert inside(tmp_path) == sorted([id, f"{id}.unfinished", other])
    with Store.open(tmp_path) as store:  # it was not deleted
        assert [info.name for info in store.runs()] == ["two", "one"]
    assert inside(tmp_path) == sorted([id, other])
    killed(tmp_path, "shutil:rmtree", "store.delete('one')")
    assert inside(tmp_path) == sorted([id, f"{id}.unfinished", other])
    with Store.open(tmp_path, read_only=True) as store:  # who only looks changes nothing
        assert [info.name for info in store.runs()] == ["two"]
    assert len(inside(tmp_path)) == 3
    with Store.open(tmp_path) as store:
        assert [info.name for info in store.runs()] == ["two"]
    assert inside(tmp_path) == [other]
    assert (tmp_path / "runs" / other / "checkpoint" / "state.safetensors").exists()


def test_killed_while_making_a_run(tmp_path: Path) -> None:
    killed(tmp_path, "fedstale.store.database:Database.write", "store.start({})")
    assert len(inside(tmp_path)) == 2
    killed(tmp_path, "fedstale.store.store:Store._writer", "store.start({})")
    with Store.open(tmp_path) as store:
        (info,) = store.runs()
        assert info.status == "interrupted"
        assert inside(tmp_path) == [info.id]


def test_what_is_in_use_or_nobodys_business_stays(tmp_path: Path) -> None:
    id, lost = made(tmp_path), made(tmp_path, "two")
    runs = tmp_path / "runs"
    (tmp_path / "store.sqlite").rename(tmp_path / "newer.sqlite")  # as after restoring an older store
    (runs / "mine").mkdir()
    (runs / "mine" / "notes.txt").write_text("mine")
    (runs / "my notes.unfinished").write_text("mine")
    (runs / f"{id}.unfinished").touch()
    lock = Lock(lock_file(runs / id), "test")
    Store.open(tmp_path).close()
    assert inside(tmp_path) == sorted([id, f"{id}.unfinished", lost, "mine", "my notes.unfinished"])
    lock.release()
    Store.open(tmp_path).close()  # now it is what a killed process was deleting
    assert inside(tmp_path) == sorted([lost, "mine", "my notes.unfinished"])


def test_a_lock_whose_folder_was_removed_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run" / "lock"
    real = os.open
    removed: list[Path] = []

    def open_(path: Path, *rest: int) -> int:
        found = real(path, *rest)
        if path == file and not removed:  # between opening and locking
            removed.append(path)
            file.unlink()
            file.parent.rmdir()
        return found

    monkeypatch.setattr(os, "open", open_)
    lock = Lock(file, "test")
    assert removed
    assert file.exists()
    with pytest.raises(FileTrouble, match="is already being written"):
        Lock(file, "test")
    lock.release()
    (tmp_path / "dangling").symlink_to(tmp_path / "no" / "where")
    with pytest.raises(FileTrouble, match="cannot be created"):
        Lock(tmp_path / "dangling", "test")
