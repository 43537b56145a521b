"""Says once when a rule is used outside what its paper covers: with clients that come with different probabilities."""

from __future__ import annotations

import warnings

from ..checks import Float

_DIFFERENT = 1.01
"""Ratio of the largest to the smallest p_i of a round from which on they are different."""

said: set[str] = set()
"""The rules that were warned of in this process."""


class OutsideCoverage(UserWarning):
    """A method is used outside what its paper covers."""


def warn_if_uncovered(name: str, caveat: str, p: Float | None, *, of_all: bool = False) -> None:
    """Warn when a rule with a caveat meets clients whose p_i differ; once per rule and process.

    Parameters
    ----------
    name, caveat
        The rule, and what it is not made for.
    p
        Probabilities of clients.
    of_all
        Whether they are those of all clients, so that their range can be told; those of the participants of one round
        have another range than those of all.
    """
    p = None if p is None else p[p > 0.0]  # who never comes has a caveat of its own
    if name in said or p is None or len(p) < 2 or p.max() <= _DIFFERENT * p.min():
        return
    said.add(name)
    range_ = f" ({p.min():.3g} to {p.max():.3g})" if of_all else ""
    warnings.warn(f"{name} {caveat}; here the p_i differ between clients{range_}", OutsideCoverage, stacklevel=5)
