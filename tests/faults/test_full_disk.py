"""Full disks and read-only folders, for real: small tmpfs mounts, which need the right to mount (root)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.durable import FileTrouble
from fedstale.memory import Memory
from fedstale.store import Store
from tests.everything import everything

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a tmpfs of some kilobytes; `mount(read_only=folder)` makes one read-only. All are gone afterwards."""
    made: list[Path] = []

    def make(kilobytes: int = 0, *, read_only: Path | None = None) -> Path:
        if read_only is not None:
            run("mount", "-o", "remount,ro", str(read_only))
            return read_only
        folder = tmp_path / f"disk{len(made)}"
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mounting is not possible here: {error}")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


def fill(folder: Path, leave: int = 0) -> Path:
    """Take all the space but some bytes; return the file to delete again."""
    file = folder / "filler"
    free = os.statvfs(folder)
    with open(file, "wb") as out:
        out.write(bytes(max(0, free.f_bavail * free.f_frsize - leave)))
    return file


N, D = 8, 5000


def history(t: int) -> fs.Round:
    rng = np.random.default_rng([3, t])
    who = np.flatnonzero(rng.random(N) < 0.6)
    return fs.Round(t, who, rng.normal(size=(len(who), D)).astype(np.float32), probabilities=0.6)


def free_slots(state: fs.State) -> int:
    """Rows that have their space on disk already and can be used again."""
    memory = state.memory
    assert isinstance(memory, Memory)
    return len(memory._free)


def one_line(error: pytest.ExceptionInfo[fs.InvalidInput], *parts: object) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert str(part) in text


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(where: str, mount: Mount, tmp_path: Path) -> None:
    disk = mount(4096)
    rule = fs.FedStale()
    memory = "ram" if where == "ram" else f"disk:{tmp_path / 'rows'}"
    state = rule.init(fs.Federation(N, D), memory=memory, model=np.zeros(D))
    for t in range(3):
        rule.step(state, history(t))
    state.save(disk / "c")
    filler = fill(disk)
    for t in range(3, 6):
        rule.step(state, history(t))
    with pytest.raises(fs.InvalidInput) as error:
        state.save(disk / "c")
    one_line(error, disk / "c", "free some space and resume")
    assert not list((disk / "c").glob("*.tmp"))
    filler.unlink()
    if where == "ram":  # the old one is whole; with rows on disk the lock would say that this process has them
        assert fs.State.load(disk / "c").round == 3
    state.save(disk / "c")
    for t in range(6, 9):
        rule.step(state, history(t))
    state.save(disk / "c")
    expected = state.memory.rows(np.arange(N))
    state.close()
    loaded = fs.State.load(disk / "c")
    assert loaded.round == 9
    np.testing.assert_array_equal(loaded.memory.rows(np.arange(N)), expected)
    loaded.close()


def test_a_first_checkpoint_that_does_not_fit_can_be_tried_again(mount: Mount) -> None:
    disk = mount(1024)
    filler = fill(disk)
    rule = fs.FedStale()
    state = rule.init(fs.Federation(N, D), model=np.zeros(D))
    rule.step(state, history(0))
    for _ in range(2):
        with pytest.raises(fs.InvalidInput, match="free some space and resume"):
            state.save(disk / "c")
    filler.unlink()
    state.save(disk / "c")
    assert fs.State.load(disk / "c").round == 1


def test_rows_that_do_not_fit_refuse_the_round_and_nothing_else(mount: Mount) -> None:
    disk = mount(2048)
    rule = fs.FedStale()
    state = rule.init(fs.Federation(N, D), memory=f"disk:{disk / 'rows'}", model=np.zeros(D))
    rule.step(state, history(0))
    model, rows, all_of_it = np.array(state.model), state.memory.rows(np.arange(N)), everything(state)
    filler = fill(disk)
    t = 1
    while free_slots(state) >= len(np.asarray(history(t).clients)):
        rule.step(state, history(t))
        model, rows, all_of_it = np.array(state.model), state.memory.rows(np.arange(N)), everything(state)
        t += 1
    with pytest.raises(fs.InvalidInput) as error:
        rule.step(state, history(t))
    one_line(error, disk / "rows", "cannot grow", "No space left")
    assert state.round == t
    np.testing.assert_array_equal(model, state.model)
    np.testing.assert_array_equal(rows, state.memory.rows(np.arange(N)))
    assert all_of_it == everything(state)
    filler.unlink()
    rule.step(state, history(t))
    state.close()


def test_a_run_on_a_disk_that_fills_up_goes_on_later_with_the_same_bits(mount: Mount, tmp_path: Path) -> None:
    from .scenarios import SCENARIOS

    scenario = SCENARIOS["single run, quadratic, disk"]
    scenario.go(tmp_path / "whole")
    truth, _ = scenario.read(tmp_path / "whole")
    disk = mount(4096)
    (disk / "s").mkdir()
    with Store.open(disk / "s"):
        pass
    filler = fill(disk, leave=90_000)
    with pytest.raises(fs.InvalidInput) as error:
        scenario.go(disk / "s")
    one_line(error, disk / "s")
    filler.unlink()
    with Store.open(disk / "s") as store:
        assert [info.status for info in store.runs()] in ([], ["failed"], ["interrupted"])
    scenario.go(disk / "s")
    assert scenario.read(disk / "s")[0] == truth


def test_a_read_only_folder_is_one_line(mount: Mount) -> None:
    disk = mount(4096)
    rule = fs.FedStale()
    state = rule.init(fs.Federation(N, D), model=np.zeros(D))
    rule.step(state, history(0))
    state.save(disk / "c")
    with Store.open(disk / "s") as store:
        store.start({"seed": 1}, name="one").finish()
    state.close()  # what is open for writing cannot become read-only
    state = fs.State.load(disk / "c")
    mount(read_only=disk)
    rule.step(state, history(1))
    with pytest.raises(fs.InvalidInput) as error:
        state.save(disk / "c")
    one_line(error, disk / "c", "Read-only file system")
    with pytest.raises(fs.InvalidInput) as error:
        rule.init(fs.Federation(N, D), memory=f"disk:{disk / 'rows'}")
    one_line(error, disk / "rows", "Read-only file system")
    with pytest.raises(FileTrouble) as failed, Store.open(disk / "s") as store:
        store.start({"seed": 2})
    one_line(failed, disk / "s")
    with Store.open(disk / "s", read_only=True) as store:
        assert store.runs()[0].name == "one"
    assert fs.State.load(disk / "c").round == 1
