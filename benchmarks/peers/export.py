"""Write the data of the works once, by fedstale's own task code: everybody trains on the same shards and first model.

    python -m benchmarks.peers.export FOLDER

FOLDER/WORK/{train_x,train_y,offsets,test_x,test_y,test_offsets,initial}.npy; MNIST is fetched as `fedstale data fetch`
does it. A folder that is complete is left alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.peers.work import WORKS, Work, build
from fedstale import tasks
from fedstale.training import flatten


def export(work: Work, folder: Path) -> None:
    """Write one work's data."""
    complete = folder / "complete"
    if complete.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    task = tasks.make(work.task, num_clients=work.clients, share=work.share, progress=False)
    initial = flatten(task.build(0))
    ours = [tuple(p.shape) for p in task.build(0).parameters()]
    theirs = [tuple(p.shape) for p in build(work.task).parameters()]
    if ours != theirs:
        raise RuntimeError(f"{work.task}: the model of the works has parameters {theirs}, the task's has {ours}")
    arrays = {
        "train_x": task.train.x.numpy(),
        "train_y": task.train.y.numpy(),
        "offsets": task.train.offsets,
        "test_x": task.test.x.numpy(),
        "test_y": task.test.y.numpy(),
        "test_offsets": task.test.offsets,
        "initial": initial,
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    complete.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, work in WORKS.items():
        export(work, folder / name)


if __name__ == "__main__":
    main()
