"""How much to trust stale updates: the weight β of Eq. 8.

A constant (the paper), a schedule, the minimiser of the paper's bound ("theory"), and two that need no choice:
"auto" and "auto-per-client" minimise the participation noise of the global update, which given the past is exactly

    Σ_i α_i² ω_i ‖Δ_i − β h_i‖²,  ω_i = (1 − p_i)/p_i,   with minimiser   β̂ = Σ α_i² ω_i ⟨Δ_i, h_i⟩ / Σ α_i² ω_i ‖h_i‖².

The server estimates both sums from the clients it has seen. Client i is seen with probability p_i, so its term carries
a further 1/p_i: weighted by α_i² ω_i/p_i, what a round adds has the sums over all clients as its expectation. The β of
a round uses past rounds only: it is then independent of who comes now, and the update stays unbiased.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from . import theory
from .checks import Float, fail, fraction, fraction_in, number, positive_int
from .memory.kernel import squares, weighted_sum
from .rule_state import RuleState, per_client

if TYPE_CHECKING:
    from .federation import CheckedRound, Ints
    from .memory.kernel import Sums
    from .state import State

__all__ = [
    "NAMES",
    "Auto",
    "AutoPerClient",
    "AutoPerClientState",
    "AutoState",
    "Beta",
    "Constant",
    "Schedule",
    "Theory",
    "TheoryState",
    "make",
]


class Beta(ABC):
    """A way of choosing β. What it remembers is in the state (`State.of_rule`, as `State.inside` shows it)."""

    per_client: ClassVar[bool] = False
    """Whether every client has its own β_i."""
    statistics: ClassVar[bool] = True
    """Whether `observe` wants the inner products and norms of the round."""

    def init(self, state: State) -> RuleState:
        """Return what this β remembers before round 0."""
        return RuleState()

    @abstractmethod
    def value(self, state: State, round: int) -> float:
        """β for this round, from past rounds only."""

    def observe(self, state: State, round: CheckedRound, sums: Sums) -> None:
        """Learn from a round after its update was computed."""

    def of_clients(self, state: State, clients: Ints) -> Float:
        """β_i of single clients, for a `per_client` β."""
        return np.full(len(clients), self.value(state, state.round))


@dataclass(frozen=True)
class Constant(Beta):
    """The same β in every round: 0 is U-FedAvg, 1 is U-FedVARP."""

    beta: float
    statistics: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fraction("beta", self.beta)

    def value(self, state: State, round: int) -> float:
        """Return the constant."""
        return float(self.beta)


@dataclass(frozen=True)
class Schedule(Beta):
    """β as a function of the round: a callable, or a table {round: β} with straight lines in between."""

    points: Mapping[int, float] | Callable[[int], float]
    statistics: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if callable(self.points):
            return
        if not self.points:
            raise fail("beta", self.points, "a schedule needs at least one {round: beta}")
        for at, beta in self.points.items():
            positive_int("round of a beta schedule", at, 0)
            fraction(f"beta of round {at}", beta)

    def value(self, state: State, round: int) -> float:
        """Interpolate the table, or ask the callable."""
        if callable(self.points):
            return fraction(f"beta of round {round}", self.points(round))
        rounds = sorted(self.points)
        return float(np.interp(round, rounds, [self.points[at] for at in rounds]))


@dataclass(eq=False, kw_only=True)
class AutoState(RuleState):
    """What "auto" remembers."""

    sums: Float
    """Σ w⟨Δ,h⟩ and Σ w‖h‖², shape (2,)"""


@dataclass(frozen=True)
class Auto(Beta):
    """β̂ of the module's docstring, from all past participations; those of round t count t + 1 times.

    The weight t + 1 lets the first rounds fade without a time scale that somebody would have to choose. A client's
    first update, of which nobody knows yet how it will age, is a term as well, with ‖Δ_i‖² for the norm and start times
    that for the product: until a rare client returns, those who come often do not decide what its memory is worth.

    Parameters
    ----------
    forget
        A further factor on the past sums in each round that adds a term; 1 for none.
    start
        β while nothing is known, and what a client's first update votes for.
    """

    forget: float = 1.0
    start: float = 0.0

    def __post_init__(self) -> None:
        number("forget", self.forget, 0.0, 1.0, open_low=True)
        fraction("start", self.start)

    def init(self, state: State) -> RuleState:
        """Both sums start empty."""
        return AutoState(sums=np.zeros(2))

    def value(self, state: State, round: int) -> float:
        """Return Σ α²ω⟨Δ,h⟩ / Σ α²ω‖h‖², clipped to [0, 1]."""
        return float(common(state.own(AutoState).sums, self.start))

    def observe(self, state: State, round: CheckedRound, sums: Sums) -> None:
        """Add the round's terms; a client with p_i = 1 has ω_i = 0 and says nothing about absence."""
        inner, norm = sums.inner.copy(), sums.stale_sq.copy()
        new = np.flatnonzero(norm == 0)
        norm[new] = squares([round.updates[int(k)] for k in new])
        with np.errstate(invalid="ignore"):  # the square of a huge number may be infinite: its term is left out
            inner[new] = self.start * norm[new]
        weight = term_weights(round.alpha, round.probabilities, round.index)
        own = state.own(AutoState)
        own.sums = with_terms(own.sums, weight, inner, norm, self.forget)


