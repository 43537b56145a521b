"""Natural federations: every reader on made-up files in each form, and the real files where they are at hand."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.tasks import adapters, data, forms, make, natural
from fedstale.tasks.download import SourceFailed
from fedstale.tasks.sources import DATA_SETS, HOSPITALS, Content
from tests.shared_data import shared_file

HEAD = '@relation r\n@attribute "UNIQUE_ID" numeric\n' + "".join(
    f'@attribute "{name}" numeric\n' for name in ("user", *forms._WISDM_FEATURES)
)
ARFF = (
    HEAD
    + "@attribute class\n@data\n"
    + "".join(
        f"{k},{k % 3 + 1},{','.join(str(round(k * j / 7, 2)) for j in range(42))},?,{natural._ACTIVITIES[k % 6]}\n"
        for k in range(30)
    )
).encode()


def test_wisdm_is_read_by_person() -> None:
    train, test, names = natural._read_wisdm({"wisdm.csv": forms.wisdm(ARFF)})
    assert names == ("person 1", "person 2", "person 3")
    assert (train.sizes + test.sizes).tolist() == [10, 10, 10]
    assert train.x.shape[1] == 43
    assert torch.isfinite(train.x).all()
    np.testing.assert_allclose(train.x.mean(0), 0, atol=1e-5)
    assert (train.x[:, 42] == 0).all()  # never measured


def test_one_content_in_several_forms() -> None:
    plain = forms.heart(b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,0\n")
    other = forms.heart(f"{','.join(forms._HEART_FEATURES)},target\n63,1,1,145,233,1,2,150,0,2.3,3,,6,0".encode())
    assert plain == other
    for wrong in (b"1,2,3\n", b"a" * 14, b"\xff\xfe", b"x," * 13 + b"1\n"):
        with pytest.raises(SourceFailed):
            forms.heart(wrong)
    with pytest.raises(SourceFailed, match="no @data"):
        forms.wisdm(b"1,2,3")


def test_hospitals_with_gaps() -> None:
    lines = "".join(f"50,1,{k % 4},?,{0 if k % 2 else 200},1,0,{100 + k},0,1,?,?,?,{k % 5}\n" for k in range(10))
    files = {f"{name}.csv": forms.heart(lines.encode()) for name in HOSPITALS}
    train, test, names = natural._read_heart(files)
    assert names == HOSPITALS
    assert set(train.y.tolist()) == {0, 1}
    assert torch.isfinite(train.x).all()
    assert (train.x[:, 4] == 0).all()  # a cholesterol of 0 was not measured, and 200 is the mean
    assert test.sizes.tolist() == [2] * 4


def test_roles_and_their_next_characters() -> None:
    text = "ANN:\n" + "to be " * 30 + "\n\nBOB:\nno\n\nANN:\n" + "or not " * 20 + "\n"
    assert list(natural.roles(text, 100)) == ["ANN"]
    long = "ANN:\n" + "to be or not " * 100 + "\n\nEVE:\n" + "all the world " * 90 + "\n"
    train, test, names = natural._read_shakespeare({"shakespeare.txt": long.encode()})
    assert names == ("ANN", "EVE")
    assert train.x.dtype == torch.int64
    assert torch.equal(train.x[:, 1:], train.y[:, :-1])
    assert test.sizes.min() >= 1


def test_a_folder_of_files_is_verified_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = forms.wisdm(ARFF)
    entry = DATA_SETS["wisdm"]
    content = Content("wisdm.csv", len(kept), hashlib.sha256(kept).hexdigest(), "wisdm", entry.files[0].aliases)
    from dataclasses import replace

    monkeypatch.setitem(DATA_SETS, "wisdm", replace(entry, files=(content,)))
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path / "cache"))
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(data.DataUnavailable, match=r"has no wisdm.csv or WISDM_ar_v1.1_transformed.arff"):
        data.fetch("wisdm", source=mine)
    (mine / "WISDM_ar_v1.1_transformed.arff").write_bytes(ARFF + b"1,2\n")
    with pytest.raises(data.DataUnavailable, match="a line has"):
        data.fetch("wisdm", source=mine)
    (mine / "WISDM_ar_v1.1_transformed.arff").write_bytes(ARFF)
    folder = data.fetch("wisdm", source=mine)
    assert (folder / "wisdm.csv").read_bytes() == kept
    monkeypatch.setenv("FEDSTALE_DATA", str(mine))  # as it lies
    assert data.files("wisdm") == {"wisdm.csv": kept}
    with pytest.raises(InvalidInput, match="there is no such folder"):
        data.fetch("wisdm", source=tmp_path / "nowhere")
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path / "another"))  # from a cache: what was verified is taken as it is
    assert (data.fetch("wisdm", source=folder) / "wisdm.csv").read_bytes() == kept


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_clients": 5}, "num_clients = 5: wisdm has 36 clients"),
        ({"swap": 0.5}, "swap = 0.5: wisdm-mlp has 36 clients"),
        ({"partition": "dirichlet"}, "partition = 'dirichlet': wisdm-mlp has 36 clients"),
        ({"share": 0.5}, "share = 0.5"),
    ],
)
def test_what_a_natural_federation_does_not_take(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        fs.simulate("wisdm", rounds=1, **options)


def test_leafs_files(tmp_path: Path) -> None:
    own = {"x": [[0.5] * 784] * 3, "y": [1, 2, 61]}
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        content = {"users": ["f1", "f0"], "num_samples": [3, 3], "user_data": {"f0": own, "f1": own}}
        (tmp_path / split / "all.json").write_text(json.dumps(content))
    task = fs.tasks.femnist(tmp_path)
    assert task.client_names == ("f0", "f1")
    assert fs.simulate(task, rounds=1, p_min=1.0).final("test_loss") > 0
    (tmp_path / "test" / "all.json").write_text("{}")
    with pytest.raises(InvalidInput, match="is not a file of LEAF's FEMNIST"):
        fs.tasks.femnist(tmp_path)


def _write_leaf(folder: Path, sizes: dict[str, int]) -> None:
    folder.parent.mkdir(exist_ok=True)
    own = {writer: {"x": [[0.5] * 784] * n, "y": [1] * n} for writer, n in sizes.items()}
    folder.write_text(json.dumps({"users": list(own), "num_samples": list(sizes.values()), "user_data": own}))


def test_leafs_writers_are_not_lost_without_a_word(tmp_path: Path) -> None:
    """One who was in two files lost the samples of the first, one who was in the test split only all of them."""
    _write_leaf(tmp_path / "train" / "a.json", {"w1": 3, "w2": 2})
    _write_leaf(tmp_path / "test" / "a.json", {"w1": 1, "w3": 1})
    with pytest.raises(InvalidInput, match="writer w3 has no training samples: split each writer's samples"):
        fs.tasks.femnist(tmp_path)
    _write_leaf(tmp_path / "train" / "b.json", {"w1": 1, "w3": 1})
    with pytest.raises(InvalidInput, match=r"b\.json.*writer w1 has been read before"):
        fs.tasks.femnist(tmp_path)
    _write_leaf(tmp_path / "train" / "b.json", {"w3": 0})
    with pytest.raises(InvalidInput, match=r"train.*: writer w3 has no samples"):
        fs.tasks.femnist(tmp_path)
    assert fs.tasks.femnist(tmp_path, num_clients=2).client_names == ("w1", "w2")


class Columns:
    """Behaves like a `datasets.Dataset`."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def with_format(self, name: str) -> Columns:
        assert name == "numpy"
        return self

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        return {name: column[rows] for name, column in self.columns.items()}


