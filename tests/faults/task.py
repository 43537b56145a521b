"""Flower makes no Message outside of a task: pretend to be one, quietly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.task_identity import TaskIdentity


@contextmanager
def flower_task(level: int | None = None) -> Iterator[None]:
    """Be a Flower task; log from this level on."""
    logger = logging.getLogger("flwr")
    before = logger.level, logger.propagate
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    if level is not None:
        logger.setLevel(level)
    try:
        yield
    finally:
        logger.level, logger.propagate = before
        for name in ("_task_id", "_run_id", "_node_id"):
            setattr(TaskIdentity, name, None)
