"""How strongly rarity is corrected: the exponent θ of the weights p_i^(−θ) (`fedstale.rules.tempered`).

Let e_i = Δ_i − β m_i be what the memory does not predict. Given the past, and for clients that come independently,

    E[Δ] − Σ α_i Δ_i = −Σ_i α_i (1 − p_i^(1−θ)) e_i          bias: 0 at θ = 1, and as the memory gets right
    E‖Δ − E[Δ]‖²    =  Σ_i α_i² (1 − p_i) p_i^(1−2θ) ‖e_i‖²   noise: least at θ = 0

(`fedstale.theory.tempered`). Noise of one round has nothing to do with that of the next, so that over many rounds it
grows like their number. A bias stays the same until the client comes again, about 1/p_i rounds, and biases of clients
that point the same way add up. So the two are not compared within one round: a bias b(t) counts with what it has in
common with those of the rounds before,

    cost(θ) = Σ_t 2⟨b(t), b(t−1) + (1 − 1/L) b(t−2) + …⟩ + noise,   L = Σ (1 − p_i)/p_i / Σ (1 − p_i),

which is the growth of ‖Σ_t (Δ − Σ α_i Δ_i)‖², remembered for the L rounds that an absence lasts. All of it is estimated
from those who came: with a further 1/p_i, a client's term stands for all the rounds in which it is not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .checks import Float, fraction, fraction_in, positive_int
from .randomness import generator
from .rule_state import RuleState

if TYPE_CHECKING:
    from .federation import Ints
    from .state import State

CANDIDATES: Float = np.linspace(0.0, 1.0, 5)
"""The θ among which "auto" chooses."""


class Theta(ABC):
    """A way of choosing θ. What it remembers is in the state, as `State.inside` shows it."""

    def init(self, state: State) -> RuleState:
        """Return what this θ remembers before round 0."""
        return RuleState()

    @abstractmethod
    def value(self, state: State) -> float:
        """θ for this round, from past rounds only."""

    def columns(self, num_params: int) -> Ints:
        """Which entries of the residuals `observe` wants; none by default."""
        return np.empty(0, dtype=np.int64)

    def observe(self, state: State, round: int, alpha: Float, p: Float, residuals: Float) -> None:
        """Learn from the residuals e_i, shape (n, columns), of clients that came again in this round."""


@dataclass(frozen=True)
class ConstantTheta(Theta):
    """The same θ in every round: 0 counts everybody who comes once, 1 with 1/p_i."""

    theta: float

    def __post_init__(self) -> None:
        fraction("theta", self.theta)

    def value(self, state: State) -> float:
        """Return the constant."""
        return float(self.theta)


@dataclass(eq=False, kw_only=True)
class AutoThetaState(RuleState):
    """What "auto" remembers, for each of the candidates."""

    bias: Float
    """Σ (t + 1) 2⟨b(t), Σ_s<t (1 − 1/L)^(t−s−1) b(s)⟩, shape (candidates,)"""
    noise: Float
    """Σ (t + 1) of the noise, shape (candidates,)"""
    lasting: Float
    """Σ_s≤t (1 − 1/L)^(t−s) b(s), shape (candidates, entries)"""
    absence: Float
    """Σ (1 − p_i)/p_i² and Σ (1 − p_i)/p_i over all participations, whose ratio is L, shape (2,)"""


@dataclass(frozen=True)
class AutoTheta(Theta):
    """The candidate of least cost (see the module's first lines); a term of round t counts t + 1 times.

    A client's first update says nothing: nothing was remembered of it. The cost is that of a sample of the parameters,
    which is the same in every round and for every candidate.

    Parameters
    ----------
    start
        θ while no client with p_i < 1 has come twice.
    sample
        How many parameters are looked at; all of them if there are no more.
    """

    start: float = 0.5
    sample: int = 4096

    def __post_init__(self) -> None:
        fraction("start", self.start)
        positive_int("sample", self.sample)

    def init(self, state: State) -> RuleState:
        """Nothing is known."""
        count, entries = len(CANDIDATES), len(self.columns(state.federation.num_params))
        zeros = np.zeros(count)
        return AutoThetaState(bias=zeros, noise=zeros.copy(), lasting=np.zeros((count, entries)), absence=np.zeros(2))

    def columns(self, num_params: int) -> Ints:
        """Return the same random parameters in every round."""
        return sampled(num_params, self.sample)

    def value(self, state: State) -> float:
        """Return the candidate of least cost."""
        own = state.own(AutoThetaState)
        return float(least_cost_theta(own.bias, own.noise, self.start))

    def observe(self, state: State, round: int, alpha: Float, p: Float, residuals: Float) -> None:
        """Add what the round says of each candidate."""
        own = state.own(AutoThetaState)
        if not len(alpha) and not own.absence.any():  # nobody came again yet: there is nothing to fade either
            return
        with np.errstate(over="ignore", invalid="ignore"):
            terms = costs(round, alpha, p[None], residuals[None], own.lasting[None], own.absence[None])
        bias, noise, lasting, absence = (term[0] for term in terms)
        if finite(bias, noise, lasting, absence):
            own.bias, own.noise = own.bias + bias, own.noise + noise
            own.lasting, own.absence = lasting, absence


@lru_cache(maxsize=8)
def sampled(num_params: int, sample: int) -> Ints:
    """Return the entries that are looked at, in ascending order."""
    if num_params <= sample:
        columns: Ints = np.arange(num_params)
    else:
        columns = np.sort(generator(0, "theta").choice(num_params, sample, replace=False, shuffle=False))
    columns.setflags(write=False)
    return columns


def costs(
    round: int, alpha: Float, p: Float, residuals: Float, lasting: Float, absence: Float
) -> tuple[Float, Float, Float, Float]:
    """Return what a round adds to the costs of R runs with the same participants, and the two sums moved on.

    Parameters
    ----------
    round
        Its index t.
    alpha
        Of the clients that came again, shape (n,).
    p, residuals
        Their p_i and e_i in each run, shapes (R, n) and (R, n, entries).
    lasting, absence
        As in `AutoThetaState`, shapes (R, candidates, entries) and (R, 2).

    Returns
    -------
    tuple
        Bias and noise, shape (R, candidates), weighted with t + 1; then `lasting` and `absence` after the round.
    """
    rest = 1.0 - p
    absence = absence + np.stack([np.sum(rest / p**2, axis=1), np.sum(rest / p, axis=1)], axis=1)
    left = np.divide(absence[:, 1], absence[:, 0], out=np.ones(len(p)), where=absence[:, 0] > 0)
    powers = p[:, None] ** (1.0 - CANDIDATES[:, None])  # p_i^(1−θ), shape (R, candidates, n)
    bias = ((1.0 - powers) * (alpha / p)[:, None]) @ residuals
    growth = 2.0 * np.einsum("rcj,rcj->rc", bias, lasting)
    squares = np.einsum("rnj,rnj->rn", residuals, residuals)
    noise = np.einsum("rcn,rn->rc", (alpha**2 * rest)[:, None] * (powers / p[:, None]) ** 2, squares)
    return (round + 1) * growth, (round + 1) * noise, (1.0 - left)[:, None, None] * lasting + bias, absence


def finite(*terms: Float) -> bool:
    """Whether a round's terms can be used: one that overflows says nothing."""
    return all(bool(np.isfinite(term).all()) for term in terms)


def least_cost_theta(bias: Float, noise: Float, start: float) -> Float:
    """Return the candidate of least cost along the last axis; `start` where there is no noise yet."""
    best = CANDIDATES[np.argmin(np.maximum(bias, 0.0) + noise, axis=-1)]
    return np.asarray(np.where(noise.max(axis=-1) > 0, best, start))


def make(theta: float | str | Theta) -> Theta:
    """Turn what a user writes for θ into a `Theta`: a number in [0, 1], or "auto"."""
    if isinstance(theta, Theta):
        return theta
    if isinstance(theta, str):
        return AutoTheta() if theta == "auto" else ConstantTheta(fraction_in("theta", theta, ["auto"]))
    return ConstantTheta(fraction("theta", theta))
