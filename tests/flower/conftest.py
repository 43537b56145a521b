from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    """Flower makes no Message outside of a task: pretend to be one."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, None)
