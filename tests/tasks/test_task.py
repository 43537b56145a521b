"""Tasks by name and of one's own: who has which rows, which labels are swapped, what is refused."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedstale as fs
from fedstale.checks import InvalidInput, UnknownName
from fedstale.tasks import ClientData, Task, data, make, names
from fedstale.tasks.catalogue import _IMAGES, TASKS
from fedstale.tasks.defaults import ALIASES
from fedstale.tasks.task import build_model

SHAPES = {entry.name: entry.shape for entry in data.available()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the data sets: few samples of the right shapes, no fetching."""

    def load(name: str, *, progress: object = True) -> data.Arrays:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (1500, *SHAPES[name]), dtype=np.uint8)
        y = rng.integers(0, 10, 1500).astype(np.int64)
        return data.Arrays(x[:1200], y[:1200], x[1200:], y[1200:])

    monkeypatch.setattr("fedstale.tasks.catalogue.data.load", load)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", sorted(_IMAGES))
def test_every_task_can_be_made_and_its_model_fits_its_data(name: str) -> None:
    task = make(name, num_clients=6, share=0.5)
    assert task.name == name
    assert task.num_clients == task.train.num_clients == task.test.num_clients == 6
    assert task.train.sizes.tolist() == [100] * 6
    assert task.test.sizes.tolist() == [25] * 6
    x, y = task.train.client(2)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    logits = task.build(0)(x[:4])
    assert logits.shape == (4, task.num_classes)
    assert task.loss(logits, y[:4]).shape == ()
    assert len(task.lr_grid) == 5
    assert task.default_lr in task.lr_grid
    assert list(task.lr_grid) == sorted(task.lr_grid, reverse=True)
    assert task.local_steps == 5


@pytest.mark.usefixtures("small")
def test_names_and_aliases() -> None:
    assert set(names()) == set(TASKS)
    for alias, full in [("digits", "digits-mlp"), ("mnist", "mnist-cnn"), ("cifar10", "cifar10-cnn")]:
        assert make(alias, num_clients=2).name == full
    with pytest.raises(UnknownName, match="did you mean mnist-cnn"):
        make("mnist-cn")
    with pytest.raises(InvalidInput, match=r"quadratic.*Quadratic\.figure1"):
        make("quadratic")


