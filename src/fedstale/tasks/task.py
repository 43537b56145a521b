"""What training and evaluation are given: the clients' samples, a model, a loss, metrics.

The objective is F = Σ α_i F_i (Eq. 1 of the paper), F_i the mean loss over client i's samples.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..checks import choose, fail, number, positive_int, unknown
from ..randomness import generator
from . import arrays
from .client_data import ClientData, Values, each, gather, single
from .label_swap import group_array
from .samples import Fields, check_finite, read_samples
from .scores import Loss, Metric, accuracy, are_classes, check_metrics, first_rows, try_out

__all__ = ["ClientData", "Loss", "Task", "build_model"]


@dataclass(frozen=True, eq=False)
class Task:
    """A federated learning problem.

    Parameters
    ----------
    name
        What it is called in stores and figures.
    train, test
        Both splits of every client; no client is without training samples.
    model
        A function that makes the untrained model, any `nn.Module`. `build(seed)` calls it with torch seeded.
    loss
        Of (outputs, targets), the mean over the batch.
    num_classes
        For classification: how many scores the model puts out for a sample. The targets are then one class per sample
        (int64), and the accuracy is recorded. None for every other problem.
    groups
        0 for the first group of clients, 1 for the second (rare, swapped) one, shape (N,).
    default_lr, lr_grid
        The client rate η_c to begin with, and the rates to tune it on.
    batch_size, local_steps
        B and K of local training.
    options
        What `make` was called with, for the record.
    swapped
        The shares of the second group's samples of the two labels that were swapped: "swap_train" and "swap_test",
        which a run records beside the accuracy; empty where there was nothing to swap.
    metrics
        What else is measured on test data, by name: functions of (outputs, targets) that return one value per sample,
        or one for all samples of a client. One that is called "accuracy" is what methods are compared by; without one
        they are compared by the test loss. The names of what every run records are taken.
    optimizer
        The clients' optimiser where the settings name none: a name such as "adam", or a function of (parameters, lr)
        that makes one.
    client_names
        What the clients are called, where they have names; the position is the client's index.
    groups_given
        Whether the groups were chosen; where they were not, a run reports the clients by how often they come.
    """

    name: str
    train: ClientData
    test: ClientData
    model: Callable[[], nn.Module]
    loss: Loss
    num_classes: int | None
    groups: NDArray[np.int64]
    default_lr: float = 0.1
    lr_grid: tuple[float, ...] = (1.0, 10**-0.5, 0.1, 10**-1.5, 0.01)
    batch_size: int = 128
    local_steps: int = 5
    options: dict[str, Any] = field(default_factory=dict)
    swapped: dict[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    optimizer: str | Callable[..., torch.optim.Optimizer] = "sgd"
    client_names: tuple[str, ...] = ()
    groups_given: bool = True

    def __post_init__(self) -> None:
        n = self.train.num_clients
        if self.test.num_clients != n:
            raise fail("test", f"{self.test.num_clients} clients", f"must have the {n} clients of the training split")
        empty = np.flatnonzero(self.train.sizes == 0)
        if empty.size:
            raise fail(f"train[{empty[0]}]", "no samples", "every client needs at least one training sample")
        object.__setattr__(self, "groups", group_array(self.groups, n))
        check_metrics(self.metrics)
        if self.num_classes is not None:
            positive_int("num_classes", self.num_classes)
            for split in (self.train, self.test):
                _check_classes(split, self.num_classes)
            if "accuracy" not in self.metrics:
                object.__setattr__(self, "metrics", {"accuracy": accuracy, **self.metrics})
        if self.client_names and len(self.client_names) != n:
            raise fail("client_names", f"{len(self.client_names)} names", f"must be one for each of {n} clients")
        number("default_lr", self.default_lr, 0.0, open_low=True)
        positive_int("batch_size", self.batch_size)
        positive_int("local_steps", self.local_steps)

    @property
    def num_clients(self) -> int:
        """The number of clients N."""
        return self.train.num_clients

    def client_data(self, client: int, split: Literal["train", "test"] = "train") -> tuple[Any, Any]:
        """Return a client's inputs and targets, without copying them.

        Parameters
        ----------
        client
            Its index.
        split
            "train" or "test".
        """
        both = choose("split", split, {"train": self.train, "test": self.test})
        if not 0 <= positive_int("client", client, 0) < self.num_clients:
            raise fail("client", client, f"must be one of 0 … {self.num_clients - 1}")
        return both.client(client)

    def fingerprint(self) -> str:
        """SHA-256 of the data and who has them: another task under the same name has another one."""
        found = hashlib.sha256(self.train.fingerprint() + self.test.fingerprint() + self.groups.tobytes())
        return found.hexdigest()

    def learning(self) -> dict[str, str]:
        """Say how it is learned, as far as that can be written down: to notice another model, loss or rate."""
        made = self.build(0)
        state = hashlib.sha256(repr(made).encode())
        for name, values in made.state_dict().items():
            flat = values.detach().cpu().reshape(-1).contiguous()
            state.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
        found: dict[str, Any] = {"model": state.hexdigest(), "num_classes": self.num_classes}
        found |= {"loss": _called(self.loss), "optimizer": _called(self.optimizer)}
        found |= {"metrics": {name: _called(metric) for name, metric in sorted(self.metrics.items())}}
        found |= {name: getattr(self, name) for name in ("default_lr", "batch_size", "local_steps")}
        return {name: str(value) for name, value in found.items()}

    def build(self, seed: int = 0) -> nn.Module:
        """Make the untrained model; the same seed gives the same parameters, and torch's own state is left alone."""
        return build_model(self.model, seed)

    @classmethod
    def from_datasets(
        cls,
        model: Callable[[], nn.Module],
        loss: Loss,
        train: Sequence[Any],
        test: Sequence[Any],
        *,
        name: str = "own",
        num_classes: int | None = None,
        groups: ArrayLike | None = None,
        inputs: str | Sequence[str] | None = None,
        target: str | None = None,
        **options: Any,
    ) -> Task:
        """Make a task from your own data, client by client.

        Parameters
        ----------
        model
            A function that makes the untrained model.
        loss
            Of (outputs, targets), the mean over the batch.
        train, test
            One entry per client: a map-style `torch.utils.data.Dataset` of (x, y) items or of dicts, a pair
            (x, y) of tensors or arrays, or a dict of columns. Items are stacked once. Test entries may be empty.
        name
            What it is called in stores and figures.
        num_classes
            Default: what the model puts out, where targets are integers, one per sample, and outputs are scores; no
            classes where the loss takes targets beyond these, as with counts.
        groups
            As in `Task`; default: in a run the rare clients are group 1.
        inputs, target
            Of samples that are dicts: the names of the inputs (default: all others) and of the target (default: the one
            that is called "y", "label", "labels", "target" or "targets"). A model with several inputs gets them as
            keywords.
        **options
            default_lr, lr_grid, batch_size, local_steps, metrics, optimizer, … of `Task`.
        """
        for split, clients in (("train", train), ("test", test)):
            one = isinstance(clients, (Dataset, Mapping)) or hasattr(clients, "with_format")
            if one or not hasattr(clients, "__len__"):
                raise fail(split, type(clients).__name__, "must be a list with one entry per client, such as [a, b]")
        if len(train) == 0 or len(train) != len(test):
            raise fail("train, test", (len(train), len(test)), "must have one entry per client, as many in both")
        fields = Fields(inputs, target)
        own, held_out = (
            gather([_read(samples, fields, f"{split}[{i}]") for i, samples in enumerate(clients)], split)
            for split, clients in (("train", train), ("test", test))
        )
        return cls._of(model, loss, own, held_out, options, name=name, num_classes=num_classes, groups=groups)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        clients: ArrayLike,
        *,
        model: Callable[[], nn.Module] | None = None,
        loss: Loss | None = None,
        test: tuple[Any, Any, ArrayLike] | None = None,
        test_share: float = 0.2,
        seed: int = 0,
        name: str = "own",
        num_classes: int | None = None,
        groups: ArrayLike | None = None,
        **options: Any,
    ) -> Task:
        """Make a task from one table whose rows say which client they belong to.

        Parameters
        ----------
        x, y
            Inputs and targets of all samples: arrays, tensors, data frames, or dicts of them.
        clients
            Whose each row is: integers or names, shape (n,). Clients are put into the order of these.
        model, loss
            As for `from_datasets`; default: a linear model, with cross-entropy for integer targets and the squared
            error for others.
        test
            (x, y, clients) of the test samples; default: `test_share` of each client's samples, drawn by `seed`.
        test_share
            As above; every client keeps at least one sample to train on.
        seed
            Of that draw.
        name, num_classes, groups, **options
            As for `from_datasets`.

        Examples
        --------
        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
        >>> task = Task.from_arrays(x, y, clients=["ann", "bob", "eve"] * 20)
        >>> task.client_names, task.train.sizes, task.test.sizes
        (('ann', 'bob', 'eve'), array([16, 16, 16]), array([4, 4, 4]))
        """
        train, held_out, names = arrays.split(x, y, clients, test, test_share, seed)
        if model is None:
            train, held_out = arrays.as_numbers(train), arrays.as_numbers(held_out)
            model = arrays.linear_model(train, held_out)
        if loss is None:
            loss = arrays.usual_loss(train)
        options = {"client_names": names, **options}
        return cls._of(model, loss, train, held_out, options, name=name, num_classes=num_classes, groups=groups)

    @classmethod
    def _of(
        cls,
        model: Callable[[], nn.Module],
        loss: Loss,
        train: ClientData,
        test: ClientData,
        options: dict[str, Any],
        *,
        name: str,
        num_classes: int | None,
        groups: ArrayLike | None,
    ) -> Task:
        """Make a task; whether it is classification is seen from what the model puts out."""
        known = cls.__dataclass_fields__.keys() - {"train", "test", "model", "loss", "groups_given"}
        for option in options:
            if option not in known:
                raise unknown("option of a task", option, known)
        targets, module = single(train.y), build_model(model, 0)
        outputs = try_out(module, loss, first_rows(train.x), first_rows(train.y))
        classes = targets is not None and targets.dtype == torch.int64 and targets.ndim == 1
        scores = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
        if num_classes is None and classes and scores and are_classes(loss, outputs, [train.y, test.y]):
            num_classes = outputs.shape[1]
        own = {"groups_given": groups is not None, **options}
        task = cls(name, train, test, model, loss, num_classes, group_array(groups, train.num_clients), **own)
        if num_classes is not None and scores and outputs.shape[1] < num_classes:
            raise fail("num_classes", num_classes, f"the model puts out {outputs.shape[1]} scores")
        # Two, though there be one: what a model makes of a single sample may have a dimension less.
        x, y = (each(part, lambda t: t[[0, -1]]) for part in (test.x, test.y))
        try_out(module, loss, x, y, " of test samples")
        return task


