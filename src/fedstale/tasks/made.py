"""Clients' samples that are made where they are needed: a function of the client, called by whoever trains it.

Nothing is sent and nothing is kept but the clients that were used last: on a cluster every worker makes those that it
trains. The function may read a file of its own for each client, ask a data base, or draw random numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import fail, positive_int
from ..federation import Ints
from .client_data import ClientData, Values, each, tensors
from .samples import Fields, read_samples

_KEPT = 64
"""Clients whose samples a process keeps."""


@dataclass(frozen=True, eq=False)
class MadeData(ClientData):
    """One split of every client, made by a function; use `make_clients`.

    `x` and `y` say what samples look like, not what they are: every row of them is the first client's first sample.

    Parameters
    ----------
    function
        Makes the samples of a client.
    fields
        Which column is what, where samples have names.
    """

    function: Callable[[int], Any]
    fields: Fields

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_kept", lru_cache(_KEPT)(self._made))

    def __reduce__(self) -> Any:
        """Travel as the function."""
        return make_clients, (self.function, self.sizes, self.fields.inputs, self.fields.target)

    def client(self, index: int) -> tuple[Any, Any]:
        """Return client i's inputs and targets, made now unless they were used lately."""
        found: tuple[Any, Any] = self._kept(int(index))  # type: ignore[attr-defined]
        return found

    def _made(self, index: int) -> tuple[Values, Values]:
        where = f"client {index}"
        made = read_samples(self.function(index), self.fields, where)
        for values, like in zip(made, (self.x, self.y), strict=True):
            found, wanted = ({name: (t.shape[1:], t.dtype) for name, t in tensors(v).items()} for v in (values, like))
            if found != wanted:
                raise fail(where, f"samples of {found}", f"must be of {wanted}, as the first client's")
        count = len(next(iter(tensors(made[0]).values())))
        if count != self.sizes[index]:
            raise fail(where, f"{count} samples", f"must have {self.sizes[index]}, as was said")
        return made

    def rows(self, rows: Ints) -> tuple[Values, Values]:
        """Return the inputs and targets of some samples, in their order."""
        owners = np.searchsorted(self.offsets, rows, side="right") - 1
        x, y = (each(values, lambda t: t.new_empty((len(rows), *t.shape[1:]))) for values in (self.x, self.y))
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            for to, own in zip((x, y), self.client(owner), strict=True):
                for name, tensor in tensors(to).items():
                    tensor[places] = tensors(own)[name][rows[places] - self.offsets[owner]]
        return x, y

    def fingerprint(self) -> bytes:
        """SHA-256 of who has how much, and of the first and the last client's samples: all would have to be made."""
        found = hashlib.sha256(self.offsets.tobytes())
        for client in (0, self.num_clients - 1):
            own = self.client(client)
            found.update(ClientData(*own, np.array([0, self.sizes[client]])).fingerprint())
        return found.digest()


def make_clients(
    function: Callable[[int], Any],
    sizes: ArrayLike,
    inputs: str | list[str] | None = None,
    target: str | None = None,
) -> MadeData:
    """Describe clients whose samples a function makes, each where it is trained.

    Parameters
    ----------
    function
        Of the client's index; returns its samples as for `Task.from_datasets`, always the same ones. It is sent to
        the workers of a cluster, and may be called by several threads.
    sizes
        How many samples each client has, shape (N,).
    inputs, target
        As for `Task.from_datasets`.

    Examples
    --------
    >>> import numpy as np
    >>> made = make_clients(lambda i: (np.full((i + 1, 3), i), np.zeros(i + 1, dtype=int)), [1, 2, 3])
    >>> made.num_samples, made.client(2)[0].shape
    (6, torch.Size([3, 3]))
    """
    fields = Fields(inputs, target)
    counts = np.asarray(sizes, dtype=np.int64)
    for i, count in enumerate(counts.tolist()):
        positive_int(f"sizes[{i}]", count, 0)
    if not len(counts) or not counts[0]:
        raise fail("sizes", sizes, "the first client must have samples: they say what samples look like")
    first = read_samples(function(0), fields, "client 0")
    offsets = np.concatenate([[0], np.cumsum(counts)])
    x, y = (each(values, lambda t: t[:1].expand(int(offsets[-1]), *t.shape[1:])) for values in first)
    return MadeData(x, y, offsets, function, fields)