def test_digits_are_normalised_and_all_used() -> None:
    task = make("digits")
    assert len(task.train.x) == 1438
    assert task.train.sizes.min() == 59
    assert task.test.sizes.sum() == 359
    assert float(task.train.x.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(task.train.x.std()) == pytest.approx(1.0, abs=0.02)
    assert float(task.train.x.min()) == pytest.approx(-0.3053 / 0.3760, rel=1e-5)
    assert float(task.train.x.max()) == pytest.approx((1 - 0.3053) / 0.3760, rel=1e-5)


@pytest.mark.usefixtures("small")
def test_channels_are_normalised_each_by_its_own_numbers() -> None:
    task = make("cifar10", num_clients=1, share=1.0)
    low = task.train.x.amin(dim=(0, 2, 3))
    torch.testing.assert_close(low, -torch.tensor([0.4914, 0.4822, 0.4465]) / torch.tensor([0.2470, 0.2435, 0.2616]))


@pytest.mark.parametrize("swap", [0.0, 0.4, 1.0])
def test_labels_are_swapped_in_both_splits_of_the_second_group_only(swap: float) -> None:
    groups = np.array([1, 0, 0, 1, 0, 1])
    plain = make("digits", num_clients=6, groups=groups, seed=3)
    task = make("digits", num_clients=6, groups=groups, seed=3, swap=swap)
    for before, after in ((plain.train, task.train), (plain.test, task.test)):
        torch.testing.assert_close(before.x, after.x)
        for client, group in enumerate(groups):
            old, new = before.client(client)[1], after.client(client)[1]
            for a, b in ((8, 9), (9, 8)):
                expected = int((old == a).sum()) * swap if group else 0
                assert abs(int(((old == a) & (new == b)).sum()) - expected) < 2
            untouched = (old != 8) & (old != 9)
            assert torch.equal(old[untouched], new[untouched])
    assert task.groups.tolist() == groups.tolist()


@pytest.mark.parametrize("swap", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_the_share_that_is_swapped_is_the_one_asked_for(swap: float) -> None:
    task = make("digits", swap=swap)  # two or three samples of the two labels in a client's test split
    assert task.swapped["swap_train"] == pytest.approx(swap, abs=0.005)
    assert task.swapped["swap_test"] == pytest.approx(swap, abs=0.02)


def test_the_pair_is_an_option() -> None:
    plain, task = make("digits", swap=0.0), make("digits", swap=1.0, swap_pair=(0, 1))
    changed = plain.train.y[plain.train.y != task.train.y]
    assert set(changed.tolist()) == {0, 1}


def test_the_seed_decides_everything() -> None:
    one, same, other = (make("digits", swap=0.5, seed=seed, partition="dirichlet") for seed in (1, 1, 2))
    assert torch.equal(one.train.x, same.train.x)
    assert torch.equal(one.train.y, same.train.y)
    assert torch.equal(one.test.y, same.test.y)
    assert not np.array_equal(one.train.offsets, other.train.offsets)


def test_building_is_deterministic_and_leaves_torch_alone() -> None:
    task = make("digits-cnn", num_clients=2)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one, same, other = (torch.cat([p.flatten() for p in task.build(s).parameters()]) for s in (7, 7, 8))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_model_that_is_handed_out_again_and_again_stays_as_it_is() -> None:
    """The way to start from pretrained weights: `model_state` wrote into them, and the next run began with its end."""
    net = nn.Linear(2, 3)
    before = {name: values.clone() for name, values in net.state_dict().items()}
    samples = [(np.eye(2), np.array([0, 2]))] * 2
    task = Task.from_datasets(lambda: net, functional.cross_entropy, samples, samples, batch_size=2)
    first = fs.simulate(task, "fedavg", p_min=1.0, rounds=2, lr=0.5, progress=False)
    learned = first.model_state()
    assert all(torch.equal(before[name], values) for name, values in net.state_dict().items())
    assert not torch.equal(learned["weight"], before["weight"])
    again = fs.simulate(task, "fedavg", p_min=1.0, rounds=2, lr=0.5, progress=False)
    np.testing.assert_array_equal(again.model, first.model)


def test_other_partitions_reach_the_training_split_only() -> None:
    task = make("digits", num_clients=5, partition="pathological", classes_per_client=2)
    assert [len(set(task.train.client(i)[1].tolist())) for i in range(5)] == [2] * 5
    assert min(len(set(task.test.client(i)[1].tolist())) for i in range(5)) > 8
    lists = [[0, 1, 2], [3], [10, 11]]
    given = make("digits", num_clients=3, partition=lists)
    assert given.train.sizes.tolist() == [3, 1, 2]
    assert given.options["partition"] == "given"


@pytest.mark.usefixtures("small")
def test_shares_of_the_two_splits() -> None:
    assert make("mnist", num_clients=2).options["share"] == 0.2
    for options, expected in [({}, (240, 60)), ({"share": 0.5}, (600, 150)), ({"test_share": 1.0}, (240, 300))]:
        task = make("mnist", num_clients=2, **options)  # type: ignore[arg-type]
        assert (len(task.train.y), len(task.test.y)) == expected


def test_wrong_arguments_are_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr("fedstale.tasks.catalogue.data.load", never)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"num_clients": 0}, "num_clients = 0"),
        ({"share": 0}, "share = 0"),
        ({"test_share": 2}, "test_share = 2"),
        ({"swap": 1.5}, "swap = 1.5"),
        ({"swap_pair": (8, 10)}, "swap_pair"),
        ({"groups": [0, 1]}, "groups"),
        ({"partition": "diri"}, "unknown partition 'diri'"),
        ({"alpha": 1.0}, "alpha = 1.0: is not an option of the iid partition"),
    ]
    for arguments, told in wrong:
        with pytest.raises(InvalidInput, match=told):
            make("mnist", **arguments)


