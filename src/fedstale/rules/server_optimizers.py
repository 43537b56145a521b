"""Server optimisers around any rule: FedStale with a server Adam is `ServerAdam(FedStale())`; they may be nested.

Momentum: Hsu, Qi & Brown, Measuring the effects of non-identical data distribution for federated visual
classification, 2019. Adagrad, Adam, Yogi: Reddi et al., Adaptive federated optimization, ICLR 2021 (Algorithm 2).

    momentum:  m ← β₁ m + Δ,                Δ' = m
    others:    m ← β₁ m + (1 − β₁) Δ,       Δ' = m / (√v + τ),   v₀ = τ²
    Adagrad:   v ← v + Δ²
    Adam:      v ← β₂ v + (1 − β₂) Δ²
    Yogi:      v ← v − (1 − β₂) Δ² sign(v − Δ²)

Δ is what the wrapped rule returns; w ← w − η_s Δ'.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, fail, fraction, number
from ..federation import CheckedRound
from ..rule_state import RuleState
from ..state import State
from .base import Rule
from .wrapped import WrappedRule


@dataclass(eq=False, kw_only=True)
class MomentumState(RuleState):
    """What a server optimiser remembers, and what the rule inside it does."""

    inner: RuleState
    m: Float
    """shape (d,)"""


@dataclass(eq=False, kw_only=True)
class AdaptiveState(MomentumState):
    """What an adaptive server optimiser remembers."""

    v: Float
    """shape (d,)"""


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(WrappedRule):
    """A rule whose global update is taken as a gradient by an optimiser.

    Parameters
    ----------
    rule
        The rule; its own `server_lr` is not used. Default: FedAvg, which makes this FedAvgM, FedAdam, …
    server_lr
        η_s.
    beta1
        β₁.
    """

    beta1: float = 0.9

    kind: ClassVar[str]
    """The name behind the plus sign: "fedstale+adam"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rule, Rule):
            raise fail("rule", self.rule, "must be a rule, such as FedStale()")
        fraction("beta1", self.beta1)
        object.__setattr__(self, "name", f"{self.rule.name}+{self.kind}")
        self.adopt()

    def inside(self, state: State) -> State:
        """Return the state as the rule inside sees it."""
        return state.inside(state.own(MomentumState).inner)

    def start(self, state: State) -> RuleState:
        """Empty moments beside what the rule remembers."""
        return MomentumState(inner=self.rule.start(state), m=np.zeros(state.federation.num_params))

    def update(self, state: State, round: CheckedRound) -> Float:
        """Let the rule combine, and the optimiser take the result for a gradient."""
        return self.optimize(state, self.rule.update(self.inside(state), round))

    @abstractmethod
    def optimize(self, state: State, delta: Float) -> Float:
        """Move the moments and return Δ'."""


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(ServerOptimizer):
    """m ← β₁ m + Δ, Δ' = m (FedAvgM)."""

    kind: ClassVar[str] = "momentum"

    def optimize(self, state: State, delta: Float) -> Float:
        """One step of the moment."""
        own = state.own(MomentumState)
        own.m = self.beta1 * own.m + delta
        return own.m.copy()


@dataclass(frozen=True, kw_only=True)
class ServerAdaptive(ServerOptimizer):
    """Δ' = m / (√v + τ).

    Parameters
    ----------
    tau
        τ, the degree of adaptivity.
    """

    server_lr: float = 0.01
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        number("tau", self.tau, 0.0, open_low=True)

    def start(self, state: State) -> RuleState:
        """v₀ = τ²."""
        d = state.federation.num_params
        return AdaptiveState(inner=self.rule.start(state), m=np.zeros(d), v=np.full(d, self.tau**2))

    def optimize(self, state: State, delta: Float) -> Float:
        """One step of both moments."""
        own = state.own(AdaptiveState)
        m = self.beta1 * own.m + (1.0 - self.beta1) * delta
        with np.errstate(over="ignore"):  # the square of a huge number may be infinite: its step is then 0
            v = self.second_moment(own.v, np.square(delta))
        own.m, own.v = m, v
        return np.asarray(m / (np.sqrt(v) + self.tau))

    @abstractmethod
    def second_moment(self, v: Float, square: Float) -> Float:
        """Return v with the new Δ² in it."""


@dataclass(frozen=True, kw_only=True)
class ServerAdagrad(ServerAdaptive):
    """v ← v + Δ² (FedAdagrad; β₁ = 0 as in the paper)."""

    server_lr: float = 0.1
    beta1: float = 0.0

    kind: ClassVar[str] = "adagrad"

    def second_moment(self, v: Float, square: Float) -> Float:
        """Add up."""
        return v + square


@dataclass(frozen=True, kw_only=True)
class ServerAdam(ServerAdaptive):
    """v ← β₂ v + (1 − β₂) Δ² (FedAdam).

    Parameters
    ----------
    beta2
        β₂.
    """

    beta2: float = 0.99

    kind: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("beta2", self.beta2)

    def second_moment(self, v: Float, square: Float) -> Float:
        """Forget and add."""
        return self.beta2 * v + (1.0 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class ServerYogi(ServerAdam):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²) (FedYogi)."""

    kind: ClassVar[str] = "yogi"

    def second_moment(self, v: Float, square: Float) -> Float:
        """Move towards Δ² by a step that does not depend on v."""
        return v - (1.0 - self.beta2) * square * np.sign(v - square)


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    kind.kind: kind for kind in (ServerMomentum, ServerAdagrad, ServerAdam, ServerYogi)
}
