"""Participation heterogeneity in a few numbers: p_avg, p_min and 1/p_var (Theorem `thm:fedstale_upper`), for any α_i.

The paper takes α_i = 1/N and says in a footnote that its analysis extends to any weights of the objective
F = Σ α_i F_i. It does, with these in the place of the paper's means over the clients (ω_i = (1−p_i)/p_i):

    p_avg           mean p_i              Σ α_i p_i
    1/p_var         mean ω_i              Σ α_i ω_i        the memory term
    1/(N p_var)     (1/N) mean ω_i        Σ α_i² ω_i       the noise of absence
                    (1/N) mean 1/p_i      Σ α_i²/p_i       the noise of the stochastic gradients

Lemma by lemma: a sum of independent terms α_i(…) has α_i² in its variance (Lemmas 4 and 6); Jensen's inequality and
H = Σ α_i ‖∇F_i − h_i‖² have α_i (Lemmas 1, 7 and 10); and where the paper bounds Σ ω_i b_i/N² by (Σ ω_i/N)(Σ b_i/N)
(Eq. `lem_fedhist_variance_bound`), Σ α_i² ω_i b_i ≤ (Σ α_i ω_i)(Σ α_i b_i) in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..checks import fail, probabilities, vector


@dataclass(frozen=True)
class ParticipationSummary:
    """What the bounds need to know of the probabilities p_i and the weights α_i of N clients.

    Attributes
    ----------
    num_clients
        N.
    p_avg, p_min
        Σ α_i p_i, and the smallest p_i of a client with α_i > 0.
    inverse_p_var
        Σ α_i (1−p_i)/p_i; kept instead of p_var, which is infinite when every client always takes part.
    absence
        Σ α_i² (1−p_i)/p_i: 1/(N p_var) with equal weights.
    sampling
        Σ α_i²/p_i: (1/N) mean 1/p_i with equal weights.
    """

    num_clients: int
    p_avg: float
    p_min: float
    inverse_p_var: float
    absence: float
    sampling: float

    @property
    def ratio(self) -> float:
        """p_avg/p_min, the paper's degree of participation heterogeneity (at least 1)."""
        return self.p_avg / self.p_min


def participation_summary(p: ArrayLike, alpha: ArrayLike | None = None) -> ParticipationSummary:
    """Summarise the probabilities and weights of the clients.

    Parameters
    ----------
    p
        Probabilities, shape (N,), each in (0, 1].
    alpha
        Weights in the objective, shape (N,); default 1/N. Those of all clients sum to 1; where only some clients are
        known, the sums are divided by their total.
    """
    values = probabilities("p", p)
    if values.size == 0:
        raise fail("p", [], "needs at least one client")
    weights = np.full(values.size, 1.0 / values.size) if alpha is None else vector("alpha", alpha, values.size)
    total = float(weights.sum())
    if (weights < 0.0).any() or not total > 0.0:
        raise fail("alpha", alpha, "must be weights of at least 0, not all of them 0")
    odds_against = (1.0 - values) / values
    return ParticipationSummary(
        num_clients=values.size,
        p_avg=float(weights @ values / total),
        p_min=float(values[weights > 0.0].min()),
        inverse_p_var=float(weights @ odds_against / total),
        absence=float(weights**2 @ odds_against / total),
        sampling=float(weights**2 @ (1.0 / values) / total),
    )
