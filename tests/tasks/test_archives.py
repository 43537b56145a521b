"""Archives: members by exact name, hashes, hostile members, CIFAR-10 pictures."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedstale.tasks import archives
from fedstale.tasks.archives import _cifar_records, _decode_picture, contents
from fedstale.tasks.download import SourceFailed
from fedstale.tasks.sources import CIFAR_NAMES, Client, Content, DownloadSource

A, B = b"first file", b"the second file"


def content(name: str, data: bytes) -> Content:
    return Content(name, len(data), hashlib.sha256(data).hexdigest())


FILES = (content("a", A), content("b", B))


def tgz(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


def source(client: Client = "npm", prefix: str = "package/", **options: object) -> DownloadSource:
    return DownloadSource(client, ("thing@1",), 100, {f"{prefix}a": "a", f"{prefix}b": "b"}, **options)  # type: ignore[arg-type]


def test_a_tarball_yields_exactly_the_named_members(tmp_path: Path) -> None:
    members = {"package/index.js": b"evil()", "package/b": B, "../a": b"x", "/package/a": b"y", "package/a": A}
    path = tgz(tmp_path / "x.tgz", members)
    assert {file.name: data for file, data in contents(source(), [path], FILES)} == {"a": A, "b": B}
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(A)
    path = tgz(tmp_path / "x.tgz", {"package/b": B}, {"package/a": str(secret)})
    with pytest.raises(SourceFailed, match="lacks a"):
        list(contents(source(), [path], FILES))


def test_a_wheel_is_read_without_installing_it(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/a", A)
        archive.writestr("package/b", B)
        archive.writestr("package/__init__.py", "raise SystemExit")
    assert [data for _, data in contents(source("pip"), [path], FILES)] == [A, B]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_is_read_without_installing_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/share").mkdir(parents=True)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <n@example.org>\nDescription: x\n"
    )
    (tree / "usr/share/a").write_bytes(gzip.compress(A))
    (tree / "usr/share/b").write_bytes(gzip.compress(B))
    path = tmp_path / "thing.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(tree), str(path)], check=True, capture_output=True)
    found = contents(source("apt", "./usr/share/", form="gzip"), [path], FILES)
    assert {file.name: data for file, data in found} == {"a": A, "b": B}


def test_what_differs_from_its_hash_is_refused(tmp_path: Path) -> None:
    path = tgz(tmp_path / "x.tgz", {"package/a": A[::-1], "package/b": B})
    with pytest.raises(SourceFailed, match="a has a wrong size or SHA-256"):
        list(contents(source(), [path], FILES))


def test_an_archive_with_another_hash_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tgz(tmp_path / "x.tgz", {"package/a": A, "package/b": B})
    good = archives._file_digest(path)
    assert len(list(contents(source(sha256=good), [path], FILES))) == 2
    monkeypatch.setattr(tarfile, "open", None)
    with pytest.raises(SourceFailed, match="archive has a wrong SHA-256"):
        list(contents(source(sha256="0" * 64), [path], FILES))


@pytest.mark.parametrize("client", ["npm", "pip"])
def test_rubbish_is_an_unreadable_archive(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"<html>please log in</html>")
    with pytest.raises(SourceFailed, match="unreadable archive"):
        list(contents(source(client), [path], FILES))


def test_a_cut_off_archive_is_unreadable(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(100_000)
    path = tgz(tmp_path / "x.tgz", {"package/a": noise, "package/b": B})
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(SourceFailed, match=r"unreadable archive|wrong size"):
        list(contents(source(), [path], (content("a", noise), FILES[1])))


def test_a_gzip_bomb_stops_at_the_expected_size() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(archives._gunzip(bomb, 1000)) == 1001


def png(picture: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return stream.getvalue()


def test_cifar_records_are_label_then_red_green_blue_planes() -> None:
    rng = np.random.default_rng(1)
    picture = rng.integers(0, 256, (3, 1024, 3), dtype=np.uint8)
    decoded = _decode_picture(png(picture))
    np.testing.assert_array_equal(decoded, picture)
    records = _cifar_records(decoded, np.array([7, 0, 9], dtype=np.uint8))
    assert len(records) == 3 * 3073
    for i, label in enumerate((7, 0, 9)):
        record = records[i * 3073 : (i + 1) * 3073]
        assert record[0] == label
        for channel in range(3):
            plane = record[1 + 1024 * channel : 1 + 1024 * (channel + 1)]
            assert plane == picture[i, :, channel].tobytes()


def test_cifar_is_rebuilt_from_pictures_and_label_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "CIFAR_BATCH", 4)
    rng = np.random.default_rng(2)
    pictures = rng.integers(0, 256, (6, 4, 1024, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, (6, 4), dtype=np.uint8)
    wanted = tuple(
        content(name, _cifar_records(*both)) for name, *both in zip(CIFAR_NAMES, pictures, labels, strict=True)
    )
    members = {f"package/{n[:-4]}.png": png(p) for n, p in zip(CIFAR_NAMES, pictures, strict=True)}
    path = tgz(
        tmp_path / "x.tgz",
        {
            **members,
            "package/test_lables.json": json.dumps(labels[5].tolist()).encode(),
            "package/train_lables.json": json.dumps(labels[:5].ravel().tolist()).encode(),
        },
    )
    place = DownloadSource("npm", ("c@1",), 1, dict(zip(members, CIFAR_NAMES, strict=True)), "cifar-png")
    assert [file.name for file, _ in contents(place, [path], wanted)] == list(CIFAR_NAMES)
    without = tgz(tmp_path / "y.tgz", members)
    with pytest.raises(SourceFailed, match="lacks pictures or labels"):
        list(contents(place, [without], wanted))


def test_a_grey_picture_is_refused() -> None:
    with pytest.raises(SourceFailed, match="mode L"):
        _decode_picture(png(np.zeros((2, 1024), dtype=np.uint8)))
