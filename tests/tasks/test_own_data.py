"""What a user has becomes a task: tables with client ids, columns with names, mapped files; errors are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.tasks import samples
from fedstale.tasks.scores import sequence_cross_entropy

RNG = np.random.default_rng(3)
X, Y, IDS = RNG.normal(size=(40, 3)), RNG.integers(2, size=40), np.array(["eve", "ann", "bob", "ann"] * 10)


def test_rows_go_to_the_clients_that_they_name() -> None:
    task = fs.Task.from_arrays(np.arange(40.0)[:, None], Y, IDS, test_share=0.25)
    assert task.client_names == ("ann", "bob", "eve")
    assert (task.train.sizes + task.test.sizes).tolist() == [20, 10, 10]
    assert task.test.sizes.tolist() == [5, 2, 2]
    for client, name in enumerate(task.client_names):
        rows = [
            *task.client_data(client)[0].flatten().tolist(),
            *task.client_data(client, "test")[0].flatten().tolist(),
        ]
        assert sorted(rows) == np.flatnonzero(name == IDS).tolist()
        x, y = task.client_data(client)
        assert y.tolist() == Y[x.flatten().int()].tolist()


def test_the_model_and_the_loss_have_defaults() -> None:
    classes = fs.Task.from_arrays(X, Y, IDS)
    assert (classes.num_classes, classes.loss) == (2, functional.cross_entropy)
    numbers = fs.Task.from_arrays(X, X @ [1.0, 2.0, 3.0], IDS)
    assert (numbers.num_classes, numbers.loss) == (None, functional.mse_loss)
    several = fs.Task.from_arrays(X, X[:, :2], IDS)
    for task, metric, bound in ((classes, "accuracy", 1.1), (numbers, "test_loss", 0.01), (several, "test_loss", 0.01)):
        run = fs.simulate(task, "fedavg", fs.Bernoulli(np.ones(3)), rounds=60, lr=0.1, batch_size=8)
        assert run.final(metric) < bound


def test_integers_are_in_their_order_whatever_they_are_kept_in() -> None:
    """As objects, which is how pandas keeps some of them, they were in the order of text: 0, 1, 10, 11, 2."""
    ids = np.arange(40) % 12
    plain, objects = (fs.Task.from_arrays(X, Y, clients) for clients in (ids, ids.astype(object)))
    assert objects.client_names == plain.client_names == tuple(map(str, range(12)))
    assert objects.fingerprint() == plain.fingerprint()
    assert fs.Task.from_arrays(X, Y, np.array([2**64, "b"] * 20, dtype=object)).client_names == (str(2**64), "b")


def test_the_same_seed_gives_the_same_split_and_another_one_another() -> None:
    one, same, other = (fs.Task.from_arrays(X, Y, IDS, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint()
    assert one.fingerprint() != other.fingerprint()


def test_a_table_in_a_file_is_not_read_into_memory(tmp_path: Path) -> None:
    owners = np.repeat(np.arange(4), 50)
    written = np.memmap(tmp_path / "x", np.float32, "w+", shape=(200, 6))
    written[:] = np.random.default_rng(0).normal(size=(200, 6))
    written.flush()
    mapped = np.memmap(tmp_path / "x", np.float32, "r", shape=(200, 6))
    y = (written[:, 0] > 0).astype(np.int64)
    task = fs.Task.from_arrays(mapped, y, owners, test=(X[:, [0, 1, 2, 0, 1, 2]], Y, np.arange(40) % 4))
    assert task.train.x.data_ptr() == mapped.__array_interface__["data"][0]
    assert task.client_data(2)[0].data_ptr() == mapped[100:].__array_interface__["data"][0]
    engine = fs.training.make(task, fs.training.LocalTraining(lr=0.1))
    assert engine.setup.train._x.data_ptr() == task.train.x.data_ptr()  # type: ignore[union-attr]
    assert fs.simulate(task, "fedavg", fs.Bernoulli(np.ones(4)), rounds=40, lr=0.3).final("objective") < 0.5


def test_columns_with_names_and_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": Y, "who": IDS})
    task = fs.Task.from_arrays(frame[["a", "b"]], frame["label"], frame["who"])
    assert task.train.x.shape[1:] == (2,)
    assert task.num_classes == 2
    columns = [{"pixels": X[:5].astype(np.float32), "label": Y[:5], "page": np.arange(5)}] * 2
    model, loss = lambda: nn.Linear(3, 2), functional.cross_entropy
    chosen = fs.Task.from_datasets(model, loss, columns, columns, inputs="pixels")
    assert chosen.train.x.shape == (10, 3)
    with pytest.raises(InvalidInput, match=r"unknown target in train\[0\] 'lable': did you mean label"):
        fs.Task.from_datasets(model, loss, columns, columns, target="lable")
    with pytest.raises(InvalidInput, match=r"unknown input in train\[0\] 'pixel'"):
        fs.Task.from_datasets(model, loss, columns, columns, inputs=["pixel"])
    unclear = [{"pixels": X[:5], "label": Y[:5], "y": Y[:5]}] * 2
    with pytest.raises(InvalidInput, match="say which of these is the target"):
        fs.Task.from_datasets(model, loss, unclear, unclear)


def test_data_frames_with_yes_or_no_and_with_room_for_what_is_missing() -> None:
    """`pandas.get_dummies` makes columns of yes or no; NumPy takes a frame with these for a table of objects."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": X[:, 0], "count": Y, "smokes": X[:, 1] > 0})
    plain = fs.Task.from_arrays(np.asarray(frame, dtype=np.float32), Y, IDS)
    assert fs.Task.from_arrays(frame, Y, IDS).fingerprint() == plain.fingerprint()
    roomy = frame.convert_dtypes()
    assert fs.Task.from_arrays(roomy, pandas.Series(Y).astype("Int64"), IDS).fingerprint() == plain.fingerprint()
    assert samples._of_columns(pandas.Series(Y).astype("Int64"), "y").dtype == np.int64
    gap = roomy.astype({"age": "Float64"})
    gap.loc[3, "age"] = None
    for wrong, told in (
        (frame.assign(city="Bonn"), r"x\['city'\] = '(str|object)': must be numbers: encode classes, texts and times"),
        (frame.assign(seen=pandas.Timestamp("2026-01-01")), r"x\['seen'\] = 'datetime64"),
        (gap, "x = 'NaN or infinite values': must be finite: fill in what is missing"),
    ):
        with pytest.raises(InvalidInput, match=told):
            fs.Task.from_arrays(wrong, Y, IDS)


