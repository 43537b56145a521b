"""What results were computed with, in one line: no names of hosts or users, no paths."""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .._version import __version__

_KNOWN = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


def instructions() -> set[str]:
    """What the processor can do, as Linux lists it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


@cache
def code_version() -> str:
    """Return the version and a hash of the code, 0.1.0+1a2b3c4d: sums in another order are other bits."""
    found, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}+{found.hexdigest()[:8]}"


def machine_kind() -> str:
    """Return system, processor and versions: where two of these and the code are equal, results have the same bits."""
    vector = " ".join(name for name in _KNOWN if name in instructions())
    processor = " ".join(filter(None, (platform.machine(), vector)))
    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in ("torch", "numpy"))]
    return "; ".join((sys.platform, processor, *versions))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
