"""One warm process for all tests that kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .nursery import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks what is to be killed."""
    pytest.importorskip("torch")
    pytest.importorskip("flwr")
    with Nursery() as made:
        yield made
