"""Data sets of Hugging Face and partitioners of Flower Datasets as tasks. Neither package is imported here.

A `datasets.Dataset` is known by `with_format`, a partitioner by `num_partitions` and `load_partition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..checks import fail, number
from ..randomness import generator
from .samples import Fields
from .scores import Loss
from .task import Task


def from_partitions(
    partitioner: Any,
    model: Callable[[], nn.Module],
    loss: Loss,
    *,
    test: Any = None,
    test_share: float = 0.2,
    seed: int = 0,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Task:
    """Make a task of a partitioner of Flower Datasets: partition i is client i's data.

    Parameters
    ----------
    partitioner
        With its data set; of a `FederatedDataset`, `fds.partitioners["train"]` after `fds.load_partition(0)`.
    model, loss, inputs, target, **options
        As for `Task.from_datasets`; the columns of the data set are the fields.
    test
        A partitioner of the test samples; default: `test_share` of each partition, drawn by `seed`.
    transform
        Applied to each client's inputs, one array or a dict of them: `lambda image: image[:, None] / 255`.
    """
    number("test_share", test_share, 0.0, 1.0)
    for argument, given in (("partitioner", partitioner), ("test", test)):
        if given is not None and not (hasattr(given, "num_partitions") and hasattr(given, "load_partition")):
            allowed = 'must have num_partitions and load_partition(i); of a FederatedDataset, fds.partitioners["train"]'
            raise fail(argument, type(given).__name__, allowed)
        if given is not None and not getattr(given, "is_dataset_assigned", lambda: True)():
            allowed = "has no data set yet: call fds.load_partition(0), or set its dataset"
            raise fail(argument, type(given).__name__, allowed)
    fields = Fields(inputs, target, transform)

    def read(source: Any, where: str) -> list[tuple[Any, Any]]:
        parts = (_columns(source.load_partition(i)) for i in range(int(source.num_partitions)))
        return [fields.parts(columns, f"{where}[{i}]") for i, columns in enumerate(parts)]

    train = read(partitioner, "train")
    if test is not None:
        return Task.from_datasets(model, loss, train, read(test, "test"), **options)
    held_out = []
    for i, (x, y) in enumerate(train):
        order = generator(seed, "held-out", i).permutation(len(y))
        count = min(round(test_share * len(y)), len(y) - 1)
        held_out.append((_rows(x, order[:count]), y[order[:count]]))
        train[i] = _rows(x, order[count:]), y[order[count:]]
    return Task.from_datasets(model, loss, train, held_out, **options)


def from_hugging_face(
    dataset: Any,
    clients: str,
    *,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Task:
    """Make a task of a Hugging Face data set with a column that says whose a sample is.

    Parameters
    ----------
    dataset
        A `datasets.Dataset`.
    clients
        The column of the clients' names.
    inputs, target, transform
        As for `from_partitions`.
    **options
        As for `Task.from_arrays`.
    """
    columns = _columns(dataset)
    if clients not in columns:
        raise fail("clients", clients, f"is not a column; the columns are {', '.join(columns)}")
    owners = columns.pop(clients)
    x, y = Fields(inputs, target, transform).parts(columns, "the data set")
    return Task.from_arrays(x, y, owners, **options)


def _columns(dataset: Any) -> dict[str, Any]:
    if not hasattr(dataset, "with_format"):
        raise fail("dataset", type(dataset).__name__, "must be a datasets.Dataset")
    if isinstance(dataset, dict) or not hasattr(dataset, "__len__"):
        allowed = "must be a datasets.Dataset: one split of a DatasetDict, and not a stream"
        raise fail("dataset", type(dataset).__name__, allowed)
    return dict(dataset.with_format("numpy")[:])


def _rows(values: Any, rows: Any) -> Any:
    return {name: value[rows] for name, value in values.items()} if isinstance(values, dict) else values[rows]
