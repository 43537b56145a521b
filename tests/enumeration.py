"""Exact expectation over participation: the sum over all 2^N sets, each with its probability."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import fedstale as fs

Array = NDArray[np.float64]


def participation_sets(p: Array) -> Iterator[tuple[float, NDArray[np.int64]]]:
    """Every set of participants with its probability under independent Bernoulli(p_i)."""
    for bits in itertools.product([False, True], repeat=len(p)):
        came = np.array(bits)
        yield float(np.prod(np.where(came, p, 1 - p))), np.flatnonzero(came)


def outcomes(rule: fs.Rule, prepare: Callable[[], fs.State], updates: Array, p: Array) -> Iterator[tuple[float, Array]]:
    """P(set) and the global update for every participation set that can occur, each from a freshly prepared state."""
    for chance, clients in participation_sets(p):
        if not chance:
            continue
        state = prepare()
        delta = rule.combine(state, fs.Round(state.round, clients, updates[clients], probabilities=p[clients]))
        state.close()
        yield chance, np.asarray(delta, dtype=np.float64)


def expectation(rule: fs.Rule, prepare: Callable[[], fs.State], updates: Array, p: Array) -> Array:
    """E[Δ] exactly."""
    return np.asarray(sum(chance * delta for chance, delta in outcomes(rule, prepare, updates, p)))
