"""One stale update per cluster of clients: K rows instead of N (memory="clustered:K").

ClusterFedVARP: Jhunjhunwala, Sharma, Nagarkatti & Joshi, FedVARP: tackling the variance due to partial client
participation in federated learning, UAI 2022 (Section 5). A client's h_i is its cluster's y_c; after a round,
y_c ← mean of Δ_i over the participants of cluster c. A client never seen has h_i = 0 here, as in every other memory
(in ClusterFedVARP it has y_c from the start): its weight a_i is known only once it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Float, fail
from ..federation import Ints
from .compact import Compact, block
from .precision import Precision


class Clustered(Compact):
    """K·d numbers: h_i = y_c(i).

    Parameters
    ----------
    num_clients, num_params, precision
        N, d, and how the y_c are stored.
    size
        K, the number of clusters. Until `assign` says otherwise they are blocks of neighbouring indices.
    """

    kind: ClassVar[str] = "clustered"

    def __init__(self, num_clients: int, num_params: int, precision: Precision, size: int) -> None:
        super().__init__(num_clients, num_params, precision, size)
        self.clusters: Ints = np.arange(num_clients, dtype=np.int64) * self.size // num_clients
        self.values: NDArray[Any] = np.zeros((self.size, num_params), dtype=precision.dtype)

    def assign(self, clusters: ArrayLike) -> None:
        """Say which cluster (0 … K − 1) each client belongs to, shape (N,); only before the first round."""
        given = np.asarray(clusters)
        if given.shape != (self.num_clients,) or given.dtype.kind not in "iu":
            raise fail("clusters", clusters, f"must be {self.num_clients} integers, one per client")
        if given.min() < 0 or given.max() >= self.size:
            raise fail("clusters", clusters, f"clusters are numbered 0 … {self.size - 1}")
        if len(self.seen):
            raise fail("clusters", clusters, "clients cannot change their cluster after the first round")
        self.clusters = given.astype(np.int64)

    @property
    def nbytes(self) -> int:
        """K·d numbers."""
        return self.values.nbytes

    def stale(self, clients: Ints, columns: slice) -> Float:
        """y_c of each client's cluster; zeros for a client never seen."""
        slots = self.slots[clients]
        known = slots >= 0
        result = np.zeros((len(clients), columns.stop - columns.start))
        part = self.values[slots[known], columns]  # these columns only: whole rows would be copied for every block
        wide = np.empty(part.shape)
        self.precision.load(wide, part)
        result[known] = wide
        return result

    def take(self, clients: Ints, fresh: Sequence[NDArray[Any]], masses: Float) -> None:
        """y_c ← mean of the round's updates of cluster c."""
        touched, cluster = np.unique(self.clusters[clients], return_inverse=True)
        share = np.zeros((len(touched), len(clients)))
        share[cluster, np.arange(len(clients))] = 1.0
        share /= share.sum(axis=1, keepdims=True)
        means = np.empty((len(touched), self.num_params), dtype=self.precision.dtype)
        for columns in self._columns():
            self.precision.store(share @ block(fresh, columns), means[:, columns])
        self.values[touched] = means
        self.slots[clients] = self.clusters[clients]
        self.masses[clients] = masses
        self._add_up()

    def _add_up(self) -> None:
        seen = self.seen
        weights: Float = np.bincount(self.slots[seen], self.masses[seen], minlength=self.size).astype(np.float64)
        self.total = self._sum(weights, self.values)

    def grow(self, num_clients: int) -> None:
        """Give clients that joined the clusters in turn."""
        first = self.num_clients
        self._grow_table(num_clients)
        self.clusters = np.concatenate([self.clusters, np.arange(first, num_clients) % self.size])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Clusters, values, who was seen, and masses."""
        return {"clusters": self.clusters, "values": self.values, "slots": self.slots, "masses": self.masses}

    def restore(self, table: dict[str, NDArray[Any]]) -> None:
        """Take up a saved table."""
        self.clusters, self.values = table["clusters"], table["values"]
        self.slots, self.masses = table["slots"], table["masses"]
        self._add_up()
