"""The adapters on the packages they are for. Neither is in the locks: skipped where they are not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale import tasks

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
flwr_datasets = pytest.importorskip("flwr_datasets")

rng = np.random.default_rng(0)
LABELS = rng.integers(3, size=300)
SAMPLES: dict[str, Any] = {
    "features": (rng.normal(size=(300, 4)) + 2 * LABELS[:, None]).tolist(),
    "label": LABELS.tolist(),
    "who": [f"person {k}" for k in rng.integers(6, size=300)],
}


@pytest.fixture
def table() -> Any:
    made = datasets.Dataset.from_dict(SAMPLES)
    return made.cast_column("label", datasets.ClassLabel(names=["a", "b", "c"]))


def learned(task: fs.Task) -> float:
    return fs.simulate(task, "fedstale", p_min=0.5, rounds=40, lr=0.1, progress=False).final("accuracy")


def test_a_data_set_with_a_column_of_clients(table: Any) -> None:
    task = tasks.from_hugging_face(table, "who", target="label")
    assert task.client_names == tuple(f"person {k}" for k in range(6))
    assert learned(task) > 0.6


@pytest.mark.parametrize(
    "make",
    [
        lambda: partitioners.IidPartitioner(num_partitions=5),
        lambda: partitioners.DirichletPartitioner(num_partitions=5, partition_by="label", alpha=1.0),
        lambda: partitioners.NaturalIdPartitioner(partition_by="who"),
    ],
    ids=["iid", "dirichlet", "natural"],
)
def test_partitioners(make: Any, table: Any) -> None:
    partitioner = make()
    partitioner.dataset = table
    task = tasks.from_partitions(
        partitioner,
        lambda: nn.Linear(4, 3),
        functional.cross_entropy,
        inputs="features",
        target="label",
        metrics={"accuracy": tasks.accuracy},
    )
    assert task.train.num_samples + task.test.num_samples == 300
    assert learned(task) > 0.6


def test_pictures() -> None:
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=2)})
    pictures = rng.integers(0, 255, size=(40, 8, 8), dtype=np.uint8)
    partitioner = partitioners.IidPartitioner(num_partitions=4)
    partitioner.dataset = datasets.Dataset.from_dict({"image": list(pictures), "label": [0, 1] * 20}, features=kinds)
    task = tasks.from_partitions(
        partitioner,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)),
        functional.cross_entropy,
        transform=lambda image: image / 255.0,
    )
    assert tuple(task.train.x.shape[1:]) == (8, 8)
    assert float(task.train.x.max()) <= 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda table: datasets.DatasetDict({"train": table}), "one split of a DatasetDict"),
        (lambda table: table.to_iterable_dataset(), "not a stream"),
        (lambda table: table.remove_columns("who"), "is not a column"),
        (lambda table: table.rename_column("who", "x").add_column("who", ["a"] * 300), "encode classes and texts"),
    ],
    ids=["splits", "stream", "no clients", "text"],
)
def test_what_is_no_table_of_numbers_is_refused_in_one_line(make: Any, said: str, table: Any) -> None:
    with pytest.raises(fs.InvalidInput, match=said) as caught:
        tasks.from_hugging_face(make(table), "who", target="label")
    assert "\n" not in str(caught.value)


def test_a_partitioner_without_its_data_set_says_how_to_get_it() -> None:
    partitioner = partitioners.IidPartitioner(num_partitions=3)
    with pytest.raises(fs.InvalidInput, match="has no data set yet"):
        tasks.from_partitions(partitioner, lambda: nn.Linear(4, 3), functional.cross_entropy)
    federated = flwr_datasets.FederatedDataset(dataset="x", partitioners={"train": partitioner})
    with pytest.raises(fs.InvalidInput, match="of a FederatedDataset"):
        tasks.from_partitions(federated, lambda: nn.Linear(4, 3), functional.cross_entropy)
