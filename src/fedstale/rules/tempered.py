"""The tempered family: every rule between MIFA and FedStale, with a memory that averages.

    Δ = β Σ_i α_i m_i + Σ_S (α_i/p_i^θ)(Δ_i − β m_i),   then   m_i ← m_i + r_i (Δ_i − m_i),  r_i = max(1/visits_i, r)

With r = 1, θ = 1 is FedStale (Rodio & Neglia, ECAI 2024, Eq. 8), and so U-FedAvg (β = 0) and U-FedVARP (β = 1); θ = 0
with β = 1 is MIFA (Gu et al., NeurIPS 2021). θ < 1 is biased by a multiple of what the memory does not predict, which
vanishes as the memory gets right, where FedAvg's bias stays, and it has less noise: fedstale.theory.tempered has both,
exactly. A running mean instead of the last update averages the noise of local training away (as DIANA's memories do,
Mishchenko et al., 2019) and costs no more memory. Weights that are divided by their sum are Hájek's (survey sampling).

Nothing is remembered of who has not come yet, and a newcomer with p_i^(−θ) would make little of it: with 10 of 200
clients a round, the model would hardly move before everybody has come once. So others stand in for them: the newcomers
of a round, with weights α_i/p_i that are scaled to the weight of all who had not come; in a round without newcomers,
the mean of what is remembered. So where all updates are the same, so is the global one, from the first round on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import beta as betas
from .. import theta as thetas
from ..checks import Float, fail, number
from ..federation import CheckedRound, Ints
from ..memory.held import Announcement
from ..memory.kernel import Mix
from ..rule_state import MemoryState, RuleState, per_client
from ..state import State
from .base import Rule, refuse_non_finite
from .stale import BetaLike, announced_beta, learn


@dataclass(eq=False, kw_only=True)
class TemperedState(MemoryState):
    """What the tempered family remembers."""

    beta: RuleState
    """of the choice of β"""
    theta: RuleState
    """of the choice of θ"""
    visits: Ints = per_client()
    """how often each client came, shape (N,)"""


@dataclass(frozen=True, kw_only=True)
class TemperedFedStale(Rule):
    """Δ = β Σ_i α_i m_i + Σ_S (α_i/p_i^θ)(Δ_i − β m_i), then m_i ← m_i + r_i (Δ_i − m_i) for i ∈ S.

    Parameters
    ----------
    beta
        How much of the memory counts, as for `FedStale`, but not one for each client; 1 by default.
    theta
        How strongly rarity is corrected: a number in [0, 1], or "auto" (default): `fedstale.theta`.
    refresh
        r, the least weight of the newest update in a client's memory: 1 remembers the last update alone, and
        r → 0 the mean of all.
    self_normalised
        Whether the weights of those who came are divided by their sum; newcomers are weighted like all others then.
    stand_in
        Whether newcomers, or else the mean of what is remembered, stand in for all who have not come yet. Without it a
        newcomer counts with α_i/p_i^θ, as in MIFA for θ = 0.
    """

    beta: BetaLike = 1.0
    theta: float | str | thetas.Theta = "auto"
    refresh: float = 0.5
    self_normalised: bool = False
    stand_in: bool = True

    name: ClassVar[str] = "tempered"
    memory: ClassVar[bool] = True
    takes_late: ClassVar[bool] = True
    reads_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if betas.make(self.beta).per_client:
            raise fail("beta", self.beta, "the tempered family has one β for all clients")
        thetas.make(self.theta)
        number("refresh", self.refresh, 0.0, 1.0)

    def start(self, state: State) -> RuleState:
        """Nobody came yet, and nothing is known of β and θ."""
        return TemperedState(
            stale=state.remember(),
            beta=betas.make(self.beta).init(state),
            theta=thetas.make(self.theta).init(state),
            visits=np.zeros(state.federation.num_clients, dtype=np.int64),
        )

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """α_i/p_i^θ, β and r_i, before it is known who comes."""
        own, p, to_theta = state.own(TemperedState), probabilities, thetas.make(self.theta)
        learns = type(to_theta) is thetas.AutoTheta
        if self.self_normalised or not (learns or isinstance(to_theta, thetas.ConstantTheta)):
            what = 'give self_normalised=False, and theta="auto" or a number'
            raise fail("rule", self.name, f"the clients hold the memory, and weigh themselves: {what}")
        beta, terms, vote = announced_beta(self.name, betas.make(self.beta), state.inside(own.beta), index, p)
        theta, rates = to_theta.value(state.inside(own.theta)), self._rates(self._visits(own)[clients] + 1)
        instead = ["stand_in=False"] * self.stand_in + ["theta=0.5"] * learns
        single = f"{self.name} weighs newcomers and learns from single answers: give {', '.join(instead)}"
        sample = to_theta.sample if isinstance(to_theta, thetas.AutoTheta) else 0
        return Announcement(p**-theta, beta, rates, terms, vote, sample, single if instead else "")

    def update(self, state: State, round: CheckedRound) -> Float:
        """The memory of everybody, and the correction by those who came."""
        own, federation = state.own(TemperedState), state.federation
        to_beta, of_beta = betas.make(self.beta), state.inside(own.beta)
        to_theta, of_theta = thetas.make(self.theta), state.inside(own.theta)
        beta, theta = to_beta.value(of_beta, round.index), to_theta.value(of_theta)
        before = self._visits(own)
        visits = before[round.clients] + 1
        weights, of_all = self._weights(round, theta), beta / federation.total_mass
        if self.stand_in and not self.self_normalised:
            came = float(federation.masses(np.flatnonzero(before)).sum())
            weights, more = _stand_in(weights, round, visits == 1, came / federation.total_mass)
            of_all *= more
        rates = self._rates(visits)
        mix = Mix(
            weights,
            beta * weights,
            of_all,
            federation.masses(round.clients),
            to_beta.statistics,
            None if (rates == 1.0).all() else rates,
        )
        again, columns = (
            np.flatnonzero((visits > 1) & (round.probabilities < 1.0)),
            to_theta.columns(federation.num_params),
        )
        fresh = [round.updates[int(k)] for k in again]
        residuals = own.stale.residuals(round.clients[again], fresh, columns, beta)
        prepared = own.stale.prepare_exchange(round.clients, round.updates, mix)
        refuse_non_finite(round, prepared.sums.mix)
        prepared.commit()
        learn(to_beta, of_beta, round, prepared.sums)
        to_theta.observe(of_theta, round.index, round.alpha[again], round.probabilities[again], residuals)
        own.visits[round.clients] = visits
        state.report |= {"beta": beta, "theta": theta}
        return prepared.sums.mix

    def take_late(self, state: State, late: CheckedRound) -> None:
        """m_i ← m_i + r_i (Δ_i − m_i) with Δ_i of an earlier round: one more visit."""
        own, ones = state.own(TemperedState), np.ones(late.size)
        visits = own.visits[late.clients] + 1
        rates = self._rates(visits)
        masses = state.federation.masses(late.clients)
        mix = Mix(ones, ones, 0.0, masses, refresh=None if (rates == 1.0).all() else rates)
        prepared = own.stale.prepare_exchange(late.clients, late.updates, mix)
        if not np.isfinite(prepared.sums.mix).all():
            raise fail("updates", "non-finite numbers", "every update must be finite")
        prepared.commit()
        own.visits[late.clients] = visits

    def _rates(self, visits: Ints) -> Float:
        """r_i of those who came so often."""
        return np.maximum(1.0 / visits, self.refresh)

    def _weights(self, round: CheckedRound, theta: float) -> Float:
        """α_i/p_i^θ, or with the sum 1."""
        weights: Float = round.alpha / round.probabilities**theta
        total = float(weights.sum())
        return weights / total if self.self_normalised and total > 0 else weights

    @staticmethod
    def _visits(own: TemperedState) -> Ints:
        """How often each client came; a client of which nothing is remembered, or no longer, is new."""
        visits: Ints = np.where(own.stale.slots >= 0, own.visits, 0)
        return visits


def _stand_in(weights: Float, round: CheckedRound, new: NDArray[np.bool_], came: float) -> tuple[Float, float]:
    """Let others stand in for all who have not come yet.

    Parameters
    ----------
    weights
        α_i/p_i^θ of those who came, shape (|S|,).
    round
        The round.
    new
        Who of them came for the first time, shape (|S|,).
    came
        Σ α_i over all clients that had come before this round.

    Returns
    -------
    tuple
        The weights, in which those of newcomers sum to 1 − came; and how many times β Σ α_i m_i counts.
    """
    one_over_p = round.alpha / round.probabilities
    total = float(one_over_p[new].sum())
    if total > 0:
        return np.where(new, one_over_p * ((1.0 - came) / total), weights), 1.0
    return weights, 1.0 / came if came > 0 else 1.0
