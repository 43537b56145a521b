"""FEMNIST as LEAF writes it: one JSON file or several, each with users, and of each user pictures and classes.

LEAF (Caldas et al., 2018) makes these files from the writers of EMNIST; they are in no registry, so that a user brings
them along. A file is {"users": […], "num_samples": […], "user_data": {user: {"x": [[784 numbers]], "y": [class]}}}.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..checks import fail, positive_int
from . import models
from .client_data import ClientData
from .label_swap import group_array
from .task import Task

_CLASSES = 62
_PIXELS = 784
_Samples = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]


def femnist(folder: str | Path, *, num_clients: int | None = None, groups: Any = None) -> Task:
    """Make the task of LEAF's files of FEMNIST: 62 classes of handwritten characters, one client per writer.

    Parameters
    ----------
    folder
        LEAF's `data` folder with `train` and `test` in it.
    num_clients
        How many writers to use, the first by name; default: all.
    groups
        As in `Task`.
    """
    root = Path(folder).expanduser()
    train, test = _read(root / "train"), _read(root / "test")
    if strangers := sorted(test.keys() - train.keys()):
        allowed = "has no training samples: split each writer's samples, not the writers"
        raise fail("folder", str(root), f"writer {strangers[0]} {allowed}")
    writers = sorted(train)[: None if num_clients is None else positive_int("num_clients", num_clients)]
    if num_clients is not None and len(writers) < num_clients:
        raise fail("num_clients", num_clients, f"{root / 'train'} has {len(writers)} writers")
    if empty := [writer for writer in writers if not len(train[writer][1])]:
        raise fail("folder", str(root / "train"), f"writer {empty[0]} has no samples")
    return Task(
        name="femnist",
        train=_splits(train, writers),
        test=_splits(test, writers),
        model=partial(models.mlp, _PIXELS, 128, _CLASSES),
        loss=functional.cross_entropy,
        num_classes=_CLASSES,
        groups=group_array(groups, len(writers)),
        groups_given=groups is not None,
        batch_size=32,
        client_names=tuple(writers),
    )


def _read(folder: Path) -> _Samples:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise fail("folder", str(folder), "has no JSON files of LEAF")
    found: _Samples = {}
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            for writer in content["users"]:
                if str(writer) in found:
                    raise ValueError(f"writer {writer} has been read before: is a file here twice?")
                own = content["user_data"][writer]
                x, y = np.array(own["x"], dtype=np.float32), np.array(own["y"], dtype=np.int64)
                found[str(writer)] = x.reshape(len(y), 1, 28, 28), y
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise fail("folder", str(file), f"is not a file of LEAF's FEMNIST ({reason})") from None
    return found


def _splits(samples: _Samples, writers: list[str]) -> ClientData:
    empty = np.empty((0, 1, 28, 28), dtype=np.float32), np.empty(0, dtype=np.int64)
    parts = [samples.get(writer, empty) for writer in writers]
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in parts])])
    x, y = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
    return ClientData(x, y, offsets)