@pytest.mark.parametrize("part", [0, 1])
def test_what_is_missing_in_clients_own_data_is_refused_as_in_a_table(part: int) -> None:
    whole = [(X[:5].copy(), X[:5, :1].copy()) for _ in range(2)]
    broken = [whole[0], (X[:5].copy(), X[:5, :1].copy())]
    broken[1][part][2, 0] = np.nan
    model = lambda: nn.Linear(3, 1)  # noqa: E731
    for split, given in (("train", (broken, whole)), ("test", (whole, broken))):
        with pytest.raises(
            InvalidInput, match=rf"{split}\[1\]: {'xy'[part]} = 'NaN or infinite values': must be finite"
        ):
            fs.Task.from_datasets(model, functional.mse_loss, *given)


def test_places_that_cross_entropy_leaves_out_are_left_out_of_the_mean() -> None:
    y = np.array([[0, 1, -100], [1, -100, -100], [2, 0, 1]])
    data = [(RNG.normal(size=(3, 3, 4)), y)] * 2
    task = fs.Task.from_datasets(lambda: nn.Linear(4, 3), sequence_cross_entropy, data, data)
    engine = fs.training.make(task, fs.training.LocalTraining(lr=0.1))
    module = engine.module(engine.initial)
    expected = float(functional.cross_entropy(module(task.train.x[:3]).flatten(0, 1), torch.from_numpy(y).flatten()))
    assert engine.evaluate(engine.initial, split="train").client_losses[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"x": X[:9]}, r"x = 'shape \(9, 3\)': must have a row for each of the 40 samples"),
        ({"y": Y[:9]}, r"y = 'shape \(9,\)'"),
        ({"y": np.array(["yes"] * 40)}, "y = 'text': must be numbers"),
        ({"x": np.where(X > 2, np.nan, X)}, "x = 'NaN or infinite values': must be finite: fill in what is missing"),
        ({"clients": IDS[:, None]}, "clients = 'array of shape"),
        ({"clients": np.arange(40)}, "test_share = 0.2: leaves no client with a test sample"),
        ({"test": (X, Y, ["ida"] * 40)}, "test = 'ida': is a client without training samples"),
        ({"test": (X, Y)}, r"test = 'tuple': must be \(x, y, clients\)"),
        ({"test_share": 2}, "test_share = 2"),
        ({"x": {"a": X, "b": X}}, "model = None: must be given"),
        (
            {"x": np.arange(120).reshape(40, 3), "model": lambda: nn.Linear(3, 2)},
            "model = 'Linear': cannot take the inputs int64",
        ),
        ({"model": lambda: nn.Linear(5, 2)}, "model = 'Linear': cannot take the inputs float32"),
        (
            {"y": X[:, 0], "model": lambda: nn.Linear(3, 1), "loss": functional.mse_loss},
            r"loss = 'mse_loss': cannot take the outputs float32 \(2, 1\) and targets float32 \(2,\)",
        ),
        ({"loss": lambda outputs, y: outputs.sum(1)}, "must be the mean over the batch, a single number"),
        ({"metrics": {"test_loss": len}}, "metrics = 'test_loss'"),
        ({"metrics": {"size": 3}}, "must be a function of"),
        ({"num_classes": 1}, "classes must lie in 0 … 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        fs.Task.from_arrays(**{"x": X, "y": Y, "clients": IDS, **given})
    assert "\n" not in str(caught.value)


def test_a_metric_that_cannot_be_computed_is_named() -> None:
    task = fs.Task.from_arrays(X, Y, IDS, metrics={"broken": lambda outputs, y: outputs[:, 5]})
    with pytest.raises(InvalidInput, match="metrics = 'broken': cannot be computed"):
        fs.simulate(task, rounds=1)


def test_wrong_clients_and_splits_are_named() -> None:
    task = fs.Task.from_arrays(X, Y, IDS)
    with pytest.raises(InvalidInput, match="client = 3"):
        task.client_data(3)
    with pytest.raises(InvalidInput, match="unknown split"):
        task.client_data(0, "tset")  # type: ignore[arg-type]


class _Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(a) * b[:, None]
        return scores


def test_test_samples_that_do_not_fit_are_refused_before_the_first_evaluation() -> None:
    linear = lambda: nn.Linear(3, 2)  # noqa: E731
    named = {"a": X, "b": X[:, 0], "label": Y}
    for model, train, test, told in (
        (
            linear,
            (X, Y),
            (np.ones((9, 5)), Y[:9]),
            r"'Linear': cannot take the inputs float32 \(2, 5\) of test samples",
        ),
        (linear, (X, Y), (np.ones((9, 3), dtype=int), Y[:9]), r"cannot take the inputs int64 \(2, 3\) of test samples"),
        (linear, (X, Y), (X, X[:, 0]), r"y = 'torch.float32 of shape \(80,\)': classes must be int64"),
        (_Weighted, named, {"a": X, "label": Y}, "'_Weighted': cannot take the inputs .* of test samples"),
    ):
        with pytest.raises(InvalidInput, match=told) as caught:
            fs.Task.from_datasets(model, functional.cross_entropy, [train] * 2, [test] * 2)
        assert "\n" not in str(caught.value)
    mean = lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(1), nn.AdaptiveAvgPool1d(2))  # noqa: E731
    short, long = ((np.ones((4, length), dtype=int), Y[:4]) for length in (6, 8))  # what the model takes may differ
    fs.Task.from_datasets(mean, functional.cross_entropy, [short] * 2, [long] * 2)
    alone = lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))  # noqa: E731
    fs.Task.from_arrays(X, X[:, 0], IDS, model=alone, loss=functional.mse_loss, test=(X[:1], X[:1, 0], IDS[:1]))


