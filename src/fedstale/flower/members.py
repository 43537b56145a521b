"""The clients that a server knows: their names, their places in its state, and when each was heard of last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ..federation import Ints

_NODE = "node:"
"""Before the name of a client that is known by a node id only."""


class Members:
    """Who is in the federation; a client's position among the names is its index in the state.

    Parameters
    ----------
    identities
        The clients known so far; "" for a client that was forgotten.
    """

    def __init__(self, identities: Sequence[str] = ()) -> None:
        self.identities = list(identities)
        self.last_heard = np.zeros(len(self.identities), dtype=np.int64)
        """The last round in which a client contributed, or was connected as far as that is known, shape (n,)."""
        self._index = {name: i for i, name in enumerate(self.identities) if name}

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, identity: str) -> bool:
        return identity in self._index

    def __getitem__(self, identity: str) -> int:
        return self._index[identity]

    @property
    def known(self) -> Ints:
        """The indices of the clients that are in the objective."""
        return np.array(sorted(self._index.values()), dtype=np.int64)

    def index(self, identity: str | None) -> int | None:
        """Return a client's index in the state, if it has one."""
        return None if identity is None else self._index.get(identity)

    def add(self, identities: Iterable[str], round: int) -> list[int]:
        """Give the next indices to who is new; return those."""
        before = len(self.identities)
        for name in identities:
            if name not in self._index:
                self._index[name] = len(self.identities)
                self.identities.append(name)
        new = [*range(before, len(self.identities))]
        self.last_heard = np.concatenate([self.last_heard, np.full(len(new), round)])
        return new

    def remove(self, identities: Iterable[str]) -> list[int]:
        """Let clients leave; return the indices they had, which nobody gets again."""
        clients = [self._index.pop(name) for name in identities]
        for client in clients:
            self.identities[client] = ""
        return clients

    def overdue(self, index: int, forget_after: int | None, forget_nodes_after: int | None) -> list[str]:
        """Return who was not heard of for so many rounds; clients known by a node id only have a limit of their own."""
        gone = []
        for client in self.known:
            name = self.identities[client]
            limit = forget_nodes_after if name.startswith(_NODE) else forget_after
            if limit is not None and index - self.last_heard[client] >= limit:
                gone.append(name)
        return gone

    def succeed(self, names: Iterable[str], most: int, there: Collection[int]) -> dict[str, str]:
        """Let new node ids take the places of others, where more were known than the `most` that were there at once.

        Of clients known by a node id only, those who are not `there` and silent for longest are succeeded. Return who
        by whom.
        """
        nodes = [i for name, i in self._index.items() if name.startswith(_NODE)]
        silent = sorted(set(nodes) - set(there), key=lambda i: (self.last_heard[i], i))
        new = [name for name in names if name.startswith(_NODE) and name not in self._index]
        count = min(len(silent), max(0, len(nodes) + len(new) - most))
        found = {}
        for client, name in zip(silent[:count], new, strict=False):
            found[self.identities[client]] = name
            self._rename(client, name)
        return found

    def recognise(self, node: int, identity: str) -> str | None:
        """Give a client known by its node id the identity that it reports now, if that is nobody's; return the old."""
        client = self._index.get(f"{_NODE}{node}")
        if client is None or identity in self._index:
            return None
        old = self.identities[client]
        self._rename(client, identity)
        return old

    def _rename(self, client: int, name: str) -> None:
        del self._index[self.identities[client]]
        self.identities[client], self._index[name] = name, client
