"""Natural federations: data that people, roles and hospitals bring along, divided as it came.

`wisdm`: 36 people, what their phones measured in ten seconds, and what they were doing; some never did some of it.
`shakespeare`: 141 roles, the next character of what they say. `heart-disease`: four hospitals with different patients
and different gaps in their records. Who has what is given; a seed decides nothing about the data. A fifth of each
client's samples is held out, always the same ones: of the roles the last fifth of their text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..checks import fail
from . import arrays, data, models
from .client_data import ClientData
from .defaults import CLIENTS, RATES
from .label_swap import group_array
from .scores import Loss, Metric, accuracy, is_cross_entropy, sequence_cross_entropy
from .sources import HOSPITALS
from .task import Task

_HELD_OUT = 0.2
_ACTIVITIES = ("Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking")
"""The classes of WISDM."""
_LETTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The 65 characters of tiny Shakespeare."""
_WINDOW = 40
"""Characters that the model is shown at once."""
_SHORTEST = 1_000
"""Characters that a role must say to be a client."""
_Files = Mapping[str, bytes]
_Splits = tuple[ClientData, ClientData, tuple[str, ...]]


@dataclass(frozen=True)
class NaturalRecipe:
    """What the name of a natural federation stands for."""

    name: str
    data: str
    read: Callable[[_Files], _Splits]
    model: Callable[[], nn.Module]
    lr_grid: tuple[float, ...]
    num_classes: int | None
    batch_size: int
    loss: Loss = functional.cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    optimizer: str = "sgd"
    local_steps: int = 5

    @property
    def default_lr(self) -> float:
        """η_c where none is given."""
        return RATES[self.name]

    @property
    def plain(self) -> bool:
        """Whether it is classification by cross-entropy and SGD, which sweeps know to do in lock-step."""
        return self.num_classes is not None and is_cross_entropy(self.loss) and self.optimizer == "sgd"

    def make(self, groups: Any, progress: Any, seed: int, **refused: Any) -> Task:
        """Make the task; options of tasks that are partitioned are refused."""
        for option, value in refused.items():
            if value not in (None, "iid", 0.0) and not (option == "num_clients" and value == CLIENTS[self.name]):
                allowed = f"{self.name} has {CLIENTS[self.name]} clients, each with its own data"
                raise fail(option, value, allowed)
        second = group_array(groups, CLIENTS[self.name])
        train, test, names = self.read(data.files(self.data, progress=progress))
        return Task(
            name=self.name,
            train=train,
            test=test,
            model=self.model,
            loss=self.loss,
            num_classes=self.num_classes,
            groups=second,
            groups_given=groups is not None,
            default_lr=self.default_lr,
            lr_grid=self.lr_grid,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            options={"seed": seed},
            metrics=dict(self.metrics),
            optimizer=self.optimizer,
            client_names=names,
        )


def _read_wisdm(files: _Files) -> _Splits:
    """Read the windows: 43 standardised features, six activities, one client per person."""
    rows = list(csv.reader(io.StringIO(files["wisdm.csv"].decode())))[1:]
    people = np.array([int(row[0]) for row in rows])
    y = np.array([_ACTIVITIES.index(row[-1]) for row in rows])
    train, test, names = _standardised(_numbers([row[1:-1] for row in rows]), y, people)
    return train, test, tuple(f"person {name}" for name in names)


def _read_heart(files: _Files) -> _Splits:
    """Read the patients: 13 standardised features, whether there is disease (`target` > 0), one client per hospital."""
    tables = [list(csv.reader(io.StringIO(files[f"{name}.csv"].decode())))[1:] for name in HOSPITALS]
    numbers = _numbers([row for table in tables for row in table])
    x, y = numbers[:, :-1], (numbers[:, -1] > 0).astype(np.int64)
    pressure, cholesterol = 3, 4
    for column in (pressure, cholesterol):  # nobody's is 0: it was not measured
        x[x[:, column] == 0, column] = np.nan
    train, test, _ = _standardised(x, y, np.repeat(np.arange(len(tables)), [len(table) for table in tables]))
    return train, test, HOSPITALS


def _numbers(rows: list[list[str]]) -> NDArray[np.float64]:
    return np.array([[float(value) if value else np.nan for value in row] for row in rows])


