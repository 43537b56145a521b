"""Data files that may lie beside the project: tests that need one are skipped, with the reason, where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDERS = [Path(folder) for folder in (os.environ.get("FEDSTALE_TEST_DATA"),) if folder]
FOLDERS += [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]


def shared_file(name: str) -> Path:
    """Return the path of a file, or skip the test."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    pytest.skip(f"{name} is not here: put it into ../shared/data, or name its folder in FEDSTALE_TEST_DATA")
