"""Where stale updates live: one row per client in RAM or a file, or fewer numbers than that; one interface."""

from __future__ import annotations

from pathlib import Path

from ..checks import fail
from .base import MIXED, PreparedExchange, StaleMemory
from .clustered import Clustered
from .compact import Compact
from .held import NAME as _CLIENTS
from .held import HeldByClients
from .lowrank import LowRank
from .precision import PRECISIONS, Precision, precision
from .store import Memory

__all__ = [
    "MIXED",
    "PRECISIONS",
    "Clustered",
    "LowRank",
    "Memory",
    "Precision",
    "PreparedExchange",
    "StaleMemory",
    "approximate",
    "make",
    "moved",
    "parse",
    "precision",
]

_COMPACT: dict[str, type[Compact]] = {kind.kind: kind for kind in (Clustered, LowRank)}
ALLOWED = (
    'must be "ram", "ram:PRECISION", "disk:FOLDER", "disk:FOLDER:PRECISION", "clustered:K" or "lowrank:K" '
    f'(or with :PRECISION), with {", ".join(PRECISIONS)}; on Flower also "clients"'
)


def parse(where: str) -> tuple[Path | None, Precision]:
    """Read a memory's description: its folder, if it lies on disk, and how numbers are stored.

    "ram", "ram:bfloat16", "disk:FOLDER", "disk:FOLDER:float16", "clustered:8", "lowrank:4:float64".
    """
    kind, _, rest = where.partition(":")
    if where == _CLIENTS:
        return None, precision("float32")
    if kind == "ram":
        return None, precision(rest or "float32")
    if kind == "disk" and rest:
        folder, _, last = rest.rpartition(":")
        if folder and last in PRECISIONS:
            return Path(folder), precision(last)
        return Path(rest), precision("float32")
    size, _, name = rest.partition(":")
    if kind in _COMPACT and size.isdecimal() and int(size) > 0:
        return None, precision(name or "float32")
    raise fail("memory", where, ALLOWED)


def moved(where: str, folder: Path | str) -> str:
    """Return the description of a memory on disk with another folder; any other as it is."""
    old, kind = parse(where)
    return where if old is None else f"disk:{folder}:{kind.name}"


def approximate(where: str) -> int | None:
    """The number of vectors K of an approximate memory; None for a memory with a row per client."""
    kind, _, rest = where.partition(":")
    parse(where)
    return int(rest.partition(":")[0]) if kind in _COMPACT else None


def make(
    where: str, num_clients: int, num_params: int, *, name: str = "stale", run: str = "", exact: bool = False
) -> StaleMemory:
    """Make an empty memory from its description; on disk it is the file FOLDER/name.rows.

    With `exact`, rows are kept one by one even where the description asks for an approximation.
    """
    folder, kind = parse(where)
    if where == _CLIENTS:
        return HeldByClients(num_clients, num_params, kind)
    size = approximate(where)
    if size is not None and not exact:
        return _COMPACT[where.partition(":")[0]](num_clients, num_params, kind, size)
    file = None if folder is None else folder / f"{name}.rows"
    return Memory(num_clients, num_params, kind, file, run)
