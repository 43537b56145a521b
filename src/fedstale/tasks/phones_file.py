"""The file of the FLASH phones in the data folder, for `participation="phones"`: found, verified, taken from a folder.

No site has this file. It is derived from the state traces of the study (`SOURCE`), which have another form; so it is
only ever taken from a folder that somebody has, and read when its SHA-256 is right.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..durable import replacing
from ..participation.phones import FILE, SHA256
from .data import DataUnavailable, where

NAME = "phones"
SOURCE = "https://github.com/PKU-Chengxu/FLASH (data/state_traces.json)"
LICENCE = "BSD-2-Clause; cite Yang et al., WWW 2021"


def phones_file() -> Path:
    """Return where the file is: in the data folder (FEDSTALE_DATA), or in `phones` below it."""
    for path in _places():
        if path.is_file():
            return path
    raise DataUnavailable(
        f"{NAME}: {FILE} is not in {where()}; no site has it, because it is derived from {SOURCE}. With a copy: "
        f'fedstale data fetch {NAME} --from FOLDER. Without one: the option kind="model", which needs no file'
    )


def is_there() -> bool:
    """Whether the file is in the data folder."""
    return any(path.is_file() for path in _places())


def fetch_phones(folder: str | Path | None = None) -> Path:
    """Put the file into the data folder from a folder that has it; return where it is.

    Parameters
    ----------
    folder
        The folder; None: it must be there already.
    """
    present = next((path for path in _places() if path.is_file() and _right(path)), None)
    if present is not None:
        return present
    if folder is None:
        return phones_file()
    found = Path(folder) / FILE
    if not found.is_file():
        raise DataUnavailable(f"{NAME}: there is no {FILE} in {folder}")
    if not _right(found):
        raise DataUnavailable(f"{NAME}: {found} is not the file that is meant: its SHA-256 does not begin {SHA256[:8]}")
    target = _places()[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        temporary.write_bytes(found.read_bytes())
    return target


def _places() -> tuple[Path, Path]:
    return where() / NAME / FILE, where() / FILE


def _right(path: Path) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