@pytest.mark.parametrize("choice", [{"inputs": ["foo"]}, {"target": "bar"}])
def test_names_for_samples_that_have_none_are_refused(choice: dict[str, Any]) -> None:
    one = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    for given in ((X, Y), one):
        with pytest.raises(
            InvalidInput, match=r"train\[0\] = 'a pair \(x, y\)': inputs= and target= choose among names"
        ):
            fs.Task.from_datasets(lambda: nn.Linear(3, 2), functional.cross_entropy, [given], [given], **choice)


def test_what_is_no_list_of_clients_is_one_clear_line() -> None:
    one = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    for given, name in ((one, "TensorDataset"), ({"x": X, "y": Y}, "dict"), (iter([(X, Y)]), "list_iterator")):
        with pytest.raises(InvalidInput, match=f"test = '{name}': must be a list with one entry per client"):
            fs.Task.from_datasets(lambda: nn.Linear(3, 2), functional.cross_entropy, [(X, Y)], given)  # type: ignore[arg-type]


def _table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2, np.arange(60) // 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": nn.Linear(3, 2)}, "model = 'Linear': must be a function that makes"),
        ({"batchsize": 3}, r"unknown option of a task 'batchsize': did you mean batch_size"),
        ({"train": 3}, r"unknown option of a task 'train'"),
        ({"num_classes": 5, "model": lambda: nn.Linear(3, 3)}, "num_classes = 5: the model puts out 3 scores"),
        ({"clients": np.arange(60) // 20 + 0.0}, r"clients = 'float64': must be integers or names: clients\.astype"),
        (
            {"test": (np.ones((2, 3)), [0, 1], ["0", "1"])},  # as text, 10 would come before 2: other clients' samples
            "test = 'clients of <U1': must be of the kind of the others, int64",
        ),
        ({"clients": [None] * 60}, r"clients\[0\] = None: whose this row is is missing"),
        ({"clients": np.array(["a", float("nan")] * 30, dtype=object)}, r"clients\[1\] = None"),
    ],
)
def test_slips_are_one_clear_line(options: dict[str, Any], message: str) -> None:
    x, y, clients = _table()
    with pytest.raises(InvalidInput, match=message) as caught:
        fs.Task.from_arrays(x, y, **{"clients": clients, **options})
    assert "\n" not in str(caught.value)