def own(**settings: Any) -> Task:
    train: list[Any] = [
        TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 2])),
        (np.ones((2, 2)), np.array([1, 1], dtype=np.int8)),
    ]
    test: list[Any] = [(torch.zeros(1, 2), torch.tensor([2])), (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))]
    return Task.from_datasets(lambda: nn.Linear(2, 3), functional.cross_entropy, train, test, **settings)


def test_a_task_of_ones_own() -> None:
    task = own(batch_size=2)
    assert task.num_clients == 2
    assert task.num_classes == 3
    assert task.train.offsets.tolist() == [0, 3, 5]
    assert task.test.sizes.tolist() == [1, 0]
    assert task.train.x.tolist() == [[0, 1], [2, 3], [4, 5], [1, 1], [1, 1]]
    assert task.train.y.tolist() == [0, 1, 2, 1, 1]
    assert task.train.client(1)[0].data_ptr() == task.train.x[3:].data_ptr()
    assert task.groups.tolist() == [0, 1]
    assert task.batch_size == 2
    assert task.build(0)(task.train.x).shape == (5, 3)


def test_what_does_not_fit_is_refused() -> None:
    def build(train: Any, test: Any, **settings: Any) -> Task:
        return Task.from_datasets(lambda: nn.Linear(2, 3), functional.cross_entropy, train, test, **settings)

    good = (torch.zeros(2, 2), torch.tensor([0, 1]))
    none = (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    wrong: list[tuple[Any, Any, str]] = [
        ([good], [good, good], r"train, test = \(1, 2\)"),
        ([], [], r"train, test = \(0, 0\)"),
        ([good, none], [good, good], r"train\[1\] = 'no samples'"),
        ([(good[0], torch.tensor([0.5, 1]))], [good], "loss = 'cross_entropy': cannot take .*targets float32"),
        ([(good[0], torch.tensor([0]))], [good], r"train\[0\] = 'x 2, y 1 rows': must have one target for each input"),
        ([good, (torch.zeros(2, 5), good[1])], [good, good], r"train\[1\] = 'inputs of shape \(5,\)'"),
        ([good], ["text"], r"test\[0\] = 'str'"),
        ([(good[0], torch.tensor([0, -1]))], [good], "Target -1 is out of bounds"),
        ([(torch.zeros(3, 2), torch.tensor([0, 1, -1]))], [good], "classes -1"),
    ]
    for train, test, told in wrong:
        with pytest.raises(InvalidInput, match=told):
            build(train, test)
    with pytest.raises(InvalidInput, match="classes must lie in 0 … 0"):
        build([good], [good], num_classes=1)
    with pytest.raises(InvalidInput, match="offsets"):
        ClientData(*good, np.array([0, 1]))
    with pytest.raises(InvalidInput, match="batch_size = 0"):
        own(batch_size=0)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_task.py"
    runpy.run_path(str(example), run_name="__main__")
    assert "10 clients" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [0, 1])
def test_the_shares_in_the_docs_are_those_of_the_digits(seed: int) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = page.split(f"| digits, {seed} |")[1].splitlines()
    shares = [make("digits", seed=seed, swap=swap).swapped for swap in (0.2, 0.4, 0.6, 0.8)]
    shown = " | ".join(f"{one['swap_train']:.3f} / {one['swap_test']:.3f}" for one in shares)
    assert rows[1] == f"| | over the group | {shown} | 1 / 1 |"


def test_the_names_that_are_known_without_torch_are_the_tasks() -> None:
    assert names() == tuple(TASKS)
    assert set(ALIASES.values()) <= set(TASKS)


def test_a_model_that_cannot_be_copied_is_taken_as_it_is() -> None:
    def model() -> torch.nn.Module:
        return torch.nn.utils.weight_norm(torch.nn.Linear(3, 2))

    with pytest.warns(FutureWarning, match="weight_norm"):
        assert build_model(model, 0)(torch.ones(1, 3)).shape == (1, 2)