def _read(samples: Any, fields: Fields, where: str) -> tuple[Values, Values]:
    x, y = read_samples(samples, fields, where)
    check_finite(x, f"{where}: x")
    check_finite(y, f"{where}: y")
    return x, y


def _called(value: Any) -> str:
    """The name of a function, or an object in its own words, without its place in memory."""
    if isinstance(value, str):
        return value.lower()
    return str(getattr(value, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


def build_model(model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call a function that makes a model with torch seeded, and leave torch's own state alone."""
    if isinstance(model, nn.Module) or not callable(model):
        allowed = "must be a function that makes the untrained model, such as lambda: nn.Linear(3, 2)"
        raise fail("model", type(model).__name__, allowed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**63)))
        # A function may return the same model every time, such as a pretrained one: nothing is written into that.
        made = model()
        try:
            return copy.deepcopy(made)
        except RuntimeError:  # torch copies no module with computed weights, such as those of the older weight_norm
            return made


def _check_classes(split: ClientData, num_classes: int) -> None:
    y = single(split.y)
    if y is None or y.shape != (split.num_samples,) or y.dtype != torch.int64:
        shown = "several tensors" if y is None else f"{y.dtype} of shape {tuple(y.shape)}"
        raise fail("y", shown, f"classes must be int64 of shape ({split.num_samples},)")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        allowed = f"classes must lie in 0 … {num_classes - 1}"
        raise fail("y", f"classes {int(y.min())} … {int(y.max())}", allowed)
