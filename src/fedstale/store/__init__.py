"""Runs and their metrics in one SQLite file per project folder; checkpoints lie beside it.

with Store.open() as store:
    with store.start(config, name="first try") as run:
        run.record(0, {"loss": 2.3}, participants=[0, 4, 7])
    print(run.metrics()["loss"])
"""

from ..durable import FileInUse
from .config import digest
from .errors import StoreError
from .info import STATUSES, RunInfo
from .run import Run
from .store import DEFAULT_FOLDER, ENVIRONMENT, Store
from .watch import Watch

__all__ = [
    "DEFAULT_FOLDER",
    "ENVIRONMENT",
    "STATUSES",
    "FileInUse",
    "Run",
    "RunInfo",
    "Store",
    "StoreError",
    "Watch",
    "digest",
]
