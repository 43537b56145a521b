"""Where stale updates live: RAM or a memory-mapped file, full or lower precision, one interface."""

from __future__ import annotations

from pathlib import Path

from ..checks import fail
from .precision import PRECISIONS, Precision, precision
from .store import Memory, Swap

__all__ = ["PRECISIONS", "Memory", "Precision", "Swap", "make", "parse", "precision"]


def parse(where: str) -> tuple[Path | None, Precision]:
    """Read a memory's description: "ram", "ram:bfloat16", "disk:FOLDER" or "disk:FOLDER:float16"."""
    kind, _, rest = where.partition(":")
    if kind == "ram":
        return None, precision(rest or "float32")
    if kind == "disk" and rest:
        folder, _, last = rest.rpartition(":")
        if folder and last in PRECISIONS:
            return Path(folder), precision(last)
        return Path(rest), precision("float32")
    allowed = f'must be "ram", "ram:PRECISION", "disk:FOLDER" or "disk:FOLDER:PRECISION" with {", ".join(PRECISIONS)}'
    raise fail("memory", where, allowed)


def make(where: str, num_clients: int, num_params: int, *, name: str = "stale", run: str = "") -> Memory:
    """Make an empty memory from its description; on disk it is the file FOLDER/name.rows."""
    folder, kind = parse(where)
    file = None if folder is None else folder / f"{name}.rows"
    return Memory(num_clients, num_params, kind, file, run)
