"""The two things that a rule is given: who the clients are (`Federation`) and what happened now (`Round`).

Notation of the paper, Section 2: N clients, weights α_i that sum to 1, probabilities p_i, updates Δ_i ∈ R^d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import Float, client_count, client_ids, fail, number, positive_int, probabilities, vector
from .difference import Difference

Ints = NDArray[np.int64]
_PIECE = 1 << 16


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients of a federation and what is known of them.

    Parameters
    ----------
    num_clients
        N. It may be a million: nothing of size N·d is allocated, rows appear when a client is first seen.
    num_params
        d, the length of an update.
    weights
        The α_i of the global objective F = Σ α_i F_i: "client" (1/N, the default), "sample" (n_i/n, needs
        `sizes`) or N non-negative numbers that sum to 1.
    sizes
        Samples per client n_i, shape (N,).
    probabilities
        The p_i where they are known, shape (N,) or one number for all. A `Round` may bring its own.
    """

    num_clients: int
    num_params: int
    weights: Literal["client", "sample"] | ArrayLike = "client"
    sizes: ArrayLike | None = None
    probabilities: ArrayLike | None = None

    def __post_init__(self) -> None:
        n = client_count("num_clients", self.num_clients)
        positive_int("num_params", self.num_params)
        if self.sizes is not None:
            sizes = vector("sizes", self.sizes, n)
            if (sizes < 0).any() or sizes.sum() <= 0:
                raise fail("sizes", self.sizes, "sample counts must be non-negative and not all zero")
            object.__setattr__(self, "sizes", sizes)
        if isinstance(self.weights, str):
            if self.weights not in ("client", "sample"):
                raise fail("weights", self.weights, 'must be "client", "sample" or N numbers that sum to 1')
            if self.weights == "sample" and self.sizes is None:
                raise fail("sizes", None, 'weights="sample" needs the number of samples of every client')
        else:
            weights = vector("weights", self.weights, n)
            if (weights < 0).any() or abs(weights.sum() - 1.0) > 1e-6:
                raise fail("weights", float(weights.sum()), "weights must be non-negative and sum to 1")
            object.__setattr__(self, "weights", weights)
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", probabilities("probabilities", self.probabilities, n))

    def masses(self, clients: Ints) -> Float:
        """Return the weights before normalisation: 1, n_i, or the given α_i.

        Memory keeps Σ a_i h_i with these masses a_i, so that a client who joins changes one number (the total
        mass) instead of every α_i.
        """
        if isinstance(self.weights, np.ndarray):
            return np.asarray(self.weights[clients], dtype=np.float64)
        if self.weights == "sample":
            return np.asarray(np.asarray(self.sizes)[clients], dtype=np.float64)
        return np.ones(len(clients))

    @cached_property
    def total_mass(self) -> float:
        """Σ a_i, so that α_i = a_i / Σ a_j."""
        if isinstance(self.weights, np.ndarray):
            return float(self.weights.sum())
        return float(np.sum(self.sizes)) if self.weights == "sample" else float(self.num_clients)  # type: ignore[arg-type]

    def alpha(self, clients: ArrayLike | None = None) -> Float:
        """α_i of the given clients (default: of all)."""
        ids = np.arange(self.num_clients) if clients is None else np.asarray(clients, dtype=np.int64)
        return self.masses(ids) / self.total_mass

    def grown(self, num_clients: int, sizes: ArrayLike | None = None) -> Federation:
        """Return the same federation with more clients (they may join at any time)."""
        if num_clients < self.num_clients:
            raise fail("num_clients", num_clients, f"a federation of {self.num_clients} clients does not shrink")
        if isinstance(self.weights, np.ndarray) or self.probabilities is not None:
            raise fail(
                "num_clients",
                num_clients,
                "clients cannot join when weights or probabilities are given one by one",
            )
        return replace(self, num_clients=num_clients, sizes=self.sizes if sizes is None else sizes)

    def without(self, clients: ArrayLike) -> Federation:
        """Return the same federation in which these clients have no weight; N goes on counting their indices.

        With weights "client" the others have n_i = 1 from then on, which is the same objective.
        """
        if isinstance(self.weights, np.ndarray):
            raise fail("weights", "given one by one", "clients cannot leave when weights are given one by one")
        sizes = np.ones(self.num_clients) if self.weights == "client" else np.array(self.sizes, dtype=np.float64)
        sizes[np.asarray(clients, dtype=np.int64)] = 0.0
        return replace(self, weights="sample", sizes=sizes)


@dataclass(frozen=True, eq=False)
class Round:
    """What reached the server in one round.

    Parameters
    ----------
    index
        The round number t, from 0.
    clients
        The participants S, shape (|S|,): distinct indices in any order; empty when nobody came.
    updates
        Their updates Δ_i = w_t − w_i in the same order: an array of shape (|S|, d) or a sequence of |S| arrays
        of length d, NumPy or torch.
    probabilities
        Their p_i in the same order (or one number); default: those of the federation.
    steps
        Their numbers of local steps, for the methods that normalise by it (AFA); default: not given.
    lr
        η_c of the round, for the methods that turn updates into gradients (SCAFFOLD); default: not given.
    second_pass
        Updates of the second pass that a rule asked for (`Rule.second_pass`), in the form of `updates`.
    ages
        How many server steps there were since the participants fetched the model they trained from, shape (|S|,);
        default: none, as in a synchronous round.
    """

    index: int
    clients: ArrayLike
    updates: Any
    probabilities: ArrayLike | None = None
    steps: ArrayLike | None = None
    lr: float | None = None
    second_pass: Any = None
    ages: ArrayLike | None = None

    def __post_init__(self) -> None:
        positive_int("index", self.index, 0)


