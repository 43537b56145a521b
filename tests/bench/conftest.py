"""The results of the tiny benchmark, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import tiny


@pytest.fixture(scope="package")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The results of the tiny benchmark."""
    folder = tmp_path_factory.mktemp("bench")
    tiny.register()
    tiny.run(folder / "store", folder / "results.csv")
    yield folder / "results.csv"
    tiny.unregister()