def term_weights(alpha: Float, p: Float, round: int) -> Float:
    """(t + 1) α_i² ω_i/p_i: the expectation over who comes is then a sum over all clients with (t + 1) α_i² ω_i."""
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray((round + 1) * alpha**2 * (1.0 - p) / p**2)


def with_terms(sums: Float, weight: Float, inner: Float, norm: Float, forget: float = 1.0) -> Float:
    """Add a round to Σ w⟨Δ,h⟩ and Σ w‖h‖²: sums of shape (2, …), terms of shape (…, |S|)."""
    with np.errstate(over="ignore", invalid="ignore"):
        more = np.stack([np.sum(weight * inner, axis=-1), np.sum(weight * norm, axis=-1)])
        after = forget * sums + more
    # A term that overflows says nothing, and kept it would be ∞/∞ in every later round.
    return np.where((more[1] > 0) & np.isfinite(after).all(axis=0), after, sums)


def common(sums: Float, start: float) -> Float:
    """β̂ from the two sums, for each of their columns; `start` where they are empty."""
    inner, norm = sums
    ratio = np.divide(inner, norm, out=np.full_like(norm, start), where=norm > 0)
    return np.asarray(np.clip(ratio, 0.0, 1.0))


@dataclass(eq=False, kw_only=True)
class AutoPerClientState(RuleState):
    """What "auto-per-client" remembers."""

    common: AutoState
    """the sums of the common β̂"""
    inner: Float = per_client()
    """Σ (t + 1)⟨Δ_i, h_i⟩, shape (N,)"""
    norm: Float = per_client()
    """Σ (t + 1)‖h_i‖², shape (N,)"""
    count: Float = per_client()
    """n_i, shape (N,)"""
    value: Float = per_client()
    """β_i, shape (N,)"""


@dataclass(frozen=True)
class AutoPerClient(Auto):
    """β_i = (n_i b_i + m β̂)/(n_i + m) with b_i = Σ (t + 1)⟨Δ_i, h_i⟩ / Σ (t + 1)‖h_i‖², clipped to [0, 1].

    n_i counts the client's terms. A rare client has few of them and its b_i is noisy, so the common β̂ of `Auto`
    counts as m more. β_i changes only when client i takes part, so that Σ α_i β_i h_i stays a running sum.

    Parameters
    ----------
    prior
        m; 0 trusts the client's own terms alone as soon as there is one.
    """

    prior: float = 4.0
    per_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        number("prior", self.prior, 0.0)

    def init(self, state: State) -> RuleState:
        """Sums per client beside the common ones."""
        inner, norm, count, value = np.zeros((4, state.federation.num_clients))
        common = AutoState(sums=np.zeros(2))
        return AutoPerClientState(common=common, inner=inner, norm=norm, count=count, value=value)

    def value(self, state: State, round: int) -> float:
        """Return the common β̂."""
        return super().value(state.inside(state.own(AutoPerClientState).common), round)

    def of_clients(self, state: State, clients: Ints) -> Float:
        """β_i as it was set when the client last took part."""
        return state.own(AutoPerClientState).value[clients]

    def observe(self, state: State, round: CheckedRound, sums: Sums) -> None:
        """Add each participant's term and set its β_i anew."""
        own, who, late = state.own(AutoPerClientState), round.clients, round.index + 1
        super().observe(state.inside(own.common), round, sums)
        before = np.stack([own.inner[who], own.norm[who], own.count[who]])
        with np.errstate(over="ignore"):
            after = self.forget * before + np.stack([late * sums.inner, late * sums.stale_sq, sums.stale_sq > 0])
        inner, norm, count = np.where(np.isfinite(after).all(axis=0), after, before)
        own.inner[who], own.norm[who], own.count[who] = inner, norm, count
        own.value[who] = shrunk(inner, norm, count, self.value(state, round.index), self.prior)


