"""What a measurement ran on and with: kept beside its results, shown on the page. No names, no paths."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from fedstale.bench.machine import instructions


def about(command: str) -> dict[str, str]:
    """Command, date, machine and versions."""
    import torch

    flags = instructions()
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
    return {
        "command": command,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "instructions": ", ".join(name for name in known if name in flags) or platform.machine(),
        "bfloat16": "yes" if {"avx512_bf16", "amx_bf16"} & flags else "no",
        "system": f"{sys.platform}, glibc {platform.libc_ver()[1]}" if sys.platform == "linux" else sys.platform,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
    }


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the same keys as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def read(path: Path) -> list[dict[str, str]]:
    """Read rows of CSV; none if there is no such file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_about(path: Path, command: str, **more: str) -> None:
    """Write `about`, and more, one fact a line."""
    facts = {**about(command), **more}
    write(path, [{"what": key, "value": value} for key, value in facts.items()])


def read_about(path: Path) -> dict[str, str]:
    """Read what `write_about` wrote."""
    return {row["what"]: row["value"] for row in read(path)}