def test_the_default_model_takes_integers_and_yes_or_no() -> None:
    x, y, clients = _table()
    task = fs.Task.from_arrays((9 * x).astype(int), y > 0, clients)
    assert task.num_classes == 2
    assert task.train.x.dtype == task.test.x.dtype == torch.float32
    assert 0.0 <= fs.simulate(task, rounds=2).final("accuracy") <= 1.0


def test_the_default_model_knows_a_class_that_only_test_samples_have() -> None:
    x, y, clients = _table()
    task = fs.Task.from_arrays(x, y, clients, test=(x[:2], np.array([0, 3]), clients[:2]))
    assert task.num_classes == 4
    for seed in range(5):  # a single sample of the last class: sometimes it is held out
        assert fs.Task.from_arrays(x, np.where(np.arange(60) == 0, 2, y), clients, seed=seed).num_classes == 3


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_token_ids_of_few_bits_say_what_to_do(dtype: str) -> None:
    x, y, clients = _table()

    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(12, 2))

    with pytest.raises(InvalidInput, match=r'takes int32 and int64: x\.astype\("int64"\)'):
        fs.Task.from_arrays(np.abs(3 * x).astype(dtype), y, clients, model=model)


def test_a_batch_of_one_sample_is_refused_for_batch_norm_before_training() -> None:
    """torch raised a ValueError of its own in the midst of the first round."""
    x, y, _ = _table()
    x, y, clients = np.tile(x, (3, 1)), np.tile(y, 3), np.arange(180) // 60  # 48 to train on, each

    def flat() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))

    def picture() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 1, 3)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(3, 2))

    task = fs.Task.from_arrays(x, y, clients, model=flat)
    with pytest.raises(InvalidInput, match=r"batch_size = 47: client 0 has 48 samples.*BatchNorm"):
        fs.simulate(task, rounds=1, epochs=1, batch_size=47)
    fs.simulate(task, rounds=1, epochs=1, batch_size=46)
    fs.simulate(fs.Task.from_arrays(x, y, clients, model=picture), rounds=1, epochs=1, batch_size=47)