def shrunk(inner: Float, norm: Float, count: Float, common: float | Float, prior: float) -> Float:
    """β_i from a client's sums and the number of their terms, with the common β as `prior` terms more."""
    own = np.divide(inner, norm, out=np.zeros_like(norm), where=norm > 0)
    weight = np.divide(count, count + prior, out=np.zeros_like(norm), where=norm > 0)
    return np.clip(weight * own + (1.0 - weight) * common, 0.0, 1.0)


@dataclass(eq=False, kw_only=True)
class TheoryState(RuleState):
    """What "theory" remembers."""

    moments: Float
    """of `theory.MomentEstimator`"""
    p: Float = per_client()
    """p_i as last told, 0 for a client whose probability is not known yet, shape (N,)"""


@dataclass(frozen=True)
class Theory(Beta):
    """β* = A/(A + B), the minimiser of the paper's bound (Theorem `thm:fedhist`, Eq. `beta_opt`).

    Noise and heterogeneity are estimated from the updates seen so far (`theory.MomentEstimator`) where they
    are not given; the p_i and α_i are those of the federation, or of the clients seen. The bound is for the worst
    case, and β* is small in every setting of the paper: it tells how the best β moves, not how large it is.

    Parameters
    ----------
    sigma2_over_K, sigma_g2
        Stochastic noise σ²/K and data heterogeneity σ_g² in one common scale, both or neither.
    drift
        η_c² L² K(K−1); default: the most that the step-size condition allows.
    start
        β while nothing is known.
    """

    sigma2_over_K: float | None = None
    sigma_g2: float | None = None
    drift: float = theory.LARGEST_DRIFT
    start: float = 0.0

    def __post_init__(self) -> None:
        fraction("start", self.start)
        if (self.sigma2_over_K is None) != (self.sigma_g2 is None):
            raise fail("sigma_g2", self.sigma_g2, "sigma2_over_K and sigma_g2 are given together or not at all")
        for name in ("sigma2_over_K", "sigma_g2", "drift"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), 0.0)

    def init(self, state: State) -> RuleState:
        """No moment and no p_i is known."""
        return TheoryState(moments=theory.MomentEstimator().init(), p=np.zeros(state.federation.num_clients))

    def value(self, state: State, round: int) -> float:
        """Return the minimiser of the bound at the present estimates."""
        known, own = state.federation.probabilities, state.own(TheoryState)
        p = own.p if known is None else np.asarray(known)
        alpha = state.federation.alpha()[p > 0]
        p = p[p > 0]
        noise, spread = self.sigma2_over_K, self.sigma_g2
        if noise is None or spread is None:
            noise, spread = theory.noise_and_heterogeneity(own.moments)
        if not p.size or not np.isfinite([noise, spread]).all():
            return self.start
        return theory.optimal_beta_from_moments(noise, spread, p, alpha=alpha, drift=self.drift)

    def observe(self, state: State, round: CheckedRound, sums: Sums) -> None:
        """Take the round's norms and spread into the moments; weights α_i/p_i make them those of the objective."""
        own, seen = state.own(TheoryState), state.last_seen[round.clients]
        own.p[round.clients] = round.probabilities
        weights = state.federation.num_clients * round.alpha / round.probabilities
        mean = weighted_sum(round.updates, weights / weights.sum(), len(sums.mix))
        lengths = squares(round.updates)
        with np.errstate(over="ignore"):  # the moments hold products of two weights and a square
            largest = weights.sum() ** 2 * max(1.0, float(lengths.sum()), float(sums.stale_sq.sum()))
        if not np.isfinite(largest):
            return
        observation = theory.Observation(
            fresh_sq=lengths,
            inner=sums.inner,
            stale_sq=sums.stale_sq,
            gap=np.where(seen >= 0, round.index - seen, 0),
            mean_sq=float(mean @ mean),
            weights=weights,
        )
        own.moments = theory.MomentEstimator().update(own.moments, observation)


# What a user may write for β, besides numbers and schedules.
NAMES: dict[str, type[Auto] | type[Theory]] = {
    "auto": Auto,
    "auto-per-client": AutoPerClient,
    "theory": Theory,
}


def make(beta: float | str | Beta | Mapping[int, float] | Callable[[int], float]) -> Beta:
    """Turn what a user writes for β into a `Beta`: a number, a name, a table, a callable."""
    if isinstance(beta, Beta):
        return beta
    if isinstance(beta, str):
        return NAMES[beta]() if beta in NAMES else Constant(fraction_in("beta", beta, NAMES))
    if isinstance(beta, Mapping) or callable(beta):
        return Schedule(beta)
    return Constant(fraction("beta", beta))