def _standardised(x: NDArray[np.float64], y: NDArray[np.int64], owners: NDArray[np.int64]) -> _Splits:
    """Split a table by client; columns get mean 0 and deviation 1 over all training samples, missing values the mean.

    Means and deviations are sums over clients, which a federation can compute without showing anybody's samples.
    """
    names, index = np.unique(owners, return_inverse=True)
    train, test = arrays.held_out(index, len(names), _HELD_OUT, seed=0)
    known = x[train]
    there = np.isfinite(known)
    count = np.maximum(there.sum(axis=0), 1)  # of a column that nobody has: everything is missing
    mean = np.where(there, known, 0.0).sum(axis=0) / count
    deviation = np.sqrt(np.where(there, (known - mean) ** 2, 0.0).sum(axis=0) / count)
    ready = torch.from_numpy(np.nan_to_num((x - mean) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32))
    classes = torch.from_numpy(y.astype(np.int64))
    both = (arrays.by_client(ready, classes, index, len(names), rows) for rows in (train, test))
    return (*both, tuple(str(name) for name in names))  # type: ignore[return-value]


def roles(text: str, shortest: int = _SHORTEST) -> dict[str, str]:
    """Return what each speaker says, in the order of names; those who say less than `shortest` characters are left out.

    Speeches are apart by an empty line and begin with the speaker's name and a colon.
    """
    said: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        speaker, _, speech = block.strip("\n").partition("\n")
        if speaker.endswith(":") and speech:
            said.setdefault(speaker[:-1], []).append(speech)
    joined = {speaker: "\n".join(speeches) + "\n" for speaker, speeches in sorted(said.items())}
    return {speaker: speech for speaker, speech in joined.items() if len(speech) >= shortest}


def _read_shakespeare(files: _Files) -> _Splits:
    """Read what the roles say: windows of 40 characters, and for each place the character after it."""
    place = np.full(128, -1, dtype=np.int64)
    place[[ord(letter) for letter in _LETTERS]] = np.arange(len(_LETTERS))
    speakers = roles(files["shakespeare.txt"].decode("ascii"))
    train, test = [], []
    for speech in speakers.values():
        ids = place[np.frombuffer(speech.encode("ascii"), dtype=np.uint8)]
        count = (len(ids) - 1) // _WINDOW
        x, y = (ids[shift : shift + count * _WINDOW].reshape(count, _WINDOW) for shift in (0, 1))
        kept = count - max(1, round(_HELD_OUT * count))
        train.append((x[:kept], y[:kept]))
        test.append((x[kept:], y[kept:]))
    return _sequences(train), _sequences(test), tuple(speakers)


def _sequences(clients: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> ClientData:
    offsets = np.concatenate([[0], np.cumsum([len(x) for x, _ in clients])])
    x, y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*clients, strict=True))
    return ClientData(x, y, offsets)


_WISDM = partial(
    NaturalRecipe,
    data="wisdm",
    read=_read_wisdm,
    lr_grid=(1.0, 10**-0.5, 0.1, 10**-1.5, 0.01),
    num_classes=len(_ACTIVITIES),
    batch_size=32,
)
NATURAL: dict[str, NaturalRecipe] = {
    recipe.name: recipe
    for recipe in (
        _WISDM("wisdm-mlp", model=partial(models.mlp, 43, 64, len(_ACTIVITIES))),
        _WISDM("wisdm-logistic", model=partial(models.logistic, 43, len(_ACTIVITIES))),
        NaturalRecipe(
            "shakespeare-gru",
            "shakespeare",
            _read_shakespeare,
            partial(models.CharacterGRU, len(_LETTERS)),
            lr_grid=(0.1, 10**-1.5, 0.01, 10**-2.5, 1e-3),
            num_classes=None,
            batch_size=16,
            loss=sequence_cross_entropy,
            metrics={"accuracy": accuracy},
            optimizer="adam",
        ),
        NaturalRecipe(
            "heart-disease-logistic",
            "heart-disease",
            _read_heart,
            partial(models.logistic, 13, 2),
            lr_grid=(1.0, 10**-0.5, 0.1, 10**-1.5, 0.01),
            num_classes=2,
            batch_size=32,
        ),
    )
}
"""The natural federations by name."""
