"""Upper bound on min_t E‖∇F(w_t)‖²: Theorem `thm:fedhist` of the supplement with its explicit constants.

Notation: η = η_s η_c K, v = 1/p_var = mean (1−p_i)/p_i, r = p_avg/p_min and D = η_c² L² K(K−1) (the drift). The paper
has α_i = 1/N; here the α_i may be any weights of the objective (its footnote), see `heterogeneity.py`.

Re-derived from Lemmas `lem:round_progress` and `lem:initial_progress` (times 4/(ηT), summed over the rounds):
all twelve terms and their constants agree with the printed theorem, which is only looser than the lemmas
(factor (T−1)/T dropped on the (1−β)² term; drift of the first round counted with 6 instead of 3). What the
printed statement leaves out:

- it holds for h_i = 0 at the start, because Lemma `lem:variance_initial` drops h_i. For other h_i the memory
  term needs 1/p_min in the place of (1−p_min)/p_min;
- for K > 1 the proofs drop E⟨ḡ_i, g_i − ḡ_i⟩, as if the noise of a local step did not move the later ones.
  For convex quadratics the dropped product is never positive, so the bound stands; in general it is a gap;
- the step sizes of Eq. `lem_progress_lr` are too weak for the proof: see `steps.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..checks import fail, fraction, number, positive_int
from .heterogeneity import ParticipationSummary, participation_summary


@dataclass(frozen=True, eq=False)
class Problem:
    """A federation and its hyper-parameters, as the theorem sees them.

    Parameters
    ----------
    L
        Smoothness of every F_i.
    sigma2
        σ², the largest variance of a stochastic gradient.
    sigma_g2
        σ_g², the largest ‖∇F_i − ∇F‖².
    initial_gap
        F(w₁) − F*.
    memory_gap
        H₁ = Σ α_i ‖∇F_i(w₁) − h_i‖²; with the usual h_i = 0, the mean squared gradient at w₁.
    p
        Participation probabilities, shape (N,).
    K, T
        Local steps in a round, and rounds.
    lr_client, lr_server
        η_c and η_s.
    beta
        Weight of the stale updates, in [0, 1].
    alpha
        Weights α_i of the objective F = Σ α_i F_i, shape (N,), which sum to 1; default 1/N.
    """

    L: float
    sigma2: float
    sigma_g2: float
    initial_gap: float
    memory_gap: float
    p: ArrayLike
    K: int
    T: int
    lr_client: float
    lr_server: float
    beta: float
    alpha: ArrayLike | None = None

    def __post_init__(self) -> None:
        for name in ("L", "lr_client", "lr_server"):
            number(name, getattr(self, name), 0.0, open_low=True)
        for name in ("sigma2", "sigma_g2", "initial_gap", "memory_gap"):
            number(name, getattr(self, name), 0.0)
        positive_int("K", self.K)
        positive_int("T", self.T)
        fraction("beta", self.beta)
        self.participation  # noqa: B018 (checks p and alpha)
        if self.alpha is not None and abs(float(np.sum(self.alpha)) - 1.0) > 1e-9:
            raise fail("alpha", self.alpha, "must sum to 1")

    @cached_property
    def participation(self) -> ParticipationSummary:
        """p_avg, p_min and 1/p_var, weighted by the α_i."""
        return participation_summary(self.p, self.alpha)

    @property
    def lr(self) -> float:
        """η = η_s η_c K, the step of the normalised form."""
        return self.lr_server * self.lr_client * self.K

    @property
    def drift(self) -> float:
        """D = η_c² L² K(K−1)."""
        return (self.lr_client * self.L) ** 2 * self.K * (self.K - 1)

    def with_beta(self, beta: float) -> Problem:
        """Return the same problem with another β."""
        return replace(self, beta=beta)


@dataclass(frozen=True)
class UpperBound:
    """The twelve terms of the theorem, in the order in which it prints them, and their sums."""

    initialisation: float
    memory: float
    noise_sampling: float
    noise_drift: float
    noise_drift_sampled: float
    noise_stale: float
    noise_stale_drift: float
    heterogeneity_drift: float
    heterogeneity_drift_sampled: float
    heterogeneity_fresh: float
    heterogeneity_stale_drift: float
    heterogeneity_first_round: float

    @property
    def stochastic_gradient(self) -> float:
        """The five terms in σ²."""
        fixed = self.noise_sampling + self.noise_drift + self.noise_drift_sampled
        return fixed + self.noise_stale + self.noise_stale_drift

    @property
    def data_heterogeneity(self) -> float:
        """The five terms in σ_g²."""
        fixed = self.heterogeneity_drift + self.heterogeneity_drift_sampled + self.heterogeneity_first_round
        return fixed + self.heterogeneity_fresh + self.heterogeneity_stale_drift

    @property
    def total(self) -> float:
        """The bound."""
        return self.initialisation + self.memory + self.stochastic_gradient + self.data_heterogeneity


def upper_bound(problem: Problem) -> UpperBound:
    """Evaluate Eq. `thm_fedhist`; it bounds anything only where `check_step_sizes(problem)` passes."""
    s, drift = problem.participation, problem.drift
    fresh, stale = (1.0 - problem.beta) ** 2, problem.beta**2
    noise, spread = problem.sigma2 / problem.K, problem.sigma_g2
    step = problem.lr * problem.L  # ηL
    sampled = step * s.absence  # ηLv/N
    remembered = step * s.inverse_p_var * s.ratio  # ηLvr
    unrefreshed = step * s.inverse_p_var * (1.0 - s.p_min) / s.p_min
    return UpperBound(
        initialisation=4.0 * problem.initial_gap / (problem.lr * problem.T),
        memory=stale * 48.0 * unrefreshed / problem.T * problem.memory_gap,
        noise_sampling=4.0 * step * s.sampling * noise,
        noise_drift=4.0 * drift * noise,
        noise_drift_sampled=48.0 * sampled * drift * noise,
        noise_stale=stale * 48.0 * remembered * noise,
        noise_stale_drift=stale * 96.0 * remembered * drift * noise,
        heterogeneity_drift=16.0 * drift * spread,
        heterogeneity_drift_sampled=192.0 * sampled * drift * spread,
        heterogeneity_fresh=fresh * 24.0 * sampled * spread,
        heterogeneity_stale_drift=stale * 384.0 * remembered * drift * spread,
        heterogeneity_first_round=12.0 * sampled / problem.T * spread,
    )