@dataclass(frozen=True, eq=False)
class CheckedRound:
    """A round whose every field was checked against the federation: what the rules compute with.

    `updates` is one NumPy row per participant, or a `Difference` that can be read like one where the rule `reads_once`.
    What the caller may leave out is `given_…`; a rule asks for it without that word and so refuses a round that does
    not have it.
    """

    index: int
    clients: Ints
    updates: Sequence[NDArray[Any]]
    alpha: Float
    given_probabilities: Float | None = None
    steps: Float | None = None
    given_lr: float | None = None
    given_second_pass: Sequence[NDArray[Any]] | None = None
    given_ages: Float | None = None

    @property
    def size(self) -> int:
        """|S|."""
        return len(self.clients)

    @property
    def probabilities(self) -> Float:
        """p_i of the participants; an error where they were not given, because 1/p_i would be a guess."""
        if self.given_probabilities is None and self.size:
            allowed = "this rule divides by p_i: give them in the Round or in the Federation, or estimate them"
            raise fail("probabilities", None, allowed)
        return np.empty(0) if self.given_probabilities is None else self.given_probabilities

    @property
    def ages(self) -> Float:
        """Server steps since the participants fetched their model, shape (|S|,): 0 in a synchronous round."""
        return np.zeros(self.size) if self.given_ages is None else self.given_ages

    @property
    def lr(self) -> float:
        """η_c > 0; an error where it was not given."""
        if not self.given_lr:
            raise fail("lr", self.given_lr, "this rule divides by the clients' learning rate: give it in the Round")
        return self.given_lr

    @property
    def travelled(self) -> Float:
        """η_c K_i of the participants, which turns an update into a mean gradient; an error where it was not given."""
        if self.steps is None:
            raise fail("steps", None, "this rule divides by the number of local steps: give it in the Round")
        return self.lr * self.steps

    @property
    def second_pass(self) -> Sequence[NDArray[Any]]:
        """Updates of the second pass; an error where they were not given."""
        if self.given_second_pass is None:
            allowed = "this rule needs the updates of the second pass that it asked for (Rule.second_pass)"
            raise fail("second_pass", None, allowed)
        return self.given_second_pass


def check_round(federation: Federation, round: Round) -> CheckedRound:
    """Check a round as a whole before anything is computed; raise `InvalidInput` and change nothing."""
    ids = client_ids("clients", round.clients, federation.num_clients)
    rows = as_rows(round.updates, len(ids), federation.num_params)
    given = round.probabilities
    if given is None and federation.probabilities is not None:
        given = np.asarray(federation.probabilities)[ids]
    p = None if given is None else probabilities("probabilities", given, len(ids))
    steps = None if round.steps is None else vector("steps", round.steps, len(ids))
    if steps is not None and (steps <= 0).any():
        raise fail("steps", round.steps, "numbers of local steps must be positive")
    lr = None if round.lr is None else number("lr", round.lr, 0.0)
    second = None if round.second_pass is None else as_rows(round.second_pass, len(ids), federation.num_params)
    ages = None if round.ages is None else vector("ages", round.ages, len(ids))
    if ages is not None and (ages < 0).any():
        raise fail("ages", round.ages, "must not be negative")
    return CheckedRound(round.index, ids, rows, federation.alpha(ids), p, steps, lr, second, ages)


def as_rows(updates: Any, count: int, length: int) -> list[NDArray[Any]]:
    """View updates as `count` NumPy rows of the given length, without copying what can be viewed."""
    shape = tuple(getattr(updates, "shape", ()))
    if shape and shape != (count, length) and not (count == 0 and 0 in shape):
        raise fail(
            "updates",
            f"array of shape {shape}",
            f"must have shape ({count}, {length}): one row per participant",
        )
    if not count:
        rows = []
    elif isinstance(updates, np.ndarray):
        rows = list(np.asarray(updates))
    else:
        rows = [_as_array(row) for row in updates]
    if not shape and len(updates) != count:
        raise fail("updates", f"{len(updates)} rows", f"must have one row for each of the {count} participants")
    for i, row in enumerate(rows):
        if row.shape != (length,):
            raise fail(f"updates[{i}]", f"array of shape {row.shape}", f"must have shape ({length},)")
        if row.dtype.kind != "f":
            raise fail(f"updates[{i}]", f"array of {row.dtype}", "must hold floating-point numbers")
    return rows


def all_finite(vector: NDArray[Any]) -> bool:
    """Whether a vector holds no NaN and no infinity, looked at piece by piece: nothing of its length is made."""
    return all(np.isfinite(vector[low : low + _PIECE]).all() for low in range(0, len(vector), _PIECE))


def cast_like(array: Float, example: Any) -> Any:
    """Give a computed vector the kind (NumPy or torch) and dtype of the updates it came from.

    Where its numbers do not fit that dtype, it stays as it is: float16 updates weighted by 1/p easily do not.
    """
    if isinstance(example, (np.ndarray, Difference)) and example.dtype.kind == "f":
        with np.errstate(over="ignore"):
            cast = array.astype(example.dtype, copy=False)
        return cast if cast is array or all_finite(cast) else array
    if _is_torch(example):
        import torch  # it is loaded already: the example is one of its tensors

        wide = torch.from_numpy(array).to(device=example.device)
        narrow = wide.to(dtype=example.dtype)
        return narrow if bool(torch.isfinite(narrow).all()) else wide
    if isinstance(example, (list, tuple)) and len(example):
        return cast_like(array, example[0])
    return array


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _as_array(row: Any) -> NDArray[Any]:
    if _is_torch(row):
        row = row.detach().cpu()
        row = row.float() if str(row.dtype) == "torch.bfloat16" else row
        return np.asarray(row.numpy())
    return row if isinstance(row, Difference) else np.asarray(row)  # type: ignore[return-value]
