"""What a report is about: a whole store, a sweep by name, or a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..checks import UnknownName, fail, unknown
from ..store import RunInfo, Store


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes
    ----------
    kind
        "store", "sweep" or "run".
    name
        What it is called: the folder's name, the sweep's, the run's (or its id).
    infos
        Its runs, the newest first.
    """

    kind: str
    name: str
    infos: list[RunInfo]


def locate(what: str | None, store: Path | None) -> tuple[Path | None, str | None]:
    """Tell a folder with a store from the name of a run or a sweep: (the store's folder, the name)."""
    if what is None:
        return store, None
    folder = Path(what)
    if (folder / "store.sqlite").is_file():
        if store is not None:
            raise fail("--store", str(store), f"{what} is a store itself: give one of the two")
        return folder, None
    if folder.is_dir() and os.sep in what:
        return folder, None  # meant as a store: let that say what is missing
    return store, what


def find(store: Store, what: str | None) -> Subject:
    """Find a sweep or a run by name; None is the whole store.

    A sweep goes before a run of the same name. A run may be named as everywhere: by its id, the beginning or the last
    four characters of it, or its name.
    """
    if what is None:
        return Subject("store", store.folder.name, store.runs())
    infos = store.runs(sweep=what)
    if infos:
        return Subject("sweep", what, infos)
    try:
        info = store.run(what).info()
    except UnknownName:
        raise _nothing(store, what) from None
    return Subject("run", info.name or info.id, [info])


def _nothing(store: Store, what: str) -> UnknownName:
    infos = store.runs()
    sweeps = list(dict.fromkeys(info.sweep for info in infos if info.sweep))
    names = list(dict.fromkeys(info.name for info in infos if info.name and not info.sweep))
    newest = [info.id for info in infos[:3] if not info.sweep]
    known = [*sweeps, *names[:10], *newest]
    if not known:
        return UnknownName(f"unknown run or sweep {what!r}: the store {store.folder} is empty")
    return unknown(f"run or sweep in {store.folder}", what, known)
