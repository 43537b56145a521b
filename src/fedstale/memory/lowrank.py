"""Stale updates as combinations of k basis updates: O(k·d + N·k) numbers instead of O(N·d) (memory="lowrank:K").

The N×d matrix of the h_i is kept as C·B: k orthonormal basis updates B and N×k coefficients C. After a round the rows
of the participants are replaced by their updates and the matrix is cut to rank k again, by an incremental singular
value decomposition (Brand, Fast low-rank modifications of the thin singular value decomposition, Linear Algebra and
its Applications, 2006). All of it goes through the Gram matrix of the k old basis updates and the |S| new updates, so
a round costs O((k + |S|)²·d + N·k²). It is unbiased because both terms of Eq. 8 use the same stored C_i·B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float
from ..federation import Ints
from .compact import Compact, block
from .precision import Precision

_NEGLIGIBLE = 1e-13
"""Relative to the largest eigenvalue of a Gram matrix: what is smaller is rounding."""


class LowRank(Compact):
    """h_i = C_i·B with B of shape (k, d).

    Parameters
    ----------
    num_clients, num_params, precision
        N, d, and how the basis is stored (the coefficients are float64).
    size
        k, the rank.
    """

    kind: ClassVar[str] = "lowrank"

    def __init__(self, num_clients: int, num_params: int, precision: Precision, size: int) -> None:
        super().__init__(num_clients, num_params, precision, size)
        self.basis: NDArray[Any] = np.zeros((size, num_params), dtype=precision.dtype)
        self.coefficients: Float = np.zeros((0, size))

    @property
    def nbytes(self) -> int:
        """k·d numbers of the basis and k coefficients for each client seen."""
        return self.basis.nbytes + self.coefficients.nbytes

    def stale(self, clients: Ints, columns: slice) -> Float:
        """C_i·B; zeros for a client never seen."""
        return self._coefficients_of(clients) @ self._load(self.basis, columns)

    def _coefficients_of(self, clients: Ints) -> Float:
        slots = self.slots[clients]
        known = slots >= 0
        result = np.zeros((len(clients), self.size))
        result[known] = self.coefficients[slots[known]]
        return result

    def take(self, clients: Ints, fresh: Sequence[NDArray[Any]], masses: Float) -> None:
        """Replace the rows of the participants and cut the matrix to rank k again."""
        if not len(clients):
            return
        k, count = self.size, len(clients)
        # Frame E = [B; Δ_S / scale]: every row of the new matrix is a combination X of its k + |S| rows.
        scale = max(float(np.max([np.abs(row).max() for row in fresh])), np.finfo(np.float64).tiny)
        gram = np.zeros((k + count, k + count))
        for columns in self._columns():
            frame = np.concatenate([self._load(self.basis, columns), block(fresh, columns) / scale])
            gram += frame @ frame.T
        root, inverse = _square_root(gram)
        absent = np.setdiff1d(self.seen, clients)
        old = self.coefficients[self.slots[absent]]
        # In orthonormal coordinates the new matrix has the rows Y; its k leading directions are the new basis.
        rows = np.concatenate([old @ root[:k], scale * root[k:]])
        size = max(float(np.abs(rows).max(initial=0.0)), np.finfo(np.float64).tiny)
        unit = rows / size
        _, directions = np.linalg.eigh(unit.T @ unit)
        leading = directions[:, ::-1][:, :k]
        basis = np.zeros_like(self.basis)
        mixing = leading.T @ inverse
        for columns in self._columns():
            frame = np.concatenate([self._load(self.basis, columns), block(fresh, columns) / scale])
            self.precision.store(mixing @ frame, basis[: len(mixing), columns])
        new = rows @ leading
        self._put(clients, masses, absent, basis, new)

    def _put(self, clients: Ints, masses: Float, absent: Ints, basis: NDArray[Any], new: Float) -> None:
        unseen = clients[self.slots[clients] < 0]
        end = len(self.coefficients)
        self.slots[unseen] = np.arange(end, end + len(unseen))
        self.coefficients = np.zeros((end + len(unseen), self.size))
        self.coefficients[self.slots[np.concatenate([absent, clients])], : new.shape[1]] = new
        self.basis = basis
        self.masses[clients] = masses
        self._add_up()

    def _add_up(self) -> None:
        seen = self.seen
        self.total = self._sum(self.masses[seen] @ self.coefficients[self.slots[seen]], self.basis)

    def grow(self, num_clients: int) -> None:
        """Make room for clients that joined."""
        self._grow_table(num_clients)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Basis, coefficients, who owns which, and masses."""
        return {
            "basis": self.basis,
            "coefficients": self.coefficients,
            "slots": self.slots,
            "masses": self.masses,
        }

    def restore(self, table: dict[str, NDArray[Any]]) -> None:
        """Take up a saved table."""
        self.basis, self.coefficients = table["basis"], table["coefficients"]
        self.slots, self.masses = table["slots"], table["masses"]
        self._add_up()


def _square_root(gram: Float) -> tuple[Float, Float]:
    """Return T and R with E = T·Q and Q = R·E for a frame E with this Gram matrix and orthonormal rows Q."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _NEGLIGIBLE * max(float(values[-1]), 0.0)
    lengths = np.sqrt(values[kept])
    return vectors[:, kept] * lengths, (vectors[:, kept] / lengths).T
