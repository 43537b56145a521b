"""Participation heterogeneity in three numbers: p_avg, p_min and 1/p_var (Theorem `thm:fedstale_upper`)."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from ..checks import fail, probabilities


@dataclass(frozen=True)
class ParticipationSummary:
    """What the bounds need to know of the probabilities p_i of N clients.

    `inverse_p_var` is mean (1−p_i)/p_i; it is kept instead of p_var because p_var is infinite when every
    client always takes part.
    """

    num_clients: int
    p_avg: float
    p_min: float
    inverse_p_var: float

    @property
    def ratio(self) -> float:
        """p_avg/p_min ≥ 1, the paper's degree of participation heterogeneity."""
        return self.p_avg / self.p_min

    @property
    def mean_inverse_p(self) -> float:
        """Mean of 1/p_i, which is 1 + 1/p_var."""
        return 1.0 + self.inverse_p_var


def participation_summary(p: ArrayLike) -> ParticipationSummary:
    """Summarise the probabilities `p`, shape (N,), each in (0, 1]."""
    values = probabilities("p", p)
    if values.size == 0:
        raise fail("p", [], "needs at least one client")
    odds_against = (1.0 - values) / values
    return ParticipationSummary(values.size, float(values.mean()), float(values.min()), float(odds_against.mean()))
