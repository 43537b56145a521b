"""FedAU: unbiased FedAvg whose weights are learned from when clients came.

Wang & Ji, A lightweight method for tackling unknown participation statistics in federated averaging, ICLR 2024.

    Δ = Σ_S α_i ω_i Δ_i,   ω_i = mean of client i's past intervals between participations, 1 before the first has ended

The rule carries the estimator of `fedstale.participation.FedAUEstimator` in its state and needs no p_i from anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..participation import FedAUEstimator
from ..participation.estimator import EstimatorState
from ..rule_state import RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class IntervalState(RuleState):
    """What FedAU remembers: the columns of its estimator, by the names that it gives them."""

    start: Ints = per_client()
    sum: Ints = per_client()
    count: Ints = per_client()
    num_clients: int
    """how many clients there were in the last round"""


@dataclass(frozen=True, kw_only=True)
class FedAU(Rule):
    """Δ = Σ_S α_i ω_i Δ_i. Biased while ω_i is being learned, and with a cutoff ever after.

    For steady participation ω_i tends to (1 − (1−p_i)^cutoff)/p_i (`fedstale.participation.FedAUEstimator.limit`):
    client i counts for a share 1 − (1−p_i)^cutoff of what it should. With the paper's cutoff of 50 that is 0.995 for
    p = 0.1 and 0.395 for p = 0.01; without a cutoff it is 1.

    Parameters
    ----------
    cutoff
        The longest interval counted; None for no cutoff. The paper's value is 50.
    """

    cutoff: int | None = 50

    name: ClassVar[str] = "fedau"

    def __post_init__(self) -> None:
        super().__post_init__()
        FedAUEstimator(self.cutoff)

    def start(self, state: State) -> RuleState:
        """No interval has ended."""
        n = state.federation.num_clients
        start, sum, count = np.zeros((3, n), dtype=np.int64)
        return IntervalState(start=start, sum=sum, count=count, num_clients=n)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Weigh who came by the length of their past absences, then count this round."""
        estimator, intervals = FedAUEstimator(self.cutoff), self._intervals(state, round.index)
        weights = round.alpha / estimator.probabilities(intervals, round.clients)
        delta = weighted_sum(round.updates, weights, state.federation.num_params)
        refuse_non_finite(round, delta)
        estimator.observe(intervals, round.clients, round.index)
        own, now = state.own(IntervalState), intervals.columns
        own.start, own.sum, own.count = now["start"], now["sum"], now["count"]
        own.num_clients = state.federation.num_clients
        return delta

    def _intervals(self, state: State, index: int) -> EstimatorState:
        """Copy the estimator's columns; clients that joined since the last round start their first interval now."""
        own = state.own(IntervalState)
        columns = {"start": own.start.copy(), "sum": own.sum.copy(), "count": own.count.copy()}
        columns["start"][own.num_clients :] = index
        return EstimatorState(state.federation.num_clients, index, columns)
