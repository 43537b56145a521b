"""Rules that remember: FedStale (Eq. 8–9, Algorithm 2) and its relatives.

Rodio & Neglia, FedStale: leveraging stale client updates in federated learning, ECAI 2024.
FedVARP: Jhunjhunwala et al., UAI 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from .. import beta as betas
from ..checks import Float, fail
from ..federation import CheckedRound, Ints
from ..memory.held import Announcement
from ..memory.kernel import Mix, Sums
from ..rule_state import MemoryState, RuleState
from ..state import State
from .averaging import round_weights
from .base import Rule, refuse_non_finite

BetaLike = float | str | betas.Beta | Mapping[int, float] | Callable[[int], float]
"""What a user may write for β."""


@dataclass(eq=False, kw_only=True)
class StaleState(MemoryState):
    """What FedStale remembers."""

    beta: RuleState
    """of the choice of β, such as `fedstale.beta.AutoState`"""
    per_client: bool
    """whether the running sum is Σ a_i β_i h_i, with a β_i for each client, or Σ a_i h_i"""


@dataclass(frozen=True, kw_only=True)
class FedStale(Rule):
    """Δ = β Σ_i α_i h_i + Σ_S (α_i/p_i)(Δ_i − β h_i), then h_i ← Δ_i for i ∈ S.

    Unbiased for every β and whatever is in the memory. A round in which nobody comes still applies the
    stale term.

    Parameters
    ----------
    beta
        A number in [0, 1], "auto" (default), "auto-per-client", "theory", a schedule {round: β}, a callable,
        or a `fedstale.beta.Beta`.
    """

    beta: BetaLike = "auto"

    name: ClassVar[str] = "fedstale"
    memory: ClassVar[bool] = True
    takes_late: ClassVar[bool] = True
    reads_once: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chooser  # noqa: B018 - a β that is none is refused here

    @cached_property
    def _chooser(self) -> betas.Beta:
        """What chooses β."""
        return betas.make(self.beta)

    def start(self, state: State) -> RuleState:
        """No update is remembered yet, and nothing is known of β."""
        chooser = self._chooser
        return StaleState(stale=state.remember(), beta=chooser.init(state), per_client=chooser.per_client)

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """α_i/p_i and β, before it is known who comes."""
        own, p = state.own(StaleState), probabilities
        beta, terms, vote = announced_beta(self.name, self._chooser, state.inside(own.beta), index, p)
        return Announcement(1.0 / p, beta, np.ones(len(clients)), terms, vote)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Eq. 9: the stale term of everybody, and the correction by those who came."""
        chooser, own = self._chooser, state.own(StaleState)
        if own.per_client != chooser.per_client:
            made = "a β for each client" if own.per_client else "one β for all clients"
            raise fail("beta", self.beta, f"the state was made with {made}, and its sums are weighted with it")
        if chooser.per_client:
            return self._update_per_client(state, round, chooser)
        federation, of_beta = state.federation, state.inside(own.beta)
        beta = chooser.value(of_beta, round.index)
        weights = round.alpha / round.probabilities
        masses = federation.masses(round.clients)
        mix = Mix(weights, beta * weights, beta / federation.total_mass, masses, chooser.statistics)
        exchange = own.stale.prepare_exchange(round.clients, round.updates, mix)
        refuse_non_finite(round, exchange.sums.mix)
        exchange.commit()
        learn(chooser, of_beta, round, exchange.sums)
        state.report["beta"] = beta
        return exchange.sums.mix

    def _update_per_client(self, state: State, round: CheckedRound, chooser: betas.Beta) -> Float:
        """Eq. 9 with β_i for β: the running sum is Σ α_i β_i h_i."""
        federation, own = state.federation, state.own(StaleState)
        of_beta = state.inside(own.beta)
        beta = chooser.of_clients(of_beta, round.clients)
        weights = round.alpha / round.probabilities
        mix = Mix(weights, beta * weights, 1.0 / federation.total_mass, np.zeros(round.size), statistics=True)
        exchange = own.stale.prepare_exchange(round.clients, round.updates, mix)
        refuse_non_finite(round, exchange.sums.mix)
        learn(chooser, of_beta, round, exchange.sums)
        exchange.weigh(federation.masses(round.clients) * chooser.of_clients(of_beta, round.clients))
        exchange.commit()
        state.report["beta"] = float(beta.mean()) if round.size else chooser.value(of_beta, round.index)
        return exchange.sums.mix

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i of an earlier round; as a term of β it counts as if such were always seen (1 for its 1/p_i)."""
        chooser, own, masses = self._chooser, state.own(StaleState), state.federation.masses(late.clients)
        of_beta, ones, p = state.inside(own.beta), np.ones(late.size), late.given_probabilities
        mix = Mix(ones, ones, 0.0, 0.0 * masses if own.per_client else masses, chooser.statistics)
        exchange = own.stale.prepare_exchange(late.clients, late.updates, mix)
        if not np.isfinite(exchange.sums.mix).all():
            raise fail("updates", "non-finite numbers", "every update must be finite")
        if p is not None:
            learn(chooser, of_beta, replace(late, alpha=late.alpha * np.sqrt(p)), exchange.sums)
        if own.per_client:
            exchange.weigh(masses * chooser.of_clients(of_beta, late.clients))
        exchange.commit()


def announced_beta(rule: str, chooser: betas.Beta, state: State, index: int, p: Float) -> tuple[float, Float, float]:
    """Return a round's β, the weights of the clients' terms in what it learns, and what a first update votes for."""
    beta, nothing = chooser.value(state, index), np.zeros(len(p))
    if type(chooser) in (betas.Constant, betas.Schedule):
        return beta, nothing, 0.0
    if isinstance(chooser, betas.Auto) and not chooser.per_client:
        with np.errstate(over="ignore"):
            return beta, (1.0 - p) / p**2, chooser.start
    what = f'{rule} with {type(chooser).__name__} needs single updates: give a number, a schedule or "auto"'
    raise fail("beta", chooser, f"{what} where the clients hold the memory")


def learn(chooser: betas.Beta, state: State, round: CheckedRound, sums: Sums) -> None:
    """Let β learn from a round that has something to say; squares of huge numbers may overflow, and then it has not."""
    if round.size and np.isfinite(sums.inner).all() and np.isfinite(sums.stale_sq).all():
        chooser.observe(state, round, sums)


@dataclass(frozen=True, kw_only=True)
class UnbiasedFedVARP(FedStale):
    """Δ = Σ_i α_i h_i + Σ_S (α_i/p_i)(Δ_i − h_i) (Eq. 7): FedStale with β = 1 under its own name."""

    beta: float = 1.0

    name: ClassVar[str] = "u-fedvarp"


@dataclass(frozen=True, kw_only=True)
class FedVARP(Rule):
    """Δ = Σ_i α_i h_i + (1/|S|) Σ_S (Δ_i − h_i): the original, biased when the p_i differ."""

    name: ClassVar[str] = "fedvarp"
    memory: ClassVar[bool] = True
    takes_late: ClassVar[bool] = True
    reads_once: ClassVar[bool] = True
    caveat: ClassVar[str] = (
        "assumes that all clients participate with the same probability, and is biased otherwise (see u-fedvarp)"
    )

    def update(self, state: State, round: CheckedRound) -> Float:
        """As FedStale with β = 1, but everybody who came weighs the same."""
        federation = state.federation
        weights = round_weights(round)
        mix = Mix(weights, weights, 1.0 / federation.total_mass, federation.masses(round.clients))
        exchange = state.own(MemoryState).stale.prepare_exchange(round.clients, round.updates, mix)
        refuse_non_finite(round, exchange.sums.mix)
        exchange.commit()
        return exchange.sums.mix

    def take_late(self, state: State, late: CheckedRound) -> None:
        """h_i ← Δ_i of an earlier round."""
        state.own(MemoryState).stale.replace(late.clients, late.updates, state.federation.masses(late.clients))
