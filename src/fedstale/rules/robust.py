"""Robust combination of what is new in a round: coordinate-wise median, trimmed mean, or a filter by length.

With r_i = Δ_i − h_i, the part of an update that the memory does not hold already (h_i = 0 for a rule without memory),
the rule is given Δ_i' = h_i + r_i' instead of Δ_i, and so combines and remembers that:

    trimmed     in each coordinate, the share `trim` of the r_i at either end is replaced by the mean of the others
    median      the same, with all but the middle replaced: every r_i' is the coordinate-wise median
    norms       r_i' = 0 where ‖r_i‖ is more than `ratio` times the median of the participants' ‖r_j‖, else r_i

With equal weights the sum over the participants is then their number times the trimmed mean, or the median, of the r_i
(Yin, Chen, Ramchandran & Bartlett, ICML 2018). Nothing is changed where fewer than three came: two have no middle.

This costs a bias. Given the memory, E[Δ] − Σ α_i Δ_i = E[Σ_S (α_i/p_i)(r_i' − r_i)] for FedStale with any β: it is what
was cut off from honest clients, large where their updates differ from each other in a way that the memory does not
predict, and zero where it does. A client unlike all others is what a median removes: where rare clients are the ones
that differ, median and trimming work against the purpose of FedStale, and the filter by length is the one to take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail, number, unknown
from ..federation import CheckedRound, Ints
from ..memory.held import NAME as CLIENTS
from ..memory.held import Announcement
from ..state import State
from .base import Rule
from .guard import BY_DIFFERENCES
from .wrapped import WrappedRule

Method = Literal["median", "trimmed", "norms"]
_METHODS = ("median", "trimmed", "norms")
_ENOUGH = 3
"""Participants from which on there is a middle."""
_COLUMNS = 65_536
"""Coordinates that are sorted at once: a round needs |S| times so many numbers of room."""


@dataclass(frozen=True, kw_only=True)
class Robust(WrappedRule):
    """A rule whose fresh residuals are combined robustly: `Robust(FedStale(), method="trimmed")`.

    Parameters
    ----------
    rule
        The rule, with or without bounds or a server optimiser.
    method
        "median", "trimmed" (default) or "norms".
    trim
        Of "trimmed": the share that is cut at either end of each coordinate, in [0, 0.5); if > 0, at least one.
    ratio
        Of "norms": how many times the median length a residual may have, at least 1.
    """

    method: Method = "trimmed"
    trim: float = 0.2
    ratio: float = 3.0

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule) or isinstance(self.rule, Robust):
            raise fail("rule", self.rule, "must be a rule that is not robust already, such as FedStale()")
        if self.method not in _METHODS:
            raise unknown("method", self.method, _METHODS)
        number("trim", self.trim, 0.0, 0.5)
        if self.trim == 0.5:
            raise fail("trim", self.trim, 'must be below 0.5: all but the middle is method="median"')
        number("ratio", self.ratio, 1.0)
        if isinstance(self.innermost, BY_DIFFERENCES):
            allowed = f"{self.rule.name} uses differences between the clients' updates, which this would destroy"
            raise fail("rule", self.rule.name, allowed)
        self.adopt()
        object.__setattr__(self, "reads_once", False)
        object.__setattr__(self, "name", self.rule.name)
        object.__setattr__(self, "server_lr", self.rule.server_lr)

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """Refuse: what is unusual is told by single updates."""
        raise fail("memory", CLIENTS, "robust combination compares single updates, which the clients do not send")

    def update(self, state: State, round: CheckedRound) -> Float:
        """Make the residuals robust, and let the rule combine."""
        if round.size < _ENOUGH:
            return self.rule.update(state, round)
        if self.method == "norms":
            updates, changed = self._filtered(state, round)
        else:
            updates, changed = self._trimmed(state, round)
        delta = self.rule.update(state, replace(round, updates=updates))
        state.report["robust_changed"] = changed
        return delta

    def _filtered(self, state: State, round: CheckedRound) -> tuple[list[NDArray[Any]], float]:
        """Give who sent much more that is new than usual what it sent before; return how many those were."""
        lengths = np.zeros(round.size)
        for columns in _blocks(state.federation.num_params):
            fresh, remembered = self._entries(state, round, columns)
            with np.errstate(over="ignore", invalid="ignore"):
                lengths += np.square(fresh - remembered).sum(axis=1)
        lengths = np.sqrt(lengths)
        out = lengths > self.ratio * np.median(lengths)  # not finite is not hidden: the rule refuses it
        out &= np.isfinite(lengths)
        rows = list(round.updates)
        for k in np.flatnonzero(out):
            rows[int(k)] = self._remembered(state, round.clients[[k]], slice(None))[0].astype(rows[int(k)].dtype)
        return rows, float(out.sum())

    def _trimmed(self, state: State, round: CheckedRound) -> tuple[list[NDArray[Any]], float]:
        """Replace what is at the ends of each coordinate; return which share of all numbers that was."""
        n, d = round.size, state.federation.num_params
        middle = (n - 1) // 2
        cut = middle if self.method == "median" else min(ceil(self.trim * n), middle)
        if cut == 0:
            return list(round.updates), 0.0
        rows = [np.empty(d, dtype=row.dtype) for row in round.updates]
        for columns in _blocks(d):
            fresh, remembered = self._entries(state, round, columns)
            residuals = fresh - remembered
            order = np.argsort(residuals, axis=0, kind="stable")
            kept = np.take_along_axis(residuals, order[cut : n - cut], axis=0)
            ends = np.concatenate([order[:cut], order[n - cut :]])
            np.put_along_axis(residuals, ends, kept.mean(axis=0, keepdims=True), axis=0)
            bad = ~np.isfinite(fresh)
            residuals[bad] = fresh[bad]  # not hidden: the rule refuses it
            for row, values in zip(rows, remembered + residuals, strict=True):
                row[columns] = values
        return rows, 2.0 * cut / n

    def _entries(self, state: State, round: CheckedRound, columns: slice) -> tuple[Float, Float]:
        """Some entries of the participants' Δ_i and h_i, each shape (|S|, columns)."""
        fresh = np.array([row[columns] for row in round.updates], dtype=np.float64)
        return fresh, self._remembered(state, round.clients, columns)

    def _remembered(self, state: State, clients: Ints, columns: slice) -> Float:
        """Some entries of the clients' h_i; zeros for a rule that does not remember updates."""
        which = np.arange(state.federation.num_params, dtype=np.int64)[columns]
        if not self.memory or self.per_step:
            return np.zeros((len(clients), len(which)))
        return state.memory.entries(clients, which)


def _blocks(num_params: int) -> list[slice]:
    return [slice(start, min(start + _COLUMNS, num_params)) for start in range(0, num_params, _COLUMNS)]


def robustly(rule: Rule, spec: str | None) -> Rule:
    """Put a robust combination around a rule: "median", "trimmed", "trimmed:0.1", "norms", "norms:5", or None."""
    if spec is None:
        return rule
    method, _, value = str(spec).partition(":")
    if method not in _METHODS:
        raise unknown("robust", spec, [*_METHODS, "trimmed:0.2", "norms:3"])
    if not value:
        return Robust(rule, method=method)  # type: ignore[arg-type]
    try:
        parameter = float(value)
    except ValueError:
        raise fail("robust", spec, 'must be "median", "trimmed:0.2" or "norms:3"') from None
    if method == "median":
        raise fail("robust", spec, "the median has no parameter")
    name = "trim" if method == "trimmed" else "ratio"
    return Robust(rule, method=method, **{name: parameter})  # type: ignore[arg-type]
