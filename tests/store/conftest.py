from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstale.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "project") as opened:
        yield opened