class Partitioner:
    num_partitions = 3

    def load_partition(self, i: int) -> Columns:
        rng = np.random.default_rng(i)
        return Columns(
            {"image": rng.integers(256, size=(20, 2, 2)).astype(np.uint8), "label": rng.integers(3, size=20)}
        )


def test_partitioners_and_columns() -> None:
    model = lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3))  # noqa: E731
    task = adapters.from_partitions(Partitioner(), model, functional.cross_entropy, transform=lambda x: x / 255)
    assert task.train.sizes.tolist() == [16] * 3
    assert fs.simulate(task, rounds=2, p_min=1.0).final("accuracy") >= 0
    with pytest.raises(InvalidInput, match="must have num_partitions"):
        adapters.from_partitions([], model, functional.cross_entropy)
    table = Columns({"x": np.eye(6, dtype=np.float32), "label": np.arange(6) % 2, "who": np.array(list("aabbaa"))})
    assert adapters.from_hugging_face(table, "who").client_names == ("a", "b")


@pytest.mark.parametrize(("name", "clients"), [("wisdm", 36), ("heart-disease", 4), ("shakespeare", 141)])
def test_the_real_files(name: str, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTALE_DATA", os.fspath(shared_file("wisdm-transformed.arff").parent))
    task = make(name)
    entry = DATA_SETS[name]
    assert task.num_clients == clients
    assert (task.train.num_samples, task.test.num_samples) == (entry.train, entry.test)
    if name != "shakespeare":
        assert fs.simulate(name, "fedavg", p_min=1.0, rounds=60, progress=False).final("accuracy") > 0.7
