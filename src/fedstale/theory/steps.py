"""Step sizes for which the upper bound holds: Eq. `lem_progress_lr`, and what its proof needs besides.

With equal weights α_i = 1/N (others: `heterogeneity.py`), v = 1/p_var and r = p_avg/p_min, the printed condition is
η_c ≤ 1/(8LK) and
η_s ≤ min{N/(12(1−β)²v), 2N/(3v), 1/(3β²vr)} (the main text prints it without 2N/(3v)). It is meant to collect
all conditions of the proof, but four of them do not follow from it. With every p_i = 1, for one, it allows
any η_s, and plain gradient descent diverges. They limit η = η_s η_c K:

- δ = η²L ≤ η/2, used in Eq. `lem_progress_req_delta`: η ≤ 1/(2L);
- Eq. `lem_progress_lr_1`: η² ≤ N/(24β²L²v);
- Eq. `lem_progress_lr_2`: η² ≤ p_min²/(48β²L²v(1−p_avg)(2−p_min)). With all p_i = p and β = 1 this asks for
  η ~ p^1.5 where the printed condition allows η ~ p;
- the first round (Lemma `lem:initial_progress`), whose gradient term has 6ηLv/N without the factor (1−β)²:
  its coefficient reaches −η/4 only if 6ηLv/N·(1+8D) + 8D(1+24β²ηLvr) ≤ 1/2, with D = η_c²L²K(K−1). This
  binds for very small N only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..checks import fail, fraction, number, positive_int
from .heterogeneity import participation_summary
from .upper import Problem


@dataclass(frozen=True)
class StepSizeLimits:
    """The largest client rate η_c, and each limit on the server rate η_s by its name (inf: no limit)."""

    client: float
    server_fresh: float
    server_sampling: float
    server_stale: float
    proof_descent: float
    proof_stale_step: float
    proof_stale_memory: float
    proof_first_round: float

    @property
    def server(self) -> float:
        """The limit as printed in Eq. `lem_progress_lr`."""
        return min(self.server_fresh, self.server_sampling, self.server_stale)

    @property
    def server_proof(self) -> float:
        """The limit with the conditions that the proof uses and the printed equation omits."""
        proof = (self.proof_descent, self.proof_stale_step, self.proof_stale_memory, self.proof_first_round)
        return min(self.server, *proof)


def step_size_limits(
    L: float, p: ArrayLike, K: int, beta: float, lr_client: float | None = None, *, alpha: ArrayLike | None = None
) -> StepSizeLimits:
    """Return the step-size limits for smoothness `L`, probabilities `p` (N,), `K` local steps, `beta` and `alpha` (N,).

    The limits of the proof are on η_s η_c K; they are given as limits on η_s at `lr_client`, by default the
    largest client rate allowed.
    """
    number("L", L, 0.0, open_low=True)
    fraction("beta", beta)
    s = participation_summary(p, alpha)
    client = 1.0 / (8.0 * L * positive_int("K", K))
    rate = client if lr_client is None else number("lr_client", lr_client, 0.0, open_low=True)
    v, absence, per_eta = s.inverse_p_var, s.absence, 1.0 / (rate * K)
    drift = (rate * L) ** 2 * K * (K - 1)
    stale_step = _over(1.0, 24.0 * absence * (beta * L) ** 2)
    stale_memory = _over(s.p_min**2, 48.0 * v * (beta * L) ** 2 * (1.0 - s.p_avg) * (2.0 - s.p_min))
    first = L * (6.0 * (1.0 + 8.0 * drift) * absence + 192.0 * beta**2 * v * s.ratio * drift)
    return StepSizeLimits(
        client=client,
        server_fresh=_over(1.0, 12.0 * (1.0 - beta) ** 2 * absence),
        server_sampling=_over(2.0, 3.0 * absence),
        server_stale=_over(1.0, 3.0 * beta**2 * v * s.ratio),
        proof_descent=per_eta / (2.0 * L),
        proof_stale_step=per_eta * float(np.sqrt(stale_step)),
        proof_stale_memory=per_eta * float(np.sqrt(stale_memory)),
        proof_first_round=per_eta * _over(max(0.5 - 8.0 * drift, 0.0), first),
    )


def check_step_sizes(problem: Problem, *, printed: bool = False) -> None:
    """Raise `InvalidInput` where the rates of `problem` break the conditions of the theorem.

    With `printed`, only Eq. `lem_progress_lr` as it stands is asked; by default also what the proof needs.
    """
    limits = step_size_limits(problem.L, problem.p, problem.K, problem.beta, problem.lr_client, alpha=problem.alpha)
    server = limits.server if printed else limits.server_proof
    if not _at_most(problem.lr_client, limits.client):
        raise fail("lr_client", problem.lr_client, f"must be at most 1/(8LK) = {limits.client:.6g}")
    if not _at_most(problem.lr_server, server):
        raise fail("lr_server", problem.lr_server, f"must be at most {server:.6g} at beta = {problem.beta:g}")


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0.0 else float("inf")


def _at_most(value: float, limit: float) -> bool:
    return value <= limit * (1.0 + 1e-12)  # a rate computed as the limit itself must pass
