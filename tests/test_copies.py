"""A checkpoint or store that was copied, moved or restored goes on, and what it was made of never changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.durable import FileInUse, FileTrouble
from fedstale.simulation import Callback, Simulation, StoreRun, build, make_settings
from fedstale.store import Store, StoreError
from tests.combinations import combinations

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and tar as on POSIX")
N, D, ROUNDS = 5, 40, 12
RULE = fs.FedStale(beta=0.5)


def history(t: int) -> fs.Round:
    rng = np.random.default_rng([3, t])
    who = np.flatnonzero(rng.random(N) < 0.6)
    return fs.Round(t, who, rng.normal(size=(len(who), D)).astype(np.float32), probabilities=0.6)


def run_to(state: fs.State, last: int, folder: Path) -> fs.State:
    while state.round < last:
        RULE.step(state, history(state.round))
        if state.round % 3 == 0:
            state.save(folder)
    state.save(folder)
    return state


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file below a folder, by content; what says who is writing at the moment is left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def bits(state: fs.State) -> tuple[bytes, bytes, bytes]:
    assert state.model is not None
    return state.model.tobytes(), state.memory.rows(np.arange(N)).tobytes(), state.memory.total.tobytes()


def shell(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


# Ways to get from a project at a/p to one at the returned folder. What is left at a/p must not change.
def cp(root: Path) -> Path:
    shell("cp", "-r", root / "a/p", root / "b")
    return root / "b"


def cp_archive(root: Path) -> Path:
    shell("cp", "-a", "--sparse=always", root / "a/p", root / "b")
    return root / "b"


def cp_parent(root: Path) -> Path:
    shell("cp", "-r", root / "a", root / "b")
    return root / "b/p"


def cp_deeper(root: Path) -> Path:
    (root / "x/y/z").mkdir(parents=True)
    shell("cp", "-r", root / "a/p", root / "x/y/z/q")
    return root / "x/y/z/q"


def cp_beside(root: Path) -> Path:
    shell("cp", "-r", root / "a/p", root / "a/p (copy) ü")
    return root / "a/p (copy) ü"


def cp_by_hard_links(root: Path) -> Path:
    shell("cp", "-al", root / "a/p", root / "b")
    return root / "b"


def cp_of_a_link(root: Path) -> Path:
    (root / "link").symlink_to(root / "a/p")
    shell("cp", "-rL", root / "link", root / "b")
    return root / "b"


def copytree(root: Path) -> Path:
    return Path(shutil.copytree(root / "a/p", root / "b"))


def mv(root: Path) -> Path:
    shell("mv", root / "a/p", root / "b")
    return root / "b"


def mv_parent(root: Path) -> Path:
    shell("mv", root / "a", root / "b")
    return root / "b/p"


def mv_and_back(root: Path) -> Path:
    shell("mv", root / "a/p", root / "b")
    shell("mv", root / "b", root / "a/p")
    return root / "a/p"


def renamed(root: Path) -> Path:
    return (root / "a/p").rename(root / "a/q")


def mv_copy_of_copy(root: Path) -> Path:
    shell("mv", copytree(root), root / "c")
    return Path(shutil.copytree(root / "c", root / "d"))


def linked(root: Path) -> Path:
    (root / "link").symlink_to(root / "a/p")
    return root / "link"


def mv_behind_a_link(root: Path) -> Path:
    shell("mv", root / "a/p", root / "b")
    (root / "a/p").symlink_to(root / "b")
    return root / "a/p"


def relative_link(root: Path) -> Path:
    (root / "a/link").symlink_to("p")
    return root / "a/link"


def tar_elsewhere(root: Path) -> Path:
    (root / "b").mkdir()
    shell("tar", "-C", root / "a", "-cSf", root / "p.tar", "p")
    shell("tar", "-C", root / "b", "-xf", root / "p.tar")
    return root / "b/p"


def tar_over_nothing(root: Path) -> Path:
    shell("tar", "-C", root / "a", "-cf", root / "p.tar", "p")
    shutil.rmtree(root / "a/p")
    shell("tar", "-C", root / "a", "-xf", root / "p.tar")
    return root / "a/p"


def zipped(root: Path) -> Path:
    shutil.make_archive(str(root / "p"), "zip", root / "a/p")
    shutil.unpack_archive(root / "p.zip", root / "b")
    return root / "b"


def copy_over_a_copy(root: Path) -> Path:
    copytree(root)
    shutil.copytree(root / "a/p", root / "b", dirs_exist_ok=True)
    return root / "b"


WAYS: list[Callable[[Path], Path]] = [
    cp,
    cp_archive,
    cp_parent,
    cp_deeper,
    cp_beside,
    cp_by_hard_links,
    cp_of_a_link,
    copytree,
    mv,
    mv_parent,
    mv_and_back,
    renamed,
    mv_copy_of_copy,
    linked,
    mv_behind_a_link,
    relative_link,
    tar_elsewhere,
    tar_over_nothing,
    zipped,
    copy_over_a_copy,
]


def start(memory: str = "") -> fs.State:
    return RULE.init(fs.Federation(N, D), memory=memory or "ram", model=np.zeros(D))


@pytest.fixture(scope="module")
def truth() -> tuple[bytes, bytes, bytes]:
    state = start()
    while state.round < ROUNDS:
        RULE.step(state, history(state.round))
    return bits(state)


@pytest.mark.parametrize(
    ("way", "memory"),
    combinations(WAYS, ["disk:{}/rows", "disk:{}/checkpoint", "ram"]),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_checkpoint_goes_on_wherever_it_is_brought(
    way: Callable[[Path], Path], memory: str, truth: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    origin = tmp_path / "a/p"
    run_to(start(memory.format(origin)), 6, origin / "checkpoint").close()
    before = fingerprint(origin)
    there = way(tmp_path)
    for _ in range(2):  # twice: what the first resumption saved must be found by the second
        resumed = fs.State.load(there / "checkpoint")
        last = 9 if resumed.round < 9 else ROUNDS
        run_to(resumed, last, there / "checkpoint")
        found = bits(resumed)
        resumed.close()
    assert found == truth
    if origin.exists() and not there.samefile(origin):
        assert fingerprint(origin) == before
        original = run_to(fs.State.load(origin / "checkpoint"), ROUNDS, origin / "checkpoint")
        assert bits(original) == truth
        original.close()


def test_a_backup_restored_over_a_newer_state_goes_on_from_the_backup(
    truth: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    origin = tmp_path / "a/p"
    run_to(start(f"disk:{origin}/rows"), 4, origin / "checkpoint").close()
    shell("tar", "-C", tmp_path / "a", "-cf", tmp_path / "p.tar", "p")
    run_to(fs.State.load(origin / "checkpoint"), 10, origin / "checkpoint").close()
    shell("tar", "-C", tmp_path / "a", "-xf", tmp_path / "p.tar")
    resumed = fs.State.load(origin / "checkpoint")
    assert resumed.round == 4
    assert bits(run_to(resumed, ROUNDS, origin / "checkpoint")) == truth
    resumed.close()


# The checkpoint alone, its rows elsewhere


def outside(tmp_path: Path) -> tuple[Path, Path]:
    rows, checkpoint = tmp_path / "big disk/rows", tmp_path / "p/checkpoint"
    run_to(start(f"disk:{rows}"), 6, checkpoint).close()
    return rows / "stale.rows", checkpoint


def test_a_copy_without_its_rows_gets_rows_of_its_own(truth: tuple[bytes, bytes, bytes], tmp_path: Path) -> None:
    rows, checkpoint = outside(tmp_path)
    before = rows.read_bytes()
    shutil.copytree(checkpoint, tmp_path / "p/copy")
    copy = run_to(fs.State.load(tmp_path / "p/copy"), ROUNDS, tmp_path / "p/copy")
    assert bits(copy) == truth
    copy.close()
    assert rows.read_bytes() == before
    original = run_to(fs.State.load(checkpoint), ROUNDS, checkpoint)
    assert bits(original) == truth
    original.close()
    again = fs.State.load(tmp_path / "p/copy")
    assert bits(again) == truth
    again.close()


def test_a_copy_of_which_the_original_went_on_says_what_to_copy(tmp_path: Path) -> None:
    rows, checkpoint = outside(tmp_path)
    shutil.copytree(checkpoint, tmp_path / "p/copy")
    run_to(fs.State.load(checkpoint), ROUNDS, checkpoint).close()
    before = fingerprint(tmp_path)
    with pytest.raises(FileTrouble, match=r"is a copy of .*p/checkpoint, .* copy the rows together") as error:
        fs.State.load(tmp_path / "p/copy")
    assert str(rows) in str(error.value)
    assert "\n" not in str(error.value)
    assert fingerprint(tmp_path) == before


def test_a_copy_is_not_made_while_the_original_is_writing(tmp_path: Path) -> None:
    _, checkpoint = outside(tmp_path)
    shutil.copytree(checkpoint, tmp_path / "p/copy")
    original = fs.State.load(checkpoint)
    with pytest.raises(FileInUse, match="already being written"):
        fs.State.load(tmp_path / "p/copy")
    original.close()


def test_a_copy_that_cannot_reach_its_rows_says_where_they_belong(tmp_path: Path) -> None:
    _, checkpoint = outside(tmp_path)
    (tmp_path / "q").mkdir()
    shutil.copytree(checkpoint, tmp_path / "q/r/copy")
    with pytest.raises(FileTrouble, match=r"is missing: .* to \.\./\.\./big disk/rows/stale\.rows"):
        fs.State.load(tmp_path / "q/r/copy")


def test_a_checkpoint_that_was_moved_alone_keeps_its_rows(truth: tuple[bytes, bytes, bytes], tmp_path: Path) -> None:
    rows, checkpoint = outside(tmp_path)
    checkpoint.rename(tmp_path / "p/renamed")
    state = run_to(fs.State.load(tmp_path / "p/renamed"), ROUNDS, tmp_path / "p/renamed")
    assert state.memory.file is not None
    assert state.memory.file.samefile(rows)
    assert bits(state) == truth
    state.close()


def test_a_copy_made_before_the_original_was_renamed_leaves_its_rows(
    truth: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    _, checkpoint = outside(tmp_path)
    shutil.copytree(checkpoint, tmp_path / "p/copy")
    checkpoint.rename(tmp_path / "p/first")
    for name in ("copy", "first"):
        state = run_to(fs.State.load(tmp_path / "p" / name), ROUNDS, tmp_path / "p" / name)
        assert bits(state) == truth
        state.close()


def test_rows_of_another_run_are_refused(tmp_path: Path) -> None:
    rows, checkpoint = outside(tmp_path)
    rows.unlink()
    run_to(start(f"disk:{rows.parent}"), 3, tmp_path / "other").close()
    with pytest.raises(InvalidInput, match="has run = "):
        fs.State.load(checkpoint)


def test_a_state_saved_to_two_folders_leaves_the_first_whole(tmp_path: Path) -> None:
    """The rows belong to the last one; the first is refused, or takes a copy, but never writes into them."""
    state = run_to(start(f"disk:{tmp_path}/rows"), 3, tmp_path / "first")
    state.save(tmp_path / "second")
    expected = bits(state)
    state.close()
    before = fingerprint(tmp_path / "rows")
    first = fs.State.load(tmp_path / "first")
    assert bits(first) == expected
    run_to(first, 9, tmp_path / "first").close()
    assert fingerprint(tmp_path / "rows") == before


def test_the_folder_of_the_program_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run_to(start("disk:rows"), 3, Path("checkpoint")).close()
    monkeypatch.chdir(tmp_path / "there")
    state = fs.State.load("../here/checkpoint")
    assert state.round == 3
    run_to(state, 6, Path("../here/checkpoint")).close()
    monkeypatch.chdir(tmp_path / "here")
    again = fs.State.load("checkpoint")
    assert again.round == 6
    assert not list((tmp_path / "there").iterdir())
    again.close()


# Stores


class Stop(Callback):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, simulation: Simulation, record: object) -> None:
        simulation.stop = simulation.state.round == self.after


def stored(folder: Path, after: int, memory: str = "disk") -> str:
    """Run the first rounds of a run, as a process that is stopped then."""
    chosen = make_settings(task="quadratic", num_clients=3, rounds=ROUNDS, p_min=0.5, memory=memory)
    with Store.open(folder) as store:
        run = store.start(chosen.record(), rounds_total=ROUNDS)
        simulation = build(chosen, callbacks=[StoreRun(run, 2), Stop(after)], folder=run.folder)
        simulation.run()
        simulation.state.close()
        store.resume(run.id).release()
    return run.id


def finish(folder: Path, id: str) -> tuple[object, ...]:
    """Resume on the command line; the numbers of all rounds, and the model at the end."""
    from fedstale.cli.app import app

    app(["resume", id, "--quiet", "--store", str(folder)], standalone_mode=False)
    with Store.open(folder, read_only=True) as store:
        run = store.run(id)
        metrics = {name: values.tobytes() for name, values in run.metrics().items() if name != "seconds"}
        state = fs.State.load(run.checkpoint)
        model = np.asarray(state.model).tobytes()
        state.close()
        return run.info().status, metrics, model


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """What a stored run that stays where it is ends with."""
    folder = tmp_path_factory.mktemp("whole")
    return finish(folder, stored(folder, 6))


OF_A_STORE = (cp, cp_by_hard_links, mv_parent, linked, mv_behind_a_link, tar_over_nothing, copy_over_a_copy)
"""Ways on which a store's database and locks can differ from a checkpoint's files, which go all ways."""


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=() if way in OF_A_STORE else pytest.mark.slow) for way in WAYS],
    ids=lambda way: way.__name__,
)
def test_a_store_goes_on_wherever_it_is_brought(
    way: Callable[[Path], Path], finished: tuple[object, ...], tmp_path: Path
) -> None:
    origin = tmp_path / "a/p"
    id = stored(origin, 6)
    before = fingerprint(origin)
    there = way(tmp_path)
    if way is cp_by_hard_links:
        with pytest.raises(StoreError, match="hard link"):
            finish(there, id)
        shell("cp", there / "store.sqlite", there / "own")
        shell("mv", there / "own", there / "store.sqlite")
    assert finish(there, id) == finished
    if origin.exists() and not there.samefile(origin):
        assert fingerprint(origin) == before
        assert finish(origin, id) == finished


def test_a_store_restored_over_a_newer_one_goes_on(finished: tuple[object, ...], tmp_path: Path) -> None:
    origin = tmp_path / "a/p"
    id = stored(origin, 6)
    shell("tar", "-C", tmp_path / "a", "-cf", tmp_path / "p.tar", "p")
    assert finish(origin, id) == finished
    shell("tar", "-C", tmp_path / "a", "-xf", tmp_path / "p.tar")
    assert finish(origin, id) == finished


def test_nothing_that_is_saved_knows_an_absolute_path(tmp_path: Path) -> None:
    id = stored(tmp_path / "a/p", 6)
    run_to(start(f"disk:{tmp_path}/rows"), 6, tmp_path / "checkpoint").close()
    assert id
    found = [path for path in tmp_path.rglob("*") if path.is_file() and os.fsencode(tmp_path) in path.read_bytes()]
    assert found == []
