"""How much memory a process and all that it started hold at their worst: proportional set sizes, sampled."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType


def children() -> dict[int, list[int]]:
    """Who started whom, of all processes there are."""
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return found


def tree(root: int) -> list[int]:
    """A process and its descendants."""
    below = children()
    found = [root]
    for one in found:
        found += below.get(one, [])
    return found


def held(root: int) -> int:
    """Bytes in memory of the whole tree; pages that processes share are counted once (PSS)."""
    total = 0
    for one in tree(root):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


class Peak:
    """`with Peak() as peak: …` leaves the largest sample in `peak.bytes`.

    Parameters
    ----------
    root
        The process at the top of the tree; default this one.
    every
        Seconds between samples.
    """

    def __init__(self, root: int | None = None, every: float = 0.5) -> None:
        self.root, self.every, self.bytes = root or os.getpid(), every, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, held(self.root))
            if self._stop.wait(self.every):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
