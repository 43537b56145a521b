"""Writing the file: all of it or nothing, and never over something that is not a page."""

from __future__ import annotations

from pathlib import Path

from ..checks import fail
from ..durable import replacing

_BEGINNINGS = (b"<!doctype html", b"<html")


def refuse(path: Path) -> None:
    """Refuse to write over a folder, or over a file that is neither an HTML page nor empty."""
    if path.is_dir():
        raise fail("--out", str(path), "is a folder: give the name of a file, such as report.html")
    if path.exists():
        with open(path, "rb") as file:
            begin = file.read(64).lstrip().lower()
        if begin and not begin.startswith(_BEGINNINGS):
            raise fail("--out", str(path), "exists and is not an HTML page: give another name")


def write(html: str, path: Path) -> int:
    """Write a report and return its size in bytes; a page that is there already is replaced."""
    refuse(path)
    path = path.resolve()  # a link stays one
    data = html.encode("utf-8")
    with replacing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
    return len(data)
